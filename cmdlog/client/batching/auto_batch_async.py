"""Calls of many tasks that share requests to /v1/batch: `coalesce.py` for an event loop, with the same rule.

One rule: a request is a task of its own and belongs to no caller, so a caller that is cancelled leaves the others alone; its
call, once sent, is executed all the same.

Calls that are made in the same turn of the loop go out together: the next request is formed when the turn is over.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from cmdlog.client.batching.auto_batch import longest
from cmdlog.client.options import AutoBatch
from cmdlog.client.request import Ask
from cmdlog.client.response import Attempt, Lost
from cmdlog.client.retry_loop import SendAttempt


class AsyncCallerSlot:
    """One caller's place in a request."""

    __slots__ = ("answered", "sent", "size_bytes", "step")

    def __init__(self, step: SendAttempt) -> None:
        self.step = step
        self.size_bytes = len(step.ask.body or b"")
        self.sent = False
        self.answered: asyncio.Future[Attempt] = asyncio.get_running_loop().create_future()

    def put(self, attempt: Attempt) -> None:
        if not self.answered.done():  # its caller may have been cancelled
            self.answered.set_result(attempt)


class TaskCoalescer:
    """See the module. `one` and `many` send; they raise nothing that a network does."""

    def __init__(
        self,
        one: Callable[[SendAttempt], Awaitable[Attempt]],
        many: Callable[[Sequence[Ask], SendAttempt], AsyncIterator[Attempt]],
        options: AutoBatch,
    ) -> None:
        self._one, self._many, self._options = one, many, options
        self._queue: deque[AsyncCallerSlot] = deque()
        self._requests: set[asyncio.Task[None]] = set()
        self._planned: asyncio.TimerHandle | asyncio.Handle | None = None

    async def attempt(self, step: SendAttempt) -> Attempt:
        """One attempt of one call, alone or with others."""
        slot = AsyncCallerSlot(step)
        self._queue.append(slot)
        self._plan()
        try:
            async with asyncio.timeout(step.attempt_s):
                return await slot.answered
        except TimeoutError:
            if slot.sent:
                return Lost(reached=True, reason=f"no answer for {step.attempt_s:g} s")
            return Lost(reached=False, reason=f"no request was free for {step.attempt_s:g} s")

    async def close(self) -> None:
        """Waits for the requests under way."""
        while self._requests or self._planned:
            if self._planned is not None:
                self._planned.cancel()
                self._begin_request()
            else:
                await asyncio.wait(self._requests)

    def _plan(self) -> None:
        """Lets the next request begin when this turn of the loop is over, or when the linger time is."""
        if self._planned is None and self._queue and len(self._requests) < self._options.streams:
            loop = asyncio.get_running_loop()
            linger_s = self._options.linger_ms / 1000
            self._planned = loop.call_later(linger_s, self._begin_request) if linger_s else loop.call_soon(self._begin_request)

    def _begin_request(self) -> None:
        self._planned = None
        if slots := self._take_calls():
            task = asyncio.get_running_loop().create_task(self._exchange(slots))
            self._requests.add(task)
            task.add_done_callback(self._finished)

    def _take_calls(self) -> list[AsyncCallerSlot]:
        """The next request's calls, without those whose callers have left."""
        slots: list[AsyncCallerSlot] = []
        room = self._options.bytes_max
        while self._queue and len(slots) < self._options.calls_max and (self._queue[0].size_bytes <= room or not slots):
            slot = self._queue.popleft()
            if not slot.answered.done():
                slot.sent = True
                slots.append(slot)
                room -= slot.size_bytes
        return slots

    async def _exchange(self, slots: list[AsyncCallerSlot]) -> None:
        left = deque(slots)
        try:
            if len(slots) == 1:
                left[0].put(await self._one(slots[0].step))
                return
            async for attempt in self._many([slot.step.ask for slot in slots], longest([slot.step for slot in slots])):
                left.popleft().put(attempt)
        except Exception as error:  # noqa: BLE001 - whatever it is, callers wait, and each decides for its own call
            for slot in left:
                slot.put(Lost(reached=True, reason=f"{type(error).__name__}: {error}"))

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._requests.discard(task)
        self._plan()
