"""`POST /v1/query`: read-only SQL, run in a process of its own.

One rule: a query holds back nobody else. `queries_max` of them run at a time, others wait for `query_timeout_s` at most; one
whose caller has left is ended.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from starlette.types import Receive

from cmdlog.api.gate.problem import Problem, invalid, of_refused
from cmdlog.api.gate.request import only_fields
from cmdlog.node.outcome import CallRefused
from cmdlog.node.queries.pool import QueryCancelled, QueryPool, Ticket
from cmdlog.node.queries.query import QueryLimit, QueryRefused
from cmdlog.node.settings import Settings
from cmdlog.procedure_calls import QueryParameters

if TYPE_CHECKING:
    from cmdlog.node.node import Node

FIELDS: Final = frozenset(("sql", "params", "partition"))


class Queries:
    """The queries under way. One thread: the event loop's."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._turns = asyncio.Semaphore(settings.queries_max)
        self._threads = ThreadPoolExecutor(settings.queries_max, thread_name_prefix="cmdlog-query")
        self.pool = QueryPool(memory_bytes_max=settings.query_memory_bytes_max, start_timeout_s=settings.start_timeout_s)

    async def run(
        self, node: Node, given: dict[str, Any], receive: Receive, *, stale: bool = False, txn: int | None = None
    ) -> bytes:
        """The answer's JSON. `stale`: of what this node has, if it holds `txn`. Raises: Problem."""
        sql, params, partition = read_arguments(given, self._settings.partitions)
        ticket = Ticket()
        read = partial(self.pool.run, ticket=ticket, dated=stale)
        work = partial(partial(node.stale.query, txn=txn) if stale else node.query_by, read, sql, params, partition)
        left = asyncio.create_task(_until_left(receive))
        running = asyncio.create_task(self._run_in_turn(work))
        try:
            await asyncio.wait((left, running), return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                raise left_early()
            return running.result()
        finally:
            ticket.cancel()
            left.cancel()
            running.cancel()

    async def _run_in_turn(self, work: partial[bytes]) -> bytes:
        try:
            async with asyncio.timeout(self._settings.query_timeout_s):
                await self._turns.acquire()
        except TimeoutError:
            raise Problem("not_ready", "every query process stayed busy", retry_after_s=1) from None
        future = asyncio.get_running_loop().run_in_executor(self._threads, work)
        future.add_done_callback(self._end_turn)  # not before: a query whose caller has left continues for a moment
        try:
            return await asyncio.shield(future)
        except QueryRefused as error:
            raise of_statement(error) from None
        except QueryCancelled:
            raise left_early() from None
        except CallRefused as refused:
            raise of_refused(refused) from None

    def _end_turn(self, future: asyncio.Future[bytes]) -> None:
        self._turns.release()
        if not future.cancelled():
            future.exception()  # when the caller has left, nobody else asks for it

    def close(self) -> None:
        """Ends every query and the processes."""
        self.pool.close()
        self._threads.shutdown(wait=False, cancel_futures=True)


def of_statement(error: QueryRefused) -> Problem:
    """What a statement may not do, or has no room for."""
    return Problem("query_limit", str(error)) if isinstance(error, QueryLimit) else invalid([("sql", str(error))])


def left_early() -> Problem:
    """For a caller that has closed its side; most of them do not read this either."""
    return Problem("bad_request", "the client closed its side of the connection before its query was done")


async def _until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def read_arguments(given: dict[str, Any], partitions: int) -> tuple[str, QueryParameters, int | None]:
    """SQL, parameters and partition of a request's body. Raises: Problem."""
    only_fields(given, FIELDS)
    sql, params, partition = given.get("sql"), given.get("params"), given.get("partition")
    problems = []
    if type(sql) is not str or not sql.strip():
        problems.append(("sql", "must be a SELECT statement"))
    values = list(params.values()) if type(params) is dict else params
    if params is not None and not (type(values) is list and all(map(_is_scalar, values))):
        problems.append(("params", "must be an array, or an object by name, of numbers, strings, booleans and nulls"))
    if partition is not None and not (type(partition) is int and 0 <= partition < partitions):
        problems.append(("partition", f"must be an integer from 0 to {partitions - 1}"))
    if problems:
        raise invalid(problems)
    return str(sql), params or [], partition


def _is_scalar(value: Any) -> bool:
    return value is None or type(value) in (str, int, float, bool)
