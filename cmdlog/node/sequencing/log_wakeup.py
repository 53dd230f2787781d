"""Wakes the log for calls that were placed: in an event loop's thread once per turn of the loop, elsewhere at once.

One rule: after a call is placed, its caller has the log woken. Calls whose requests arrived together then share a block, and the
log's thread does not take the interpreter's lock from the loop for each of them: with 32 callers that was a third of all CPU time
per call. Reads wake no log.
"""

from __future__ import annotations

import contextlib
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable

from cmdlog.wal.errors import WalError


class LogWakeup:
    """Thread-safe."""

    def __init__(self, kick: Callable[[], None]) -> None:
        self._kick = kick
        self._loop: AbstractEventLoop | None = None
        self._thread = 0  # of the loop
        self._planned = False  # the loop's thread alone

    def attach(self, loop: AbstractEventLoop) -> None:
        """Calls are placed in this loop's thread, mostly."""
        self._loop = loop
        loop.call_soon_threadsafe(self._enter_loop)

    def wake(self) -> None:
        """The log takes what was placed, soon."""
        if self._loop is None or threading.get_ident() != self._thread:
            self._wake_now()
        elif not self._planned:
            self._planned = True
            self._loop.call_soon(self._end_turn)

    def _enter_loop(self) -> None:
        self._thread = threading.get_ident()

    def _end_turn(self) -> None:
        self._planned = False
        self._wake_now()

    def _wake_now(self) -> None:
        with contextlib.suppress(WalError):  # the log has failed: calls already placed are answered by `failed`
            self._kick()
