"""What is written to a client that may read slowly: how much waits to be sent, and by when it must be taken.

One rule: the writer of a long answer waits for its client, and the client has until `deadline`. A small answer does not wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Final

from cmdlog.node.placing.shares import UNCOUNTED_BYTES

WRITE_BYTES: Final = UNCOUNTED_BYTES


class ResponseWriter:
    """Only the event loop's thread."""

    __slots__ = ("_drained", "_loop", "_taken", "_timeout_s", "deadline", "paused")

    def __init__(self, loop: asyncio.AbstractEventLoop, *, timeout_s: float) -> None:
        self._loop, self._timeout_s = loop, timeout_s
        self.paused = False  # the client takes less than is written
        self.deadline = inf  # when it must have taken enough
        self._drained: asyncio.Future[None] | None = None  # somebody waits for that
        self._taken: list[Callable[[], None]] = []  # called then

    def pause(self) -> None:
        """More than WRITE_BYTES are not sent yet."""
        self.paused = True
        self.deadline = self._loop.time() + self._timeout_s

    def resume(self) -> None:
        """The client has taken it, or is gone."""
        self.paused = False
        self.deadline = inf
        waiter, self._drained = self._drained, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        while self._taken:
            self._taken.pop()()

    def when_taken(self, tell: Callable[[], None]) -> None:
        """Calls `tell` when the client has taken what is written, or is gone: maybe at once."""
        if self.paused:
            self._taken.append(tell)
        else:
            tell()

    async def write(self, transport: asyncio.Transport, data: bytes) -> None:
        """Returns when at most WRITE_BYTES and one such part are not sent yet, or the client is gone."""
        whole = memoryview(data)
        for start in range(0, len(data), WRITE_BYTES):
            if self.paused:
                self._drained = self._loop.create_future()
                await self._drained
            if transport.is_closing():
                return
            transport.write(whole[start : start + WRITE_BYTES] if len(data) > WRITE_BYTES else data)
