"""The routes that are not hot: events, query, catalog, sessions, snapshots, status, health, and the description of it all.

One rule: whatever blocks runs in `service.slow`, never on the loop's thread, which answers calls.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, Any, Final
from urllib.parse import parse_qs

from fastapi import Body, FastAPI, Path, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse
from pydantic.json_schema import SkipJsonSchema
from starlette.types import Receive, Scope, Send

from cmdlog.api.gate.auth import scope_of
from cmdlog.api.gate.problem import Problem, invalid, of_refused
from cmdlog.api.gate.request import AUTHORIZATION, TXN, Incoming, echoed_txn, wants_stale
from cmdlog.api.gate.request_trace import SCOPE_KEY
from cmdlog.api.gate.route_table import entry_of
from cmdlog.api.gate.session_numbers import SESSION_UUID, checked_uuid, session_fingerprint
from cmdlog.api.routes.cluster_routes import check_leading
from cmdlog.api.routes.openapi import Description
from cmdlog.api.routes.page import PAGE_HEADERS, dashboard_page, swagger_page
from cmdlog.api.routes.query import EndTurn, QueryDesk
from cmdlog.api.routes.response_models import (
    ApiDocument,
    NodeServing,
    NodeStatus,
    ProcedureCatalog,
    ProcessAlive,
    QueryRequest,
    QueryRows,
    SnapshotList,
    SnapshotRequest,
    SnapshotsTaken,
)
from cmdlog.api.routes.service import Service, headers_of_problem
from cmdlog.api.routes.strict_route import IncomingOf, ServiceOf, json_answer, route, router
from cmdlog.node.outcome import CallRefused
from cmdlog.node.queries.pool import QueryAnswer
from cmdlog.node.reporting.prometheus import PrometheusExposition
from cmdlog.node.reporting.status import StatusOverview
from cmdlog.operator_error import full_text
from snapshot.errors import PointRefused, SnapshotError

ONE_ROW: Final = {"one row": {"value": {"sql": "SELECT ? AS answer", "params": [42]}}}
WITH_POINT: Final = {"with a point": {"value": {"consistent": True}}}
EVERY_S: Final = 1.0  # as often as the history gets a row
ROW_DIGITS_MAX: Final = 12
EVENT_HEADERS: Final = [
    (b"content-type", b"text/event-stream"),
    (b"x-accel-buffering", b"no"),  # a proxy must pass each event on at once
]


class ColdRoutes(FastAPI):
    """FastAPI with the cold routes of the table; `/openapi.json` describes the hot ones too.

    The gate has found the route, checked the role and refused other methods before a request gets here.
    """

    def __init__(self, service: Service, *, version: str) -> None:
        errors: dict[Any, Any] = {Problem: _answer_problem, ConnectionError: _answer_nobody, Exception: _answer_defect}
        super().__init__(
            routes=router.routes,
            exception_handlers=errors,
            openapi_url=None,
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,
        )
        self.service = service
        self.document = Description(service, version=version)
        self.exposition = PrometheusExposition(service.front, partial(_overview, service), version=version or "0")

    def openapi(self) -> dict[str, Any]:
        """See `Description`."""
        return self.document.get()


def _overview(service: Service) -> StatusOverview | None:
    node = service.maybe_node
    return None if node is None else node.overview


# -- events --------------------------------------------------------------------------------------------------------------


class EventsResponse(PlainTextResponse):
    """Serves one viewer, with an event a second, until it leaves, its credential ends, or the server stops.

    A viewer costs little and holds nothing back. There are `VIEWERS_MAX` of them, and no credential has all (`shares.py` of the
    node). Each must read within `body_timeout_s`, and its credential is looked at again before every event.

    Each event is one `data:` line: `{"telemetry": …, "status": …}`, see `Node.telemetry` and `Node.status`. `?after=N` leaves out
    the rows of the history up to number N, which the viewer has.
    """

    media_type = "text/event-stream"

    def __init__(self, service: Service, incoming: Incoming) -> None:
        """Raises: Problem."""
        super().__init__()
        self._service, self._incoming = service, incoming
        self._after = _row_number(incoming.query)
        self._node = service.node()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises: Problem before the first event; ConnectionError."""
        service, caller = self._service, self._incoming.caller
        with service.viewing(caller.name):
            left = asyncio.create_task(_left(receive))
            try:
                await send({"type": "http.response.start", "status": 200, "headers": EVENT_HEADERS})
                while not left.done() and not service.stopping and self._is_allowed():
                    event = await asyncio.get_running_loop().run_in_executor(service.slow, self._next_event)
                    async with asyncio.timeout(service.settings.body_timeout_s):
                        await send({"type": "http.response.body", "body": event, "more_body": True})
                    await asyncio.wait((left,), timeout=EVERY_S)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            finally:
                left.cancel()

    def _is_allowed(self) -> bool:
        """Whether the credential still serves."""
        try:
            caller = self._service.gatekeeper.authenticate(self._incoming.headers.get(AUTHORIZATION))
        except Problem:
            return False
        return not caller.roles.isdisjoint(entry_of("events").roles)

    def _next_event(self) -> bytes:
        telemetry: dict[str, Any] = self._node.telemetry(self._after)
        self._after = telemetry["history"]["next"]
        shown = {"telemetry": telemetry, "status": self._node.status()}
        return b"data: %b\n\n" % self._service.shown_to(self._incoming.caller, shown)  # without newlines, which would end it


