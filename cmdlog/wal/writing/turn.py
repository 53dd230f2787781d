"""The turn: the right to take a block from the source and to place it in the log; and adaptive group commit, when it is taken.

One rule: one thread has it at a time, and block order is the order of turns. All methods under the ring's lock.

With nothing in flight a block closes at once, so an idle system answers after one sync. With syncs in flight it closes when the
source has BLOCK_BYTES_TARGET pending, or when `sync latency / threads` has passed since the last one, so that the syncs are
spread evenly and each carries what came meanwhile.
"""

from __future__ import annotations

import threading
from typing import Final

BLOCK_BYTES_TARGET: Final = 128 << 10  # pending bytes that make a block worth its sync at once
PACE_MIN_S: Final = 0.0005  # between blocks while a sync is in flight: a block costs that much of Python beside its sync


def delay_s(sync_s: float, *, threads: int, pending_bytes: int, begun_s: float) -> float:
    """Seconds that the turn's holder should still wait for a fuller block while syncs are in flight; 0 or less for none.

    `sync_s`: what a sync takes; `begun_s`: since the last block was taken.
    """
    if pending_bytes >= BLOCK_BYTES_TARGET:
        return 0.0
    return max(PACE_MIN_S, sync_s / threads) - begun_s


class Gate:
    """A condition that costs nothing while no thread waits: most blocks meet no waiter. All methods under its lock.

    `open_one` wakes who came last: of threads that do the same, the one whose stack is still in the processor's caches.
    """

    __slots__ = ("_lock", "_spare", "parked")

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self.parked: list[threading.Lock] = []  # one per waiter, held until it is woken
        self._spare: list[threading.Lock] = []  # held too

    def wait(self, timeout_s: float | None = None) -> None:
        """Until it is opened, or so long."""
        parked = self._spare.pop() if self._spare else _held_lock()
        self.parked.append(parked)
        self._lock.release()
        try:
            parked.acquire(timeout=-1 if timeout_s is None else max(timeout_s, 0.0))
        finally:
            self._lock.acquire()
            if parked in self.parked:  # no thread has opened
                self.parked.remove(parked)
            else:
                parked.acquire(blocking=False)  # opened after the wait had ended
            self._spare.append(parked)

    def open_one(self) -> None:
        if self.parked:
            self.parked.pop().release()

    def open_all(self) -> None:
        while self.parked:
            self.parked.pop().release()


def _held_lock() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


class Turn:
    """Invariant: while it is `wanted` and not `held`, a waiting thread has been woken, or none waits."""

    __slots__ = ("_fuller", "_quiet", "_waiting", "held", "holds_back", "wanted")

    def __init__(self, lock: threading.Lock, quiet: Gate) -> None:
        """`quiet` is opened each time it is passed on."""
        self._quiet = quiet
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
        self._fuller.open_one()

    def wait(self) -> None:
        """Until `kick` or `pass_on` wakes this thread; look again then."""
        self._waiting.wait()

    def wake_all(self) -> None:
        """Waiting threads look again: nothing more will come."""
        self.close_block()
        self._waiting.open_all()

    def pass_on(self) -> None:
        """The calling thread has no turn any longer."""
        self.held = False
        if self.wanted:
            self._waiting.open_one()
        if self._quiet.parked:
            self._quiet.open_all()
