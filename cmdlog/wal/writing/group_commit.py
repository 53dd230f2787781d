"""Adaptive group commit: when the next block closes.

With nothing in flight a block closes at once, so an idle system answers after one sync. With syncs in flight it closes when the
source has BLOCK_BYTES_TARGET pending, or when `sync latency / threads` has passed since the last one, so that the syncs are
spread evenly and each carries what came meanwhile.

One rule: all methods are called under the ring's lock, but for `begin_block`, which the turn's holder calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from cmdlog.wal.writing.sync_window import SyncTimes
from cmdlog.wal.writing.watermarks import Gate

BLOCK_BYTES_TARGET: Final = 128 << 10  # pending bytes that make a block worth its sync at once
PACE_MIN_S: Final = 0.0005  # between blocks while a sync is in flight: a block costs that much of Python beside its sync


class GroupCommit:
    """Holds the turn back until a block is worth its sync."""

    __slots__ = ("_clock", "_gate", "_last_begin", "_threads", "_times", "holding")

    def __init__(self, lock: threading.Lock, *, threads: int, times: SyncTimes, clock: Callable[[], float]) -> None:
        self._gate = Gate(lock)  # the turn's holder, waiting for a fuller block
        self._threads, self._times, self._clock = threads, times, clock
        self._last_begin = 0.0
        self.holding = False  # the turn's holder waits in `hold`

    def begin_block(self) -> None:
        """A block is taken from the source."""
        self._last_begin = self._clock()

    def delay_s(self, *, in_flight: int, pending_bytes: int) -> float:
        """Seconds that the turn's holder should still wait for a fuller block; 0 or less for none."""
        if not in_flight or pending_bytes >= BLOCK_BYTES_TARGET:
            return 0.0
        return self._last_begin + max(PACE_MIN_S, self._times.smoothed_s / self._threads) - self._clock()

    def hold(self, delay_s: float) -> None:
        """Waits so long, or until `release`. A spurious or early wake-up only closes the block early."""
        if delay_s > 0:
            self.holding = True
            self._gate.wait(delay_s)
            self.holding = False

    def release(self) -> None:
        """The block closes now."""
        if self.holding:
            self._gate.open_one()