@route("events", "One event per second, until the viewer disconnects", takes=("After",), response=EventsResponse)
async def send_events(service: ServiceOf, incoming: IncomingOf) -> Response:
    return EventsResponse(service, incoming)


async def _left(receive: Receive) -> None:
    """Ends when the viewer is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _row_number(query: bytes) -> int:
    """The `after` of the address. Raises: Problem."""
    given = parse_qs(query.decode("latin-1"), keep_blank_values=True).get("after", ["0"])
    if len(given) == 1 and given[0].isascii() and given[0].isdigit() and len(given[0]) <= ROW_DIGITS_MAX:
        return int(given[0])
    raise invalid([("after", "must be the `next` of an earlier event: a decimal number")])


# -- data ------------------------------------------------------------------------------------------------------------------


class QueryResponse(Response):
    """An answer that is read from its process as the client takes it; the turn ends with it."""

    media_type = "application/json"

    def __init__(self, answer: QueryAnswer, queries: QueryDesk, end_turn: EndTurn) -> None:
        super().__init__()
        self.headers["content-length"] = str(answer.size)
        self._answer, self._queries, self._end_turn = answer, queries, end_turn

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Of an answer whose process ends the rest is missing, and the connection ends."""
        queries, answer = self._queries, self._answer
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            piece, left = answer.take_first(), answer.size
            while piece:
                left -= len(piece)
                await send({"type": "http.response.body", "body": piece, "more_body": left > 0})
                piece = await queries.run_aside(answer.read_piece) if left else b""
        except (EOFError, OSError):
            return
        finally:
            queries.end_answer(answer, self._end_turn)


@route("query", "The rows", QueryRows, takes=("Txn", "PreferRedirect", "Consistency"))
async def run_query(
    request: Request, service: ServiceOf, incoming: IncomingOf, body: Annotated[QueryRequest, Body(openapi_examples=ONE_ROW)]
) -> Response:
    """One SELECT, answered from states that no call changes meanwhile."""
    node, partitions = service.node(), service.settings.partitions
    if body.partition is not None and body.partition >= partitions:
        raise invalid([("partition", f"must be an integer from 0 to {partitions - 1}")])
    stale, txn = wants_stale(incoming.query), echoed_txn(incoming.headers.get(TXN))
    asked, caller = (body.sql, body.params, body.partition), incoming.caller.name
    answer, end_turn = await service.queries.run(node, asked, request.receive, caller=caller, stale=stale, txn=txn)
    return QueryResponse(answer, service.queries, end_turn)


@route("procedures", "Every procedure", ProcedureCatalog)
async def list_procedures(service: ServiceOf) -> Response:
    return json_answer({"procedures": service.node().catalog()})


@route("end_session", "The session has ended, or was unknown", response=Response)
async def end_session(
    service: ServiceOf,
    incoming: IncomingOf,
    session: Annotated[str, Path(description="the client's UUID", json_schema_extra={"pattern": f"^{SESSION_UUID}$"})],
) -> Response:
    """Later calls of the session are refused with `session_expired`, and what is kept of it may go. Repeating it is harmless.

    The end counts at once, and is in the log with a partition's next batch. A restart before that forgets it.
    """
    ended = session_fingerprint(scope_of(incoming.caller), checked_uuid(session))
    check_leading(service)
    try:
        service.node().end_session(ended)
    except CallRefused as refused:
        raise of_refused(refused) from None
    return Response(status_code=204)


