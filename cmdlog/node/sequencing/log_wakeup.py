"""Wakes the log for calls that were placed: in an event loop's thread once per turn of the loop, elsewhere at once.

One rule: after a call is placed, its caller has the log woken. Calls whose requests arrived together then share a block, and the
log's thread does not take the interpreter's lock from the loop for each of them: with 32 callers that was a third of all CPU time
per call. For a call that is alone the loop's thread takes the log's turn itself, and waits for nothing: no thread is woken.
Reads wake no log.
"""

from __future__ import annotations

import contextlib
import os
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from cmdlog.node.sequencing.sequencer import Sequencer
from cmdlog.wal.errors import WalError

if TYPE_CHECKING:
    from cmdlog.wal.log import Log

ALONE_BEFORE: Final = 4  # calls in a row that were alone, for the loop's thread to write the next


class LoneTurns(Protocol):
    """The log, for a thread that must not wait: see `cmdlog.wal.log.Log`."""

    def start_turn(self) -> bool: ...
    def notify(self, eventfd: int) -> bool: ...
    def land(self) -> None: ...


def make_waker(log: Log, sequencer: Sequencer, *, lone: bool) -> Waker:
    """`lone`: the loop's thread may write calls that are alone."""

    def alone() -> bool:
        return sequencer.admission.inflight_calls + sequencer.reads.under_way == 1

    return Waker(log.kick, log if lone else None, alone)


class Waker:
    """Thread-safe."""

    def __init__(
        self, kick: Callable[[], None], lone: LoneTurns | None = None, alone: Callable[[], bool] = lambda: False
    ) -> None:
        """`alone`: only one call is under way. After some such in a row the loop's thread writes it itself, with `lone`."""
        self._kick, self._lone, self._alone = kick, lone, alone
        self._loop: AbstractEventLoop | None = None
        self._thread = 0  # of the loop
        self._planned = False  # the loop's thread alone
        self._in_row = 0  # calls that were alone
        self._eventfd = -1  # where the ends of its writes are announced

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
            self._loop.call_soon(self._turn_over)

    def close(self) -> None:
        """The loop watches nothing any more; before the log is closed."""
        self._alone = lambda: False
        if self._loop is not None and self._eventfd >= 0:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._leave_loop, self._loop)

    def _enter_loop(self) -> None:
        self._thread = threading.get_ident()
        if self._lone is None or self._loop is None or not hasattr(os, "eventfd"):
            return
        eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        if self._lone.notify(eventfd):
            self._eventfd = eventfd
            self._loop.add_reader(eventfd, self._land)
        else:
            os.close(eventfd)

    def _leave_loop(self, loop: AbstractEventLoop) -> None:
        eventfd, self._eventfd = self._eventfd, -1
        loop.remove_reader(eventfd)
        os.close(eventfd)

    def _turn_over(self) -> None:
        self._planned = False
        if not self._alone():
            self._in_row = 0
        elif self._in_row < ALONE_BEFORE:
            self._in_row += 1
        elif self._start_turn():
            return
        self._wake_now()

    def _start_turn(self) -> bool:
        with contextlib.suppress(WalError):
            return self._lone is not None and self._eventfd >= 0 and self._lone.start_turn()
        return False

    def _land(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._eventfd)
        if self._lone is not None:
            self._lone.land()

    def _wake_now(self) -> None:
        with contextlib.suppress(WalError):  # the log has failed: calls already placed are answered by `failed`
            self._kick()
