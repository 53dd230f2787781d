"""The turn: the right to take a block from the source and to place it in the log; and adaptive group commit, when it is taken.

One rule: one thread has it at a time, and block order is the order of turns. All methods under the ring's lock, but `pass_on`
and `begin_block`, which the turn's holder calls.

With nothing in flight a block closes at once, so an idle system answers after one sync. With syncs in flight it closes when the
source has BLOCK_BYTES_TARGET pending, or when `sync latency / threads` has passed since the last one, so that the syncs are
spread evenly and each carries what came meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from cmdlog.wal.writing.sync_window import SyncTimes

BLOCK_BYTES_TARGET: Final = 128 << 10  # pending bytes that make a block worth its sync at once
PACE_MIN_S: Final = 0.0005  # between blocks while a sync is in flight: a block costs that much of Python beside its sync


class GroupCommit:
    """When the next block closes."""

    __slots__ = ("_clock", "_last_begin", "_threads", "_times")

    def __init__(self, *, threads: int, times: SyncTimes, clock: Callable[[], float]) -> None:
        self._threads, self._times, self._clock = threads, times, clock
        self._last_begin = 0.0

    def begin_block(self) -> None:
        """A block is taken from the source."""
        self._last_begin = self._clock()

    def delay_s(self, *, in_flight: int, pending_bytes: int) -> float:
        """Seconds that the turn's holder should still wait for a fuller block; 0 or less for none."""
        if not in_flight or pending_bytes >= BLOCK_BYTES_TARGET:
            return 0.0
        return self._last_begin + max(PACE_MIN_S, self._times.smoothed_s / self._threads) - self._clock()


class Gate:
    """A condition that costs nothing to open while no thread waits: most blocks meet no waiter. All methods under its lock.

    `open_one` wakes who came last: of threads that do the same, the one whose stack is still in the processor's caches.
    """

    __slots__ = ("_lock", "_parked")

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._parked: list[threading.Lock] = []  # one per waiter, held until it is woken

    def wait(self, timeout_s: float | None = None) -> None:
        """Until it is opened, or so long."""
        parked = threading.Lock()
        parked.acquire()
        self._parked.append(parked)
        self._lock.release()
        try:
            parked.acquire(timeout=-1 if timeout_s is None else max(timeout_s, 0.0))
        finally:
            self._lock.acquire()
            if parked in self._parked:  # nobody opened
                self._parked.remove(parked)

    def open_one(self) -> None:
        if self._parked:
            self._parked.pop().release()

    def open_all(self) -> None:
        while self._parked:
            self._parked.pop().release()


class Turn:
    """Invariant: while it is `wanted` and not `held`, a waiting thread has been woken, or none waits."""

    __slots__ = ("_fuller", "_lock", "_quiet", "_waiting", "held", "holds_back", "wanted")

    def __init__(self, lock: threading.Lock, quiet: Gate) -> None:
        """`quiet` is opened each time it is passed on."""
        self._lock, self._quiet = lock, quiet
        self._waiting = Gate(lock)  # pool threads without it
        self._fuller = Gate(lock)  # its holder, waiting for a fuller block
        self.held = self.holds_back = False
        self.wanted = False  # the source has something that no turn has looked at

    def kick(self) -> None:
        """The source has something: a waiting thread is woken, unless a thread has the turn and will pass it on."""
        self.wanted = True
        if not self.held:
            self._waiting.open_one()

    def acquire(self, *, delay_s: float = 0.0) -> None:
        """The calling thread has it, after so long or `close_block`. What is announced from then on is for the next one.

        A spurious or early wake-up only closes the block early.
        """
        self.held = True
        if delay_s > 0:
            self.holds_back = True
            self._fuller.wait(delay_s)
            self.holds_back = False
        self.wanted = False

    def close_block(self) -> None:
        """Its holder waits for a fuller block no longer."""
        if self.holds_back:
            self._fuller.open_one()

    def wait(self) -> None:
        """Until `kick` or `pass_on` wakes this thread; look again then."""
        self._waiting.wait()

    def wake_all(self) -> None:
        """Waiting threads look again: nothing more will come."""
        self.close_block()
        self._waiting.open_all()

    def pass_on(self) -> None:
        """Takes the lock. The calling thread has no turn any longer."""
        with self._lock:
            self.held = False
            if self.wanted:
                self._waiting.open_one()
            self._quiet.open_all()
