"""The watermarks: how far the log is written and durable, and reporting that to the source, in block order.

One rule: blocks finish in any order, marks move over contiguous ones alone. Methods marked *locked* are called under the ring's
lock. The one that moved a mark says whether its thread must `deliver`, once it has let the lock go. One thread at a time notifies
the source, for all: it looks again before it stops. So callbacks are in order and no thread waits.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from cmdlog.wal.errors import WalError, Wedged
from cmdlog.wal.writing.tail import LEFT, SYNCED, WRITTEN, PlacedBlock
from cmdlog.wal.writing.turn import Gate

Sync = Literal["sync", "async", "off"]


class RecordSource(Protocol):
    """What feeds the log.

    `written` and `durable` are called once per non-empty `take`, in that order, with the block's number; seals and
    checkpoints are not mentioned. No method is called under a lock of the log, and `take` by one thread at a time. The other
    three run on the path of every block: they must be short and must not wait for the log.
    """

    waits: bool  # a caller waits until what was taken last is durable: it is synced at once, else within the window
    lax: bool  # something of it is answered when it is only written

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
    """See `cmdlog.wal.log.Log.start`. `timed` is called under a lock: quick."""

    threads: int
    sync: Sync
    seal_after_s: float
    async_window_s: float
    early: bool
    timed: Callable[[float], None]
    clock: Callable[[], float]


class Watermarks:
    """Invariants: `durable <= written`; blocks leave `_unwritten` and `_undurable` in their order, whatever order they end in.

    A block that has a sync of its own is durable when that comes back, and not before: another thread's success must not hide its
    failure. A block that is *left* without one is durable with the first sync that began after it was written.
    """

    def __init__(self, lock: threading.Lock, quiet: Gate, source: RecordSource, *, start: int, settings: RingSettings) -> None:
        """`start`: the log's last block."""
        self.lock, self._quiet, self._source = lock, quiet, source
        self._never_synced, self._early = settings.sync == "off", settings.early
        self.written = self.durable = start
        self.wanted = start  # the newest block whose durability a caller waits for
        self.error: WalError | None = None
        self.in_flight = self.left = 0  # blocks that a thread has at hand, or that are written and wait for another one's sync
        self.blocks = self.block_bytes = 0  # of the source, so far
        self.delivering = False
        self._unwritten: deque[PlacedBlock] = deque()
        self._undurable: deque[PlacedBlock] = deque()
        self._due: deque[tuple[Callable[[Any], None], Any]] = deque()  # what the source does not know yet

    def placed(self, block: PlacedBlock) -> None:
        """Locked. The block has its place."""
        self.in_flight += 1
        self._unwritten.append(block)
        self._undurable.append(block)
        if block.awaited:
            self.wanted = block.number
        if block.is_taken:
            self.blocks += 1
            self.block_bytes += len(block.data)

    def wrote(self, block: PlacedBlock) -> bool:
        """Locked. The block is in the page cache, or on its way to the disk; whether the caller must `deliver`."""
        block.stage = WRITTEN
        unwritten, due, source = self._unwritten, self._due, self._source
        while unwritten and unwritten[0].stage >= WRITTEN and self.error is None:
            first = unwritten.popleft()
            self.written = first.number
            if first.is_taken:
                due.append((source.written, first.number))
                if self._never_synced:
                    due.append((source.durable, first.number))
        return self._early and self._begin_delivery()

    def leave(self, block: PlacedBlock) -> bool:
        """Locked. A written block gets no sync of its own; whether the caller must `deliver`."""
        block.stage = LEFT
        self.left += 1
        self.in_flight -= 1
        return self._begin_delivery()

    def left_blocks(self) -> list[PlacedBlock]:
        """Locked. Those that a sync makes durable which begins now."""
        return [block for block in self._undurable if block.stage == LEFT and block.number <= self.written]

    def synced(self, upto: int, own: PlacedBlock | None = None) -> bool:
        """Locked. A sync has come back that began when everything up to `upto` was written, it was that of block `own`; whether
        the caller must `deliver`. A wedged log counts nothing."""
        if own is not None:
            own.stage = SYNCED
            self.in_flight -= 1
        undurable, due, durable = self._undurable, self._due, self._source.durable
        if self.left:
            for block in undurable:
                if block.stage == LEFT and block.number <= upto:
                    block.stage = SYNCED
                    self.left -= 1
        while undurable and undurable[0].stage == SYNCED and self.error is None:
            first = undurable.popleft()
            self.durable = first.number
            if first.is_taken and not self._never_synced:
                due.append((durable, first.number))
        return self._begin_delivery()

    def restart_at(self, number: int) -> None:
        """Locked. Everything is durable up to `number`, a block that was placed and synced elsewhere (a checkpoint)."""
        self.written = self.durable = number

    def wedge(self, error: WalError) -> bool:
        """Locked. The log stops at the first error; whether the caller must `deliver`."""
        if self.error is None:
            self.error = error
            self._due = deque([(self._source.failed, error)])  # nothing else is reported any more
        return self._begin_delivery()

    def raise_error(self) -> None:
        """Raises: Wedged, if the log is."""
        if self.error is not None:
            raise Wedged(f"the log stopped at: {self.error}")

    def deliver(self) -> None:
        """Tells the source what is due, until nothing is; for the thread that was asked to, without the lock."""
        try:
            while True:
                while due := self._due:
                    notify, what = due.popleft()
                    notify(what)
                with self.lock:
                    if not self._due:  # under one lock with the end: what is due after it is another thread's
                        self.delivering = False
                        if self._quiet.parked:
                            self._quiet.open_all()
                        return
        except BaseException:
            with self.lock:
                self.delivering = False
                self._quiet.open_all()
            raise

    def _begin_delivery(self) -> bool:
        """Whether something is due, and no other thread is at it."""
        if self.delivering or not self._due:
            return False
        self.delivering = True
        return True
