"""The routes that are not hot: query, catalog, status, snapshots, health and the description of it all. FastAPI serves them.

One rule: whatever blocks runs in `service.slow`, never on the loop's thread, which answers calls.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import Any, Final, TypeVar

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse
from starlette.exceptions import HTTPException

from cmdlog.api.docs import docs_page
from cmdlog.api.openapi import QUERY_BODY, describe_api, problem_responses
from cmdlog.api.problem import Problem, invalid, of_refused
from cmdlog.api.request import json_object, only_fields, read_body
from cmdlog.api.service import Service
from cmdlog.node.outcome import Refused
from cmdlog.node.query import QueryRefused
from cmdlog.wal.errors import DiskFull, WalError

HTTP_CODES: Final = {404: "not_found", 405: "method_not_allowed"}
QUERY_FIELDS: Final = frozenset(("sql", "params", "partition"))

T = TypeVar("T")


def make_routes_app(service: Service, *, version: str) -> FastAPI:
    """FastAPI with the cold routes; `/openapi.json` describes the hot ones too."""
    app = FastAPI(
        title="cmdlog",
        version=version or "0",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses=problem_responses(503),
    )
    app.openapi = lambda: describe_api(app, service)  # type: ignore[method-assign]  # FastAPI's documented way to extend it
    _add_data_routes(app, service)
    _add_health_routes(app, service)
    app.add_exception_handler(Problem, _answer_problem)
    app.add_exception_handler(HTTPException, _answer_http_exception)
    app.add_exception_handler(Exception, _answer_defect)
    return app


def _add_data_routes(app: FastAPI, service: Service) -> None:
    @app.post("/v1/query", summary="Read-only SQL on a frozen state", openapi_extra=QUERY_BODY, responses=problem_responses(422))
    async def query(request: Request) -> Response:
        node = service.node()
        limits = service.settings
        body = await read_body(request.receive, limit_bytes=limits.call_bytes_max, timeout_s=limits.body_timeout_s)
        sql, params, partition = _query_arguments(json_object(body), limits.partitions)
        result = await _slowly(service, lambda: node.query(sql, params, partition))
        as_of = {str(where): str(txn_id) for where, txn_id in result.as_of.items()}
        return _json({"columns": result.columns, "rows": result.rows, "as_of": as_of})

    @app.get("/v1/procedures", summary="Catalog of procedures with their schemas")
    async def procedures() -> Response:
        return _json({"procedures": service.node().catalog()})

    @app.get("/v1/status", summary="Node, partitions, watermarks, log fill, predicted recovery time")
    async def status() -> Response:
        return _json(await _slowly(service, service.node().status))

    @app.get("/v1/snapshots", summary="Snapshots of this node")
    async def snapshots() -> Response:
        return _json({"snapshots": await _slowly(service, service.node().snapshots)})

    @app.post("/v1/snapshots", summary="Takes a snapshot of every partition now")
    async def take_snapshot() -> Response:
        return _json({"snapshots": await _slowly(service, service.node().take_snapshot)})


def _add_health_routes(app: FastAPI, service: Service) -> None:
    @app.get("/healthz", summary="The process is alive")
    async def healthz() -> Response:
        return _json({"alive": True})

    @app.get("/readyz", summary="Calls are being served")
    async def readyz() -> Response:
        node = service.maybe_node
        if node is not None and node.ready and not service.stopping:
            return _json({"ready": True})
        phase = "stopping" if service.stopping else "recovering" if node is None else "not serving"
        raise Problem("not_ready", f"the node is {phase}", retry_after_s=1, progress=dict(service.progress()))

    @app.get("/docs", summary="This description, for people", response_class=HTMLResponse)
    async def docs() -> HTMLResponse:
        return HTMLResponse(docs_page(describe_api(app, service)))


def _query_arguments(given: dict[str, Any], partitions: int) -> tuple[str, list[Any], int | None]:
    only_fields(given, QUERY_FIELDS)
    sql, params, partition = given.get("sql"), given.get("params"), given.get("partition")
    problems = []
    if type(sql) is not str or not sql.strip():
        problems.append(("sql", "must be a SELECT statement"))
    if params is not None and not (type(params) is list and all(_is_scalar(value) for value in params)):
        problems.append(("params", "must be an array of numbers, strings, booleans and nulls"))
    if partition is not None and not (type(partition) is int and 0 <= partition < partitions):
        problems.append(("partition", f"must be an integer from 0 to {partitions - 1}"))
    if problems:
        raise invalid(problems)
    return str(sql), params or [], partition


def _is_scalar(value: Any) -> bool:
    if type(value) is int:
        return -(1 << 63) <= value < 1 << 63
    return value is None or type(value) in (str, float, bool)


async def _slowly(service: Service, work: Callable[[], T]) -> T:
    """Runs blocking work aside. Raises: Problem."""
    try:
        return await asyncio.get_running_loop().run_in_executor(service.slow, work)
    except QueryRefused as error:
        raise invalid([("sql", str(error))]) from None
    except Refused as refused:
        raise of_refused(refused) from None
    except DiskFull as error:
        raise Problem("disk_full", str(error), retry_after_s=5) from None
    except WalError as error:
        raise Problem("not_ready", str(error), retry_after_s=5) from None


def _json(value: Any) -> Response:
    return Response(orjson.dumps(value, default=_wire, option=orjson.OPT_NON_STR_KEYS), media_type="application/json")


def _wire(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} has no JSON form")


async def _answer_problem(_: Request, problem: Exception) -> Response:
    assert isinstance(problem, Problem)
    body = problem.body()
    return Response(body, problem.status, headers={k.decode(): v.decode() for k, v in problem.headers(body)})


async def _answer_http_exception(request: Request, error: Exception) -> Response:
    """What Starlette's router refuses."""
    assert isinstance(error, HTTPException)
    code = HTTP_CODES.get(error.status_code, "invalid_parameters")
    allow = (error.headers or {}).get("allow")
    problem = Problem(code, f"{request.method} {request.url.path[:200]} is not served")
    if allow is not None:
        problem.more["allow"] = allow
    return await _answer_problem(request, problem)


async def _answer_defect(request: Request, _: Exception) -> Response:
    return await _answer_problem(request, Problem("internal_error", "a defect of the server; its log says where"))
