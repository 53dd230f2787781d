"""The watermarks: how far the log is written and durable, and reporting that to the source, in block order.

One rule: blocks finish in any order, marks move over contiguous ones alone. Methods marked *locked* are called under the ring's
lock; `deliver` is called without it, by whichever thread closed a gap. One thread at a time notifies the source, for all: one
that finds another doing so leaves, since the other looks again before it stops. So callbacks are in order and no thread waits.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from cmdlog.wal.errors import WalError, Wedged
from cmdlog.wal.writing.turn import Gate

Sync = Literal["sync", "async", "off"]


class RecordSource(Protocol):
    """What feeds the log.

    `written` and `durable` are called once per non-empty `take`, in that order, with the block's number; seals and
    checkpoints are not mentioned. No method is called under a lock of the log, and `take` by one thread at a time. The other
    three run on the path of every block: they must be short and must not wait for the log.
    """

    @property
    def pending_bytes(self) -> int:
        """About what `take` would return; read without a lock, and never below zero."""
        ...

    def take_records(self, bytes_max: int) -> Sequence[bytes]:
        """Encoded records for the next block, [] for nothing. More than `bytes_max` on disk only if one record is that long."""
        ...

    def written(self, block: int) -> None:
        """In the page cache: survives a kill. Said just before `durable`, but before the sync if that is not waited for.

        Of a block all of which waits to be durable it may be said just before its thread gives it to the disk.
        """
        ...

    def durable(self, block: int) -> None:
        """Survives power loss."""
        ...

    def failed(self, error: WalError) -> None:
        """The log is wedged; reported once, and nothing is acknowledged after it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RingSettings:
    """See `cmdlog.wal.log.Log.start`. The functions are called under a lock: quick."""

    threads: int
    sync: Sync
    seal_after_s: float
    async_window_s: float
    waits: Callable[[], bool] | None
    lax: Callable[[], bool]
    early: bool
    timed: Callable[[float], None]
    clock: Callable[[], float]


class Watermarks:
    """Invariants: `durable <= written`; `_wrote` holds only numbers beyond `written + 1`, `_synced` beyond `durable + 1`.

    A block that has a sync of its own is durable when that comes back, and not before: another thread's success must not hide its
    failure. A block that is *left* without one is durable with the first sync that began after it was written.
    """

    def __init__(self, lock: threading.Lock, quiet: Gate, source: RecordSource, *, start: int, sync: Sync) -> None:
        self.lock = self._lock = lock
        self._quiet, self._source = quiet, source
        self._never_synced = sync == "off"
        self.written = self.durable = start
        self.error: WalError | None = None
        self.delivering = False
        self._reported = False  # the error
        self._wrote: set[int] = set()  # written before their predecessors
        self._left: set[int] = set()  # written, and without a sync of their own
        self._synced: set[int] = set()  # before their predecessors
        self._unwritten: deque[int] = deque()  # blocks from `take` whose `written` is due
        self._undurable: deque[int] = deque()  # the same for `durable`

    def placed(self, number: int) -> None:
        """Locked. A block from `take` has its number."""
        self._unwritten.append(number)
        self._undurable.append(number)

    def wrote(self, number: int) -> None:
        """Locked. The block is in the page cache."""
        self._wrote.add(number)
        self.written = _advance(self.written, self._wrote)

    def leave(self, number: int) -> None:
        """Locked. A written block gets no sync of its own."""
        self._left.add(number)

    @property
    def any_left(self) -> bool:
        """Locked. Some block waits for another one's sync."""
        return bool(self._left)

    def synced(self, upto: int, *, own: int = 0) -> None:
        """Locked. A sync has come back that began when everything up to `upto` was written; it was that of block `own`."""
        if self.error is not None:
            return
        if own:
            self._synced.add(own)
        if self._left:
            covered = {number for number in self._left if number <= upto}
            self._left -= covered
            self._synced |= covered
        self.durable = _advance(self.durable, self._synced)

    def restart_at(self, number: int) -> None:
        """Locked. Everything is durable up to `number`, a block that was placed and synced elsewhere (a checkpoint)."""
        self.written = self.durable = number

    def wedge(self, error: WalError) -> None:
        """Locked. The log stops at the first error."""
        self.error = self.error or error

    def raise_error(self) -> None:
        """Raises: Wedged, if the log is."""
        if self.error is not None:
            raise Wedged(f"the log stopped at: {self.error}")

    def deliver(self) -> None:
        """Tells the source what is due, until nothing is."""
        with self._lock:
            if self.delivering or not (due := self._take_due()):
                return
            self.delivering = True
        try:
            while due:
                self._notify_source(*due)
                with self._lock:
                    due = self._take_due()
                    self.delivering = due is not None  # under one lock with the look: who comes after it delivers
                    self._quiet.open_all()
        except BaseException:
            with self._lock:
                self.delivering = False
                self._quiet.open_all()
            raise

    def _notify_source(self, written: Sequence[int], durable: Sequence[int], error: WalError | None) -> None:
        for block in written:
            self._source.written(block)
        for block in durable:
            self._source.durable(block)
        if error is not None:
            self._source.failed(error)

    def _take_due(self) -> tuple[Sequence[int], Sequence[int], WalError | None] | None:
        """Blocks that are written, and durable, and the error, as far as the source does not know; None for no news."""
        if self.error is not None:
            reported, self._reported = self._reported, True
            return None if reported else ((), (), self.error)
        unwritten, undurable, acknowledged = self._unwritten, self._undurable, self._acknowledged
        written = _due(unwritten, self.written) if unwritten and unwritten[0] <= self.written else ()
        durable = _due(undurable, acknowledged) if undurable and undurable[0] <= acknowledged else ()
        return (written, durable, None) if written or durable else None

    @property
    def _acknowledged(self) -> int:
        """Up to where `durable` may be reported to the source; without syncs that is only what was written."""
        return self.written if self._never_synced else self.durable


def _advance(mark: int, ahead: set[int]) -> int:
    """The mark, moved over the numbers that follow it without a gap; they are removed."""
    while mark + 1 in ahead:
        mark += 1
        ahead.discard(mark)
    return mark


def _due(blocks: deque[int], upto: int) -> list[int]:
    due = []
    while blocks and blocks[0] <= upto:
        due.append(blocks.popleft())
    return due
