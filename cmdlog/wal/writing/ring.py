"""The circular pool: threads that take turns at closing a block, and write and sync it while others are already at the next.

One rule: exactly one thread holds the *turn*, in which a block is taken from the source and placed; everything that needs order
happens there. The writing and syncing after it runs in parallel; watermarks advance in block order, not in that of completion.

A thread is woken only when there is something to take: at most one hand-over per block, 20-50 us. A block whose durability
a caller waits for is synced by the thread that wrote it; so is one before it that is written later. Others are left to the next
sync, at the end of the window at the latest. So one log serves callers of both promises.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

from cmdlog.operator_error import full_text
from cmdlog.wal.errors import LogFull, WalError, Wedged
from cmdlog.wal.files import Files
from cmdlog.wal.format.block import SECTOR_BYTES, BlockFlag
from cmdlog.wal.os_errors import wal_error
from cmdlog.wal.writing.block_writes import BlockWrites, ThreadFile
from cmdlog.wal.writing.hard_state_writer import HardStateWriter
from cmdlog.wal.writing.segment_pool import SegmentPool
from cmdlog.wal.writing.tail import PlacedBlock, Tail
from cmdlog.wal.writing.turn import Gate, Turn, delay_s
from cmdlog.wal.writing.watermarks import RecordSource, RingSettings, Watermarks

LAND_AFTER_S: Final = 0.010  # a block that was started: its thread's work takes long, and others wait for the block


class Ring:
    """Threads, turn and watermarks. All methods are thread-safe."""

    def __init__(
        self, files: Files, tail: Tail, pool: SegmentPool, source: RecordSource, settings: RingSettings, *, hard: HardStateWriter
    ) -> None:
        self._files, self._tail, self._pool, self._hard, self._source = files, tail, pool, hard, source
        self._count, self._sync, self._seal_after_s = settings.threads, settings.sync, settings.seal_after_s
        self._clock = settings.clock
        lock = threading.Lock()
        self._lock = lock
        self._quiet = Gate(lock)  # who waits for the turn, or for nothing in flight
        self._timer = Gate(lock)  # the keeper
        self._turn = Turn(lock, self._quiet)
        self._marks = Watermarks(lock, self._quiet, source, start=tail.number, settings=settings)
        self._held: Sequence[bytes] | None = None  # taken, and waiting for a free segment
        self._closing = self._stopping = False
        self._writes = BlockWrites(files, self._marks, settings, idle=self._note_idle, wedge=self.wedge)
        self._begun = 0.0  # when the last block was taken
        self._inline_file = ThreadFile(files)  # of callers' threads: with nothing else in flight one is enough
        self._keeper_sleeps = True
        self._threads: list[threading.Thread] = []

    # -- callers ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the threads; without it the caller's threads do everything, see `rest`."""
        for number in range(self._count):
            self._threads.append(threading.Thread(target=self._serve, name=f"cmdlog-log-{number}", daemon=True))
        self._threads.append(threading.Thread(target=self._run_keeper, name="cmdlog-log-keeper", daemon=True))
        for thread in self._threads:
            thread.start()

    def kick(self) -> None:
        """The source has something. Raises: Wedged."""
        if self._marks.error is not None or self._closing:
            self._refuse()
        if self._turn.wanted:
            return  # the thread that cleared it last has yet to ask the source, and will see it
        with self._lock:
            self._turn.kick()
            if self._turn.holds_back and self._delay_s() <= 0:
                self._turn.close_block()

    def hasten(self) -> None:
        """A caller waits until what is written so far is durable: it is synced now, not at the end of the window."""
        if self._marks.left and self._sync != "off":
            with self._lock:
                self._writes.hasten()
                self._timer.open_one()

    def run_turn(self, beside: Callable[[], None] | None = None) -> bool:
        """Takes, writes, syncs and notifies the source in the calling thread; False when that is not possible now.

        Where it can be, `beside` is called while the block is on its way to the disk. Raises: Wedged.
        """
        tail = self._tail
        with self._lock:
            if self._marks.error is not None or self._closing:
                self._refuse()
            if self._turn.held or self._marks.in_flight:
                return False  # it would wait for another thread
            if self._threads and tail.left_bytes < tail.worth_bytes:
                return False  # a rotation may wait for a free segment, which is nothing for a caller's thread
            self._turn.acquire()
        try:
            return self._write_next(self._inline_file, beside)
        except BaseException as error:
            self.wedge(WalError(f"the calling thread was interrupted while it wrote the log: {error!r}"))  # what is on disk?
            raise

    def rest(self) -> None:
        """Writes, syncs and seals what is left to do: the keeper's work, for a ring without threads."""
        self._writes.flush()
        self._seal_when_idle()

    def drain(self) -> None:
        """Takes until the source is empty or the log full, waits for everything in flight, seals. Raises: Wedged."""
        self._closing = True
        self._pool.wake()
        while True:
            with self._lock:
                while self._turn.held and self._marks.error is None:
                    self._quiet.wait()
                self._marks.raise_error()
                self._turn.acquire()
            if not self._write_next(self._inline_file):
                break
        self._writes.land()
        with self._lock:
            while (self._marks.in_flight or self._turn.held or self._marks.delivering) and self._marks.error is None:
                self._quiet.wait()
            self._marks.raise_error()
            self._turn.acquire()  # kept until the seal is placed: the keeper may be about to write one
        try:
            self._writes.flush()
            self._seal()
        finally:
            with self._lock:
                self._turn.pass_on()
        self._writes.flush()
        if self._held is not None:
            self.wedge(LogFull("the log was closed while a block waited for a free segment"))
        self._marks.raise_error()

    def stop(self) -> None:
        """Ends the threads; nothing is written from now on. What was in flight has finished on return."""
        with self._lock:
            self._stopping = True
            self._open_gates()
        self._pool.wake()
        for thread in self._threads:
            if thread.ident is not None:  # else it could not be started
                thread.join()
        self._inline_file.close()
        self._writes.close()

    def wedge(self, error: WalError) -> None:
        """Ends all writing: nothing in flight is acknowledged, and the source is notified once."""
        with self._lock:
            delivers = self._marks.wedge(error)
            self._open_gates()
        self._pool.wake()
        if delivers:
            self._marks.deliver()

    @property
    def error(self) -> WalError | None:
        return self._marks.error

    @property
    def durable_block(self) -> int:
        return self._marks.durable

    def status(self) -> dict[str, object]:
        with self._lock:
            return {
                "written_block": self._marks.written,
                "durable_block": self._marks.durable,
                "in_flight": self._marks.in_flight,
                "blocks": self._marks.blocks,
                "block_bytes": self._marks.block_bytes,
                "syncs": self._writes.times.count,
                "sync_us": self._writes.times.summary(),
                "error": full_text(self._marks.error) if self._marks.error else None,
            }

    # -- pool threads ----------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        file = ThreadFile(self._files)
        while self._await_turn():
            self._write_next(file)
        file.close()

    def _await_turn(self) -> bool:
        """Waits until there is something to take and it is this thread's turn; False at the end."""
        with self._lock:
            while not self._stopping and self._marks.error is None:
                if self._turn.held or not self._turn.wanted:
                    self._turn.wait()
                    continue
                self._turn.acquire(delay_s=self._delay_s())  # what comes while it waits is in its block
                return True
            return False

    def _delay_s(self) -> float:
        """Seconds until the next block closes; with nothing in flight none."""
        if not self._marks.in_flight:
            return 0.0
        pending_bytes, begun_s = self._source.pending_bytes, self._clock() - self._begun
        return delay_s(self._writes.times.smoothed_s, threads=self._count, pending_bytes=pending_bytes, begun_s=begun_s)

    def _open_gates(self) -> None:
        """Every waiting thread looks again: nothing more will come."""
        self._turn.wake_all()
        self._quiet.open_all()
        self._timer.open_all()

    def _write_next(self, file: ThreadFile, beside: Callable[[], None] | None = None) -> bool:
        """One turn, which the calling thread has: closes and places a block, passes the turn on, and writes the block.

        Whether there was one. `beside` is called if the block is on its way to the disk by then.
        """
        placed, started = None, False
        try:
            placed = self._place()
            if placed is not None and beside is not None and not self._source.lax:  # an answer rests on what is in the page cache
                started = self._writes.start(placed)
        except (WalError, OSError) as error:
            placed, started = None, False  # its write may have started
            self.wedge(wal_error(error, "rotation of the log failed"))
        except Exception as error:  # noqa: BLE001 -- what the source took cannot be given back: its error ends the log
            placed, started = None, False
            self.wedge(WalError(f"the source of the log failed: {error!r}"))
        delivers = self._pass_on(placed, started=started)
        if placed is None:
            return False
        if not started or beside is None:
            self._writes.write(placed, file)
            return True
        if delivers:
            self._marks.deliver()
        beside()
        self._writes.land()
        return True

    def _pass_on(self, placed: PlacedBlock | None, *, started: bool) -> bool:
        """Others have the turn from now on, and see the block; whether the caller must `deliver` that it is written."""
        delivers = False
        with self._lock:
            if placed is not None:
                self._marks.placed(placed)
                if started:
                    delivers = self._marks.wrote(placed)
                    self._writes.started = placed
                if self._source.pending_bytes > 0:
                    self._turn.wanted = True  # what did not fit is not announced again
                if self._keeper_sleeps and self._sync != "off":
                    self._timer.open_one()
            self._turn.pass_on()
        return delivers

    def _refuse(self) -> None:
        self._marks.raise_error()
        raise Wedged("the log is closed")

    def _note_idle(self) -> None:
        """Locked. The last block in flight has finished."""
        if self._turn.holds_back:
            self._turn.close_block()
        if self._quiet.parked:
            self._quiet.open_all()

    def _place(self) -> PlacedBlock | None:
        """Takes the next block and gives it its place."""
        tail, source = self._tail, self._source
        if tail.left_bytes < tail.worth_bytes and self._held is None and not self._fits_segment() and not self._rotate():
            return None
        room = min(tail.left_bytes, tail.block_bytes_max)
        self._begun = self._clock()
        records, self._held = self._held or source.take_records(room), None
        if not records and room < tail.block_bytes_max and source.pending_bytes > 0:
            if not self._rotate():
                return None
            records = source.take_records(tail.block_bytes_max)
        if not records:
            return None
        placed = tail.place(records, flags=BlockFlag.NONE, durable_upto=self._marks.durable)
        if placed is None and self._rotate():
            placed = tail.place(records, flags=BlockFlag.NONE, durable_upto=self._marks.durable)
        if placed is None:
            self._held = records
            return None
        if tail.groups.hard_state_changed:
            placed.beside = self._hard.save_votes(tail.groups)
        placed.awaited = self._sync != "off" and (placed.beside is not None or source.waits)
        return placed

    def _fits_segment(self) -> bool:
        """Whether the next block goes into the short rest of this segment: the last one's is the reserve of control records."""
        return self._tail.left_bytes >= SECTOR_BYTES and not self._pool.available

    def _rotate(self) -> bool:
        """Everything so far durable, then the next segment. False when none became free before the end."""
        self._writes.land()
        with self._lock:
            while self._marks.in_flight and self._marks.error is None:
                self._quiet.wait()
        self._writes.flush()
        if not self._pool.ready:
            self._seal()  # the wait may be long, and no other thread can while this one holds the turn
        if not self._pool.wait_ready(lambda: self._closing or self._stopping or self._marks.error is not None):
            return False
        self._writes.flush()
        self._marks.raise_error()
        self._tail.rotate()
        self._hard.note_newest(self._tail.groups, self._tail.segment.sequence)
        with self._lock:
            self._marks.restart_at(self._tail.number)
        return True

    # -- the keeper: seals and delayed syncs -----------------------------------------------------------------------------

    def _run_keeper(self) -> None:
        while True:
            with self._lock:
                if self._stopping or self._marks.error is not None:
                    return
                wait_s = self._keeper_wait()
                if wait_s is None or wait_s > 0:
                    self._keeper_sleeps = wait_s is None
                    self._timer.wait(wait_s)
                    self._keeper_sleeps = False
                    continue
            if self._writes.under_way_s(self._clock()) is not None:
                self._writes.land()
            elif self._marks.left:
                self._writes.flush()
            else:
                self._seal_when_idle()

    def _keeper_wait(self) -> float | None:
        """Seconds until something is due; None when nothing will be."""
        if (under_way_s := self._writes.under_way_s(self._clock())) is not None:
            return LAND_AFTER_S - under_way_s
        if self._marks.left and self._sync != "off":
            return self._writes.window_s(self._clock())
        if self._tail.sealed or self._sync == "off":
            return None
        if self._marks.in_flight or self._turn.held or self._turn.wanted:
            return self._seal_after_s
        return self._writes.last_done + self._seal_after_s - self._clock()

    def _seal_when_idle(self) -> None:
        with self._lock:
            turn = self._turn
            if turn.held or turn.wanted or self._marks.in_flight or self._stopping or self._marks.error is not None:
                return
            turn.acquire()
        try:
            self._seal()
        finally:
            with self._lock:
                turn.pass_on()

    def _seal(self) -> None:
        """Writes a seal; the caller holds the turn, and nothing is in flight."""
        tail = self._tail
        if tail.sealed:
            return
        placed = tail.place([], flags=BlockFlag.SEAL, durable_upto=self._marks.durable)
        assert placed is not None
        placed.awaited = self._sync == "sync"
        with self._lock:
            self._marks.placed(placed)
        self._writes.write(placed, self._inline_file)