@route("snapshots", "The snapshots, by partition and age, and the recovery points, by transaction id", SnapshotList)
async def list_snapshots(service: ServiceOf) -> Response:
    node = service.node()
    return json_answer({"snapshots": await service.run_slowly(node.snapshots), "points": await service.run_slowly(node.points)})


@route("take_snapshot", "The new snapshots; with `consistent` the recovery point as well", SnapshotsTaken)
async def take_snapshot(
    service: ServiceOf,
    body: Annotated[SnapshotRequest | SkipJsonSchema[None], Body(openapi_examples=WITH_POINT)] = None,
) -> Response:
    """With `consistent`: one transaction id at which all partitions can be restored together."""
    async with service.snapshot_turn:
        node = service.node()
        consistent = body is not None and body.consistent
        take = node.take_point if consistent else lambda: {"snapshots": node.take_snapshot()}
        try:
            return json_answer(await service.run_slowly(take))
        except PointRefused as refused:
            raise invalid([("consistent", str(refused))]) from None
        except SnapshotError as failed:  # a full volume, say
            raise Problem("snapshot_failed", full_text(failed)) from None


# -- health ----------------------------------------------------------------------------------------------------------------


@route("status", "The node", NodeStatus)
async def show_status(service: ServiceOf, incoming: IncomingOf) -> Response:
    credentials = service.gatekeeper.describe()
    found = await service.run_slowly(service.node().status)
    shown = service.shown_to(incoming.caller, {**found, "token_file": credentials} if credentials else found)
    return Response(shown, media_type="application/json")


@route("healthz", "The process is alive", ProcessAlive)
async def show_alive() -> Response:
    return json_answer({"alive": True})


@route("readyz", "Calls are being served", NodeServing)
async def show_ready(service: ServiceOf) -> Response:
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
    raise Problem("not_ready", f"the node is {phase}", retry_after_s=1, progress=dict(service.progress), **state)


def _check_member(overview: StatusOverview | None) -> dict[str, str]:
    """Of a member of a cluster its state, role and leader; {} of a node alone. Raises: Problem, when it serves no calls."""
    if overview is None or overview.cluster is None:
        return {}
    member = overview.cluster.readiness()
    if not member.serves:
        raise Problem("not_ready", f"the node is {member.state}: {member.why}", retry_after_s=1, **member.shown())
    return member.shown()


@route("metrics", "The metrics", response=PlainTextResponse)
async def show_metrics(request: Request, service: ServiceOf) -> Response:
    render = partial(request.app.exposition.render, request.headers.get("accept", ""))
    kind, body = await asyncio.get_running_loop().run_in_executor(None, render)
    return Response(body, headers={"content-type": kind})


# -- the description, and pages --------------------------------------------------------------------------------------------


@route("openapi", "This description", ApiDocument)
async def show_openapi(request: Request, service: ServiceOf) -> Response:
    return json_answer(await _described(request, service))


@route("docs", "A page", response=HTMLResponse)
async def show_docs(request: Request, service: ServiceOf) -> Response:
    return _page(swagger_page(await _described(request, service)))


@route("dashboard", "A page", response=HTMLResponse)
async def show_dashboard() -> Response:
    return _page(dashboard_page())


async def _described(request: Request, service: Service) -> dict[str, Any]:
    return await service.run_slowly(request.app.document.get)


def _page(text: str) -> Response:
    return Response(text, headers={name.decode(): value.decode() for name, value in PAGE_HEADERS})


# -- errors ----------------------------------------------------------------------------------------------------------------


async def _answer_problem(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, Problem)
    request.scope[SCOPE_KEY].note_problem(problem)
    body = problem.body()
    return Response(body, problem.status, headers={k.decode(): v.decode() for k, v in headers_of_problem(problem, body)})


async def _answer_nobody(_: Request, __: Exception) -> Response:
    """The client has left, so this answer goes nowhere."""
    return Response(status_code=400)


async def _answer_defect(request: Request, _: Exception) -> Response:
    return await _answer_problem(request, Problem("internal_error", "internal server error; see the server's log"))
