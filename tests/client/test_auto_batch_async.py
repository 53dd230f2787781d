"""Calls of tasks that share requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from cmdlog.client.auto_batch import AsyncAutoBatcher
from cmdlog.client.options import AutoBatch
from cmdlog.client.request import Ask
from cmdlog.client.response import Attempt, Lost, Response
from cmdlog.client.retry import SendAttempt
from tests.client.renaming import text_key
from tests.client.test_auto_batch import answer, step


class Line:
    """The way to a server: records requests, and holds them while it is told to."""

    def __init__(self) -> None:
        self.requests: list[list[str | None]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.fail: Callable[[int], None] = lambda _number: None

    async def one(self, sent: SendAttempt) -> Attempt:
        self.requests.append([text_key(sent.ask)])
        await self.open.wait()
        return answer(sent.ask)

    async def many(self, asks: Sequence[Ask], _sent: SendAttempt) -> AsyncIterator[Attempt]:
        self.requests.append([text_key(ask) for ask in asks])
        await self.open.wait()
        for number, ask in enumerate(asks):
            self.fail(number)
            yield answer(ask)


@contextlib.asynccontextmanager
async def batching(options: AutoBatch | None = None) -> AsyncIterator[tuple[AsyncAutoBatcher, Line]]:
    """One over a way of its own, until all of it is answered."""
    line = Line()
    coalescer = AsyncAutoBatcher(line.one, line.many, options or AutoBatch())
    yield coalescer, line
    await coalescer.close()


async def turns(count: int = 5) -> None:
    """Lets the other tasks run."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_calls_of_one_turn_go_together_and_a_single_one_at_once() -> None:
    """Idle, a call is a request of its own after one turn of the loop; a crowd is one request."""

    async with batching() as (coalescer, line):
        assert await coalescer.attempt(step(0)) == answer(step(0).ask)
        found = await asyncio.gather(*(coalescer.attempt(step(n)) for n in range(1, 9)))
        assert found == [answer(step(n).ask) for n in range(1, 9)]
        assert [len(request) for request in line.requests] == [1, 8]


async def test_what_arrives_meanwhile_is_the_next_request() -> None:
    """While one request is under way the others wait for its end, and then go together, within the limits."""

    async with batching(AutoBatch(calls_max=3)) as (coalescer, line):
        line.open.clear()
        tasks = [asyncio.create_task(coalescer.attempt(step(0)))]
        await turns()
        tasks += [asyncio.create_task(coalescer.attempt(step(n))) for n in range(1, 6)]
        await turns()
        assert line.requests == [["k0"]]
        line.open.set()
        assert await asyncio.gather(*tasks) == [answer(step(n).ask) for n in range(6)]
        assert [len(request) for request in line.requests] == [1, 3, 2]


async def test_cancelled_caller_harms_nobody() -> None:
    """Before it was sent it is left out; after that the request goes on for the others."""

    async with batching() as (coalescer, line):
        line.open.clear()
        tasks = [asyncio.create_task(coalescer.attempt(step(n))) for n in range(3)]
        await turns()
        late = [asyncio.create_task(coalescer.attempt(step(n))) for n in range(3, 6)]
        await turns()
        tasks[1].cancel()
        late[0].cancel()
        await turns()
        line.open.set()
        found = await asyncio.gather(*tasks, *late, return_exceptions=True)
        assert [type(value) for value in found] == [
            Response,
            asyncio.CancelledError,
            Response,
            asyncio.CancelledError,
            Response,
            Response,
        ]
        assert line.requests == [["k0", "k1", "k2"], ["k4", "k5"]]


async def test_time_out_tells_whether_the_call_was_sent() -> None:
    """Not sent: surely not executed. Sent: nobody knows."""

    async with batching() as (coalescer, line):
        line.open.clear()
        sent = asyncio.create_task(coalescer.attempt(step(0, attempt_s=0.05)))
        await turns()
        unsent = asyncio.create_task(coalescer.attempt(step(1, attempt_s=0.02)))
        assert await unsent == Lost(reached=False, reason="no request was free for 0.02 s")
        assert await sent == Lost(reached=True, reason="no answer for 0.05 s")
        line.open.set()
        await turns()
        assert line.requests == [["k0"]]


async def test_defect_on_the_way_is_told_to_the_callers_it_struck() -> None:
    """An exception that nobody expected ends as doubt for the calls without an answer."""

    async with batching() as (coalescer, line):

        def fail(number: int) -> None:
            if number == 2:
                raise ZeroDivisionError("of the test")

        line.fail = fail
        found = await asyncio.gather(*(coalescer.attempt(step(n)) for n in range(4)))
        assert [type(value) for value in found] == [Response, Response, Lost, Lost]


@pytest.mark.parametrize("linger_ms", [0.0, 1.0, 900.0])
async def test_close_waits_for_what_is_under_way(linger_ms: float) -> None:
    """Calls that linger or are sent are answered before the connections go."""

    async with batching(AutoBatch(linger_ms=linger_ms)) as (coalescer, _line):
        tasks = [asyncio.create_task(coalescer.attempt(step(n))) for n in range(3)]
        await asyncio.sleep(0)
        await coalescer.close()
        assert await asyncio.gather(*tasks) == [answer(step(n).ask) for n in range(3)]
