"""An embedded database in a FastAPI application of your own.

Example:
    app = FastAPI(lifespan=lifespan("data", db), responses=PROBLEMS)
    answer_problems(app)
    Shop = Annotated[Embedded, Depends(embedded)]

    @app.post("/items/{item}/reservations")
    def reserve_items(item: int, count: int, shop: Shop) -> int:
        return shop.call(reserve, item=item, count=count)

A handler declared with `def` runs in a thread, where a call may wait for the disk; one declared with `async def` awaits
`call_async`. The directory belongs to one process: run one worker (`uvicorn app:app`, without `--workers`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Annotated, Any, Concatenate, Final, overload

from fastapi import FastAPI, Header, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection

from cmdlog.api.gate.problem import CODES, Problem, codes_of
from cmdlog.api.routes.query import of_statement
from cmdlog.api.routes.response_models import ProblemDetails
from cmdlog.errors import Aborted, CmdlogError, InvalidParameters, ProcedureFailed, Unavailable
from cmdlog.node.embedded.embedded import Embedded, open_embedded
from cmdlog.node.queries.query import QueryRefused
from cmdlog.procedure_calls import Call, P, R, named_call
from procedures import Database, Transaction
from procedures.declaration.procedure import EverywhereFunction

STATE: Final = "cmdlog"  # under which the application's state has the database

IdempotencyKey = Annotated[str | None, Header(alias="Idempotency-Key", pattern="^[!-~]{1,255}$")]
"""A handler's parameter with the key that its caller sent, for `Call.of(...).under(key)`."""

PROBLEMS: Final[dict[int | str, dict[str, Any]]] = {
    status: {
        "description": codes_of(status),
        "content": {"application/problem+json": {"schema": ProblemDetails.model_json_schema()}},
    }
    for status in (409, 500, 503, 504)
}
"""For `FastAPI(responses=PROBLEMS)`, or that of a route: the application's description lists the problems of calls."""

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[dict[str, Any]]]


def lifespan(data_dir: str | os.PathLike[str], db: Database, **settings: Any) -> Lifespan:
    """The lifespan of an application that has a database: it is open while the application runs.

    `settings` are those of `cmdlog.open`; so are the errors, which keep the application from starting.
    """

    @asynccontextmanager
    async def hold_open(_: FastAPI) -> AsyncIterator[dict[str, Any]]:
        database = await run_in_threadpool(open_embedded, data_dir, db, **settings)
        try:
            yield {STATE: database}
        finally:
            await run_in_threadpool(database.close)

    return hold_open


def embedded(connection: HTTPConnection) -> Embedded:
    """The application's database, for `Depends`. Raises: RuntimeError, when `lifespan` did not open one."""
    database = getattr(connection.state, STATE, None)
    if not isinstance(database, Embedded):
        raise RuntimeError("the application has no database: FastAPI(lifespan=cmdlog.fastapi.lifespan(data_dir, db))")
    return database


@overload
async def call_async(database: Embedded, procedure: EverywhereFunction[P, Any, R], /, *args: P.args, **params: P.kwargs) -> R: ...
@overload
async def call_async(
    database: Embedded, procedure: Callable[Concatenate[Transaction, P], R], /, *args: P.args, **params: P.kwargs
) -> R: ...
async def call_async(database: Embedded, procedure: Any, /, *args: Any, **params: Any) -> Any:
    """`Embedded.call` for handlers that are declared with `async def`. Cancelled, it may have been executed."""
    call: Call[Any] = named_call(procedure, args, params)
    return await asyncio.wrap_future(database.submit(call.procedure, **call.params))


def answer_problems(app: FastAPI) -> None:
    """Answers the errors of calls and queries as `application/problem+json`, with the codes and statuses of `cmdlog serve`."""
    app.add_exception_handler(CmdlogError, _answer)


async def _answer(_: Request, error: Exception) -> Response:
    assert isinstance(error, CmdlogError)
    problem = of_statement(error) if isinstance(error, QueryRefused) else problem_of(error)
    body = problem.body()
    return Response(body, problem.status, headers={name.decode(): value.decode() for name, value in problem.headers(body)})


def problem_of(error: CmdlogError) -> Problem:
    """The problem that a server answers this error with."""
    if isinstance(error, Aborted):
        code = "aborted"  # its own code is the application's
    else:
        code = error.code if error.code in CODES else "not_ready" if isinstance(error, Unavailable) else "internal_error"
    more: dict[str, Any] = {"txn_id": str(error.txn_id)} if error.txn_id else {}
    if isinstance(error, Aborted):
        more["abort_code"] = error.abort_code
    if isinstance(error, ProcedureFailed):
        more["error"] = error.error_type
    if isinstance(error, InvalidParameters):
        more["problems"] = [{"field": field, "problem": text} for field, text in error.problems]
    return Problem(code, str(error), retry_after_s=error.retry_after_s, **more)
