"""Calls of many threads that share requests to /v1/batch.

One rule: it multiplexes attempts and decides nothing. Each caller's own exchange sees the result of its line and continues as if
it had sent a request alone; a retry may share its request with others again.

Adaptive: a call that finds nothing under way is sent at once, by its own thread, as a request of its own. What arrives until that
is answered forms the next request, sent by a worker thread; so requests grow with the load, and nobody waits while idle.
A caller that gives up, by its time-out or an interrupt, leaves the others alone. Answers of one request come in order: a call
that takes long holds back those after it in the same request.

`AsyncAutoBatcher` is the same for an event loop: calls that are made in the same turn of the loop go out together. A request is a
task of its own and belongs to no caller, so a caller that is cancelled leaves the others alone; its call, once sent, is executed.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

from cmdlog.client.options import AutoBatch
from cmdlog.client.request import Ask
from cmdlog.client.response import Attempt, Lost
from cmdlog.client.retry import SendAttempt

_numbers = itertools.count(1)


def longest(steps: Sequence[SendAttempt]) -> SendAttempt:
    """The step of a request for all of them, with the most patient one's time."""
    return SendAttempt(steps[0].ask, max(step.connect_s for step in steps), max(step.attempt_s for step in steps))


class CallerSlot:
    """One caller's place in a request."""

    __slots__ = ("answered", "attempt", "size_bytes", "step")

    def __init__(self, step: SendAttempt) -> None:
        self.step = step
        self.size_bytes = len(step.ask.body or b"")
        self.attempt: Attempt | None = None
        self.answered = threading.Lock()  # the cheapest thing to wait on
        self.answered.acquire()

    def put(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.answered.release()


class AutoBatcher:
    """See the module. `one` and `many` send; they raise nothing that a network does."""

    def __init__(
        self,
        one: Callable[[SendAttempt], Attempt],
        many: Callable[[Sequence[Ask], SendAttempt], Iterator[Attempt]],
        options: AutoBatch,
    ) -> None:
        self._one, self._many, self._options = one, many, options
        self._changed = threading.Condition()
        self._queue: deque[CallerSlot] = deque()
        self._active = 0  # requests under way
        self._workers: list[threading.Thread] = []
        self._closed = False

    def attempt(self, step: SendAttempt) -> Attempt:
        """One attempt of one call, alone or with others."""
        slot = self._enqueue(step)
        if slot is not None:
            return self._wait(slot)
        try:
            return self._one(step)
        finally:
            self._finished()

    def close(self) -> None:
        """Sends what waits, and ends the workers."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for worker in self._workers:
            worker.join()

    def _enqueue(self, step: SendAttempt) -> CallerSlot | None:
        """A place in the next request; None: nothing is under way, the caller sends for itself."""
        with self._changed:
            if self._closed:
                raise RuntimeError("the client is closed")
            if not self._active and not self._queue and not self._options.linger_ms:
                self._active += 1
                return None
            slot = CallerSlot(step)
            self._queue.append(slot)
            self._start_workers()
            self._changed.notify()
            return slot

    def _wait(self, slot: CallerSlot) -> Attempt:
        try:
            slot.answered.acquire(timeout=slot.step.attempt_s)
        finally:
            withdrawn = slot.attempt is None and self._withdraw(slot)
        if withdrawn:
            return Lost(reached=False, reason=f"no request was free for {slot.step.attempt_s:g} s")
        return slot.attempt or Lost(reached=True, reason=f"no answer for {slot.step.attempt_s:g} s")

    def _withdraw(self, slot: CallerSlot) -> bool:
        """Whether the call was not sent; then it will not be."""
        with self._changed:
            if slot not in self._queue:
                return False
            self._queue.remove(slot)
            return True

    def _start_workers(self) -> None:
        if not self._workers:
            for _ in range(self._options.streams):
                worker = threading.Thread(target=self._work, name=f"cmdlog-client-{next(_numbers)}", daemon=True)
                self._workers.append(worker)
                worker.start()

    def _work(self) -> None:
        while self._admitted():
            try:
                if self._options.linger_ms:
                    time.sleep(self._options.linger_ms / 1000)
                if slots := self._take_calls():
                    self._exchange(slots)
            finally:
                self._finished()

    def _admitted(self) -> bool:
        """Waits for calls and for a free stream; False when the client is closed."""
        with self._changed:
            while not (self._queue and self._active < self._options.streams):
                if self._closed and not self._queue:
                    return False
                self._changed.wait()
            self._active += 1
            return True

    def _take_calls(self) -> list[CallerSlot]:
        """The next request's calls; none when they have all been withdrawn."""
        slots: list[CallerSlot] = []
        room = self._options.bytes_max
        with self._changed:
            while self._queue and len(slots) < self._options.calls_max and (self._queue[0].size_bytes <= room or not slots):
                slots.append(self._queue.popleft())
                room -= slots[-1].size_bytes
        return slots

    def _exchange(self, slots: list[CallerSlot]) -> None:
        left = deque(slots)
        try:
            for attempt in self._attempts([slot.step for slot in slots]):
                left.popleft().put(attempt)
        except Exception as error:  # noqa: BLE001 - whatever it is, callers wait, and each decides for its own call
            for slot in left:
                slot.put(Lost(reached=True, reason=f"{type(error).__name__}: {error}"))

    def _attempts(self, steps: list[SendAttempt]) -> Iterator[Attempt]:
        if len(steps) == 1:
            yield self._one(steps[0])
        else:
            yield from self._many([step.ask for step in steps], longest(steps))

    def _finished(self) -> None:
        with self._changed:
            self._active -= 1
            self._changed.notify()


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


class AsyncAutoBatcher:
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
