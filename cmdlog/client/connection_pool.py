"""Connections: one httpx client for each, taken last in, first out, so that few are kept busy and the others may close.

One rule: a lane carries one request at a time. httpx's own pool looks at all pairs of its connections several times per request,
which with 32 of them takes longer than the request; so it is never given more than one. A lane whose request broke is as good as
new: httpx has closed its connection, or will see that something unread is left on it. One whose caller was interrupted (a signal
handler raised, a task was cancelled) is closed: httpx may count its request as under way for ever, and make the next one wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import httpx

LOOK_EVERY_S: Final = 0.5  # for turns whose caller was interrupted while it gave them back
COLLECT_EVERY_S: Final = 10.0  # at most: what an interrupt left in a reference cycle keeps its turn until it is collected


class _Turn:
    """Of one request; it ends with the frame that holds it."""

    __slots__ = ("__weakref__",)


class ConnectionPool:
    """Connections of threads."""

    def __init__(self, arguments: dict[str, Any], connections_max: int) -> None:
        self._arguments = arguments
        self._connections_max = connections_max
        self._turns: weakref.WeakSet[_Turn] = weakref.WeakSet()  # one that is not given back ends with its frame
        self._lock = threading.RLock()  # the collector may end an abandoned request in the middle of another's step
        self._changed = threading.Condition(self._lock)
        self._collect_from = 0.0
        self._idle: list[httpx.Client] = []
        self._all: set[httpx.Client] = set()
        self._closed = False

    @contextlib.contextmanager
    def response(self, request: httpx.Request, *, wait_s: float) -> Iterator[httpx.Response]:
        """The beginning of the answer, over a lane that gets free within `wait_s`. Raises: httpx.RequestError."""
        turn = _Turn()
        try:
            self._await_turn(turn, wait_s)
            lane, whole = self._take_connection(), False
            # Whole: answered, or broken as httpx knows it. Else an exception of the caller came between, at any step.
            try:
                response = lane.send(request, stream=True)
                try:
                    yield response
                finally:
                    response.close()
                whole = True
            except httpx.RequestError:
                whole = True
                raise
            finally:
                if whole:
                    self._idle.append(lane)
                else:
                    self._discard(lane)
        finally:
            with self._lock:
                self._turns.discard(turn)
                self._changed.notify()

    def close(self) -> None:
        """Requests under way fail."""
        with self._lock:
            self._closed = True
            for lane in self._all:
                lane.close()

    def _await_turn(self, turn: _Turn, wait_s: float) -> None:
        until = time.monotonic() + wait_s
        with self._lock:
            while len(self._turns) >= self._connections_max:
                if (left_s := until - time.monotonic()) <= 0:
                    raise httpx.PoolTimeout(f"no connection was free for {wait_s:g} s")
                if not self._changed.wait(min(left_s, LOOK_EVERY_S)) and time.monotonic() >= self._collect_from:
                    gc.collect()
                    self._collect_from = time.monotonic() + COLLECT_EVERY_S
            self._turns.add(turn)

    def _discard(self, lane: httpx.Client) -> None:
        """Closes a lane whose state is not known; the next request makes another."""
        with self._lock:
            self._all.discard(lane)
        with contextlib.suppress(Exception):
            lane.close()

    def _take_connection(self) -> httpx.Client:
        with self._lock:
            if self._closed:
                raise RuntimeError("the client is closed")
            if self._idle:
                return self._idle.pop()
            lane = httpx.Client(**self._arguments)
            self._all.add(lane)
            return lane


class AsyncConnectionPool:
    """Connections of tasks of one event loop, the one that uses them first."""

    def __init__(self, arguments: dict[str, Any], connections_max: int) -> None:
        self._arguments = arguments
        self._free = asyncio.Semaphore(connections_max)
        self._idle: list[httpx.AsyncClient] = []
        self._all: set[httpx.AsyncClient] = set()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None

    @contextlib.asynccontextmanager
    async def response(self, request: httpx.Request, *, wait_s: float) -> AsyncIterator[httpx.Response]:
        """The beginning of the answer, over a lane that gets free within `wait_s`. Raises: httpx.RequestError."""
        self._check_loop()
        try:
            async with asyncio.timeout(wait_s):
                await self._free.acquire()
        except TimeoutError:
            raise httpx.PoolTimeout(f"no connection was free for {wait_s:g} s") from None
        try:
            lane, whole = self._take_connection(), False
            try:
                response = await lane.send(request, stream=True)
                try:
                    yield response
                finally:
                    await response.aclose()
                whole = True
            except httpx.RequestError:
                whole = True
                raise
            finally:
                if whole:
                    self._idle.append(lane)
                else:
                    await self._discard(lane)
        finally:
            self._free.release()

    async def close(self) -> None:
        """Requests under way fail."""
        self._check_loop()
        self._closed = True
        for lane in self._all:
            await lane.aclose()

    def _check_loop(self) -> None:
        """Raises: RuntimeError; httpx would say that a loop is closed, and not whose."""
        running = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = running
        elif self._loop is not running:
            raise RuntimeError(
                "this AsyncClient belongs to the event loop that first used it: make one for each asyncio.run(), inside it"
            )

    async def _discard(self, lane: httpx.AsyncClient) -> None:
        """Closes a lane whose state is not known; the next request makes another."""
        self._all.discard(lane)
        with contextlib.suppress(Exception):
            await lane.aclose()

    def _take_connection(self) -> httpx.AsyncClient:
        if self._closed:
            raise RuntimeError("the client is closed")
        if self._idle:
            return self._idle.pop()
        lane = httpx.AsyncClient(**self._arguments)
        self._all.add(lane)
        return lane
