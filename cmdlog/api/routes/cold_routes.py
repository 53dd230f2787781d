"""The routes that are not hot: query, catalog, status, snapshots, health and the description of it all. FastAPI serves them.

One rule: whatever blocks runs in `service.slow`, never on the loop's thread, which answers calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.routing import BaseRoute, Route

from cmdlog.api.gate.auth import scope_of
from cmdlog.api.gate.login_page import PAGE_HEADERS
from cmdlog.api.gate.problem import Problem, invalid, of_refused
from cmdlog.api.gate.request import AUTHORIZATION, TXN, echoed_txn, json_object, only_fields, pick_headers, read_body, wants_stale
from cmdlog.api.gate.request_trace import SCOPE_KEY
from cmdlog.api.gate.route_table import TABLE
from cmdlog.api.gate.session_numbers import checked_uuid, session_fingerprint
from cmdlog.api.routes.app_state import Service, headers_of_problem, json_answer
from cmdlog.api.routes.cluster.cluster_routes import check_leading, cluster_handlers
from cmdlog.api.routes.deploy import deploy_handlers
from cmdlog.api.routes.docs_page import docs_page
from cmdlog.api.routes.events import dashboard_page
from cmdlog.api.routes.openapi import Description
from cmdlog.api.routes.query import read_arguments
from cmdlog.api.routes.swagger_page import swagger_folder, swagger_page
from cmdlog.node.outcome import CallRefused
from cmdlog.node.prometheus import Exposition
from cmdlog.node.status import Overview
from cmdlog.operator_error import full_text
from snapshot.errors import PointRefused, SnapshotError

Handler = Callable[[Request], Awaitable[Response]]


def make_routes_app(service: Service, *, version: str) -> FastAPI:
    """FastAPI with the cold routes of the table; `/openapi.json` describes the hot ones too.

    The gate has found the route, checked the role and refused other methods before a request gets here.
    """
    description = Description(service, version=version)
    handlers = _data_handlers(service) | _health_handlers(service) | _description_handlers(service, version, description)
    handlers |= cluster_handlers(service) | deploy_handlers(service)
    entries = {entry.name: entry for entry in TABLE}
    served: list[BaseRoute] = [
        Route(entries[name].path, handler, methods=[entries[name].method]) for name, handler in handlers.items()
    ]
    app = FastAPI(routes=served, openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.openapi = description.get  # type: ignore[method-assign]  # as FastAPI's "Extending OpenAPI" has it
    app.add_exception_handler(Problem, _answer_problem)
    app.add_exception_handler(ConnectionError, _answer_nobody)
    app.add_exception_handler(Exception, _answer_defect)
    return app


def _data_handlers(service: Service) -> dict[str, Handler]:
    async def query(request: Request) -> Response:
        node = service.node()
        limits = service.settings
        stale = wants_stale(request.scope["query_string"])
        headers = pick_headers(request.scope)
        caller, txn = service.gatekeeper.authenticate(headers.get(AUTHORIZATION)).name, echoed_txn(headers.get(TXN))
        read = partial(read_arguments, partitions=limits.partitions)
        asked = await service.read_aside(
            await read_body(request.scope, request.receive, limit_bytes=limits.call_bytes_max), read, caller
        )
        return await service.queries.run(node, asked, request.receive, caller=caller, stale=stale, txn=txn)

    async def procedures(_: Request) -> Response:
        return json_answer({"procedures": service.node().catalog()})

    async def snapshots(_: Request) -> Response:
        node = service.node()
        return json_answer(
            {"snapshots": await service.run_slowly(node.snapshots), "points": await service.run_slowly(node.points)}
        )

    async def end_session(request: Request) -> Response:
        caller = service.gatekeeper.authenticate(pick_headers(request.scope).get(AUTHORIZATION))
        session = session_fingerprint(scope_of(caller), checked_uuid(request.path_params["session"]))
        check_leading(service)
        try:
            service.node().end_session(session)
        except CallRefused as refused:
            raise of_refused(refused) from None
        return Response(status_code=204)

    turn = asyncio.Lock()  # snapshots at once would wait for each other in the threads that status needs

    async def take_snapshot(request: Request) -> Response:
        body = await read_body(request.scope, request.receive, limit_bytes=service.settings.call_bytes_max)
        consistent = read_consistent(await service.read_aside(body, json_object)) if body.strip() else False
        async with turn:
            node = service.node()
            take = node.take_point if consistent else lambda: {"snapshots": node.take_snapshot()}
            try:
                return json_answer(await service.run_slowly(take))
            except PointRefused as refused:
                raise invalid([("consistent", str(refused))]) from None
            except SnapshotError as failed:  # a full volume, say
                raise Problem("snapshot_failed", full_text(failed)) from None

    return {
        "query": query,
        "end_session": end_session,
        "procedures": procedures,
        "snapshots": snapshots,
        "take_snapshot": take_snapshot,
    }


def read_consistent(given: dict[str, Any]) -> bool:
    """Whether a recovery point of all partitions is asked for. Raises: Problem."""
    only_fields(given, frozenset({"consistent"}))
    consistent = given.get("consistent", False)
    if type(consistent) is not bool:
        raise invalid([("consistent", "must be true or false")])
    return consistent


def _health_handlers(service: Service) -> dict[str, Handler]:
    async def status(request: Request) -> Response:
        caller = service.gatekeeper.authenticate(pick_headers(request.scope).get(AUTHORIZATION))
        await service.fronts.gather_counts()
        credentials = service.gatekeeper.describe()
        found = {**await service.run_slowly(service.node().status), **service.fronts.describe()}
        shown = service.shown_to(caller, {**found, "token_file": credentials} if credentials else found)
        return Response(shown, media_type="application/json")

    async def healthz(_: Request) -> Response:
        return json_answer({"alive": True})

    async def readyz(_: Request) -> Response:
        node = service.maybe_node
        if node is not None and node.ready and not service.stopping:
            shown = _check_member(node.overview)
            stalled = node.stalls()
            if len({partition for stall in stalled for partition in stall["partitions"]}) < node.settings.partitions:
                return json_answer({"ready": True, **shown, **({"stalled": stalled} if stalled else {})})
            detail = "; ".join(stall["message"] for stall in stalled)
            raise Problem("not_ready", f"no partition makes progress: {detail}", retry_after_s=1, stalled=stalled)
        if node is not None and not service.stopping:
            if (full := node.troubles.disk_full()) is not None:
                detail = f"{full['path']} has {full['free_bytes']} bytes free: {full['reason']}"
                raise Problem("disk_full", detail, retry_after_s=5, disk_full=full)
            _check_member(node.overview)
        phase = "stopping" if service.stopping else "recovering" if node is None else "not serving"
        state = {"state": "bootstrapping"} if phase == "recovering" else {}
        raise Problem("not_ready", f"the node is {phase}", retry_after_s=1, progress=dict(service.progress()), **state)

    return {"status": status, "healthz": healthz, "readyz": readyz}


def _check_member(overview: Overview | None) -> dict[str, str]:
    """Of a member of a cluster its state, role and leader; {} of a node alone. Raises: Problem, when it serves no calls."""
    if overview is None or overview.cluster is None:
        return {}
    member = overview.cluster.readiness()
    if not member.serves:
        raise Problem("not_ready", f"the node is {member.state}: {member.why}", retry_after_s=1, **member.shown())
    return member.shown()


def _description_handlers(service: Service, version: str, description: Description) -> dict[str, Handler]:
    def overview() -> Overview | None:
        node = service.maybe_node
        return None if node is None else node.overview

    exposition = Exposition(service.front, overview, version=version or "0")

    async def openapi(_: Request) -> Response:
        return json_answer(await service.run_slowly(description.get))

    async def metrics(request: Request) -> Response:
        accept = request.headers.get("accept", "")
        await service.fronts.gather_counts()
        kind, body = await asyncio.get_running_loop().run_in_executor(None, exposition.render, accept)
        return Response(body, headers={"content-type": kind})

    async def docs(_: Request) -> Response:
        folder, described = swagger_folder(), await service.run_slowly(description.get)
        page = docs_page(described) if folder is None else swagger_page(described, folder)
        return _page(page)

    async def dashboard(_: Request) -> Response:
        return _page(dashboard_page())

    return {"openapi": openapi, "metrics": metrics, "docs": docs, "dashboard": dashboard}


def _page(text: str) -> Response:
    return Response(text, headers={name.decode(): value.decode() for name, value in PAGE_HEADERS})


async def _answer_problem(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, Problem)
    request.scope[SCOPE_KEY].note_problem(problem)
    body = problem.body()
    return Response(body, problem.status, headers={k.decode(): v.decode() for k, v in headers_of_problem(problem, body)})


async def _answer_nobody(_: Request, __: Exception) -> Response:
    """The client has left: whatever is answered, nobody gets it."""
    return Response(status_code=400)


async def _answer_defect(request: Request, _: Exception) -> Response:
    return await _answer_problem(request, Problem("internal_error", "internal server error; see the server's log"))
