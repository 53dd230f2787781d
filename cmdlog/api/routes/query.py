"""`POST /v1/query`: read-only SQL, run in a process of its own.

One rule: a query delays no other. Each credential runs `queries_max` at a time, and all together one more, which is for a
credential that has fewer. Those that wait get their turn in rotation over the credentials, within `query_timeout_s`; one whose
caller has left is ended.

A turn lasts until the client has taken the answer, which stays in the query's process: one piece of it is held here, and counts
in `Service.unread`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final, TypeVar

import orjson
from starlette.types import Receive

from cmdlog.api.gate.problem import Problem, invalid, of_refused
from cmdlog.node.outcome import CallRefused
from cmdlog.node.placing.shares import Shares
from cmdlog.node.queries.pool import PIECE_BYTES, QueryAnswer, QueryCancelled, QueryPool, Ticket
from cmdlog.node.queries.query import QueryLimit, QueryRefused
from cmdlog.node.settings import Settings

if TYPE_CHECKING:
    from cmdlog.node.node import Node

T = TypeVar("T")

Asked = tuple[str, orjson.Fragment, int | None]
"""SQL, parameters as JSON, and the partition."""
EndTurn = Callable[[], None]
RESERVE_TURNS: Final = 1  # beyond those of one credential


class Turns:
    """Who runs a query, or has a large body read, and who is next. Only the event loop's thread.

    Invariant: a turn holds its bytes of `shares`; none waits whose turn could begin.
    """

    def __init__(self, shares: Shares, *, each: float = inf) -> None:
        """`each`: turns that a credential has at a time; all have RESERVE_TURNS more."""
        self._shares, self._each = shares, each
        self._running: Counter[str] = Counter()  # by name of the credential
        self._waiting: defaultdict[str, OrderedDict[asyncio.Future[None], int]] = defaultdict(OrderedDict)  # with their bytes
        self._given: Counter[str] = Counter()  # number of the turn that the credential got last
        self._numbers = itertools.count(1)
        shares.on_room[self._give_turns] = None

    async def take_turn(self, name: str, amount: int = PIECE_BYTES) -> None:
        """Returns when it is the turn of one that waits for this credential; the caller then calls `end_turn`."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[name][turn] = amount
        self._give_turns()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.end_turn(name, amount)
            else:
                self._remove(name, turn)
            raise

    def end_turn(self, name: str, amount: int = PIECE_BYTES) -> None:
        """The query's client has its answer, or the body is read."""
        self._running[name] -= 1
        self._shares.give_back(name, amount)  # which gives turns

    def _remove(self, name: str, turn: asyncio.Future[None]) -> None:
        waiting = self._waiting[name]
        waiting.pop(turn, None)
        if not waiting:
            del self._waiting[name]

    def _give_turns(self) -> None:
        while (name := min(filter(self._may_run, self._waiting), key=self._given.__getitem__, default=None)) is not None:
            turn, amount = next(iter(self._waiting[name].items()))
            self._remove(name, turn)
            if not turn.done() and self._shares.take_share(name, amount):
                self._running[name] += 1
                self._given[name] = next(self._numbers)
                turn.set_result(None)

    def _may_run(self, name: str) -> bool:
        running = self._running[name]
        if running >= self._each or self._running.total() >= self._each + RESERVE_TURNS:
            return False
        return self._shares.allows(name, next(iter(self._waiting[name].values())))


class QueryDesk:
    """The queries under way. One thread: the event loop's."""

    def __init__(self, settings: Settings, unread: Shares) -> None:
        self._settings = settings
        self._turns = Turns(unread, each=settings.queries_max)
        self._threads = ThreadPoolExecutor(settings.queries_max + RESERVE_TURNS, thread_name_prefix="cmdlog-query")
        self.pool = QueryPool(memory_bytes_max=settings.query_memory_bytes_max, start_timeout_s=settings.start_timeout_s)

    async def run(
        self, node: Node, asked: Asked, receive: Receive, *, caller: str, stale: bool = False, txn: int | None = None
    ) -> tuple[QueryAnswer, EndTurn]:
        """The answer, and what ends its turn. Raises: Problem.

        `caller`: name of the credential; `stale`: of what this node has, if it holds `txn`.
        """
        sql, params, partition = asked
        ticket = Ticket()
        read = partial(self.pool.run, ticket=ticket, dated=stale)
        work = partial(partial(node.stale.query, txn=txn) if stale else node.query_by, read, sql, params, partition)
        left = asyncio.create_task(_until_left(receive))
        running = asyncio.create_task(self._run_in_turn(work, caller))
        try:
            await asyncio.wait((left, running), return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                raise left_early()
            return running.result()
        finally:
            ticket.cancel()
            left.cancel()
            running.cancel()
            del running, left  # a task's error knows this frame: together they would stay, with all that the query holds

    async def _run_in_turn(self, work: Callable[[], QueryAnswer], caller: str) -> tuple[QueryAnswer, EndTurn]:
        try:
            async with asyncio.timeout(self._settings.query_timeout_s):
                await self._turns.take_turn(caller)
        except TimeoutError:
            raise Problem("not_ready", "every query process stayed busy", retry_after_s=1) from None
        end_turn = partial(self._turns.end_turn, caller)
        future = self.run_aside(work)
        future.add_done_callback(lambda done: end_turn() if failed(done) else None)
        try:
            return await asyncio.shield(future), end_turn
        except asyncio.CancelledError:  # a query whose caller has left runs on for a moment
            future.add_done_callback(lambda done: None if failed(done) else self.end_answer(done.result(), end_turn))
            raise
        except QueryRefused as error:
            raise of_statement(error) from None
        except QueryCancelled:
            raise left_early() from None
        except CallRefused as refused:
            raise of_refused(refused) from None
        finally:
            del future, work  # as above

    def run_aside(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Runs what blocks in a thread of the turn."""
        return asyncio.get_running_loop().run_in_executor(self._threads, work)

    def end_answer(self, answer: QueryAnswer, end_turn: EndTurn) -> None:
        """The client has the answer, or does not want it."""
        if answer.is_read:
            end_turn()
        else:
            self.run_aside(answer.close).add_done_callback(lambda _: end_turn())

    def close(self) -> None:
        """Ends every query and the processes."""
        self.pool.close()
        self._threads.shutdown(wait=False, cancel_futures=True)


def failed(done: asyncio.Future[T]) -> bool:
    """Whether it has no result."""
    return done.cancelled() or done.exception() is not None


def of_statement(error: QueryRefused) -> Problem:
    """What a statement may not do, or has no room for."""
    return Problem("query_limit", str(error)) if isinstance(error, QueryLimit) else invalid([("sql", str(error))])


def left_early() -> Problem:
    """For a caller that has closed its side; most of them do not read this either."""
    return Problem("bad_request", "the client closed its side of the connection before its query was done")


async def _until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
