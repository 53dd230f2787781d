"""Blocks on their way to the disk: written, synced, and reported to the watermarks.

One rule: a block has one of two writers, and `start` decides which. One that is alone, and whose thread has other work, goes to
the direct writer: it is *started*, and on its way during that work. All others are written and synced by the threads that took
them, side by side. Until a started block has landed no other thread writes to its file; a thread that must finishes it first.

Blocks that are written and left without a sync of their own get one for all, `flush`. What it covers is read before it begins: a
block that is written during it waits for the next one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from cmdlog.wal.errors import WalError
from cmdlog.wal.files import File, Files
from cmdlog.wal.os_errors import wal_error
from cmdlog.wal.system.write_thread import DirectWriter
from cmdlog.wal.writing.sync_window import SyncTimes, SyncWindow
from cmdlog.wal.writing.tail import PlacedBlock
from cmdlog.wal.writing.watermarks import RingSettings, Watermarks

_ITSELF: Final = 0  # up to where the sync of a block reaches that brings nothing else to the disk


class ThreadFile:
    """One thread's open file of the segment that it writes; follows its thread from segment to segment.

    Each thread has its own: the kernel reports a failed write-back once to each open file description, so no thread's sync can
    succeed because another one has consumed the error.
    """

    __slots__ = ("_file", "_files", "_sequence")

    def __init__(self, files: Files) -> None:
        self._files = files
        self._file: File | None = None
        self._sequence = 0

    def of_block(self, placed: PlacedBlock) -> File:
        """The file of the block's segment. Raises: WalError."""
        if self._file is not None and self._sequence == placed.sequence:
            return self._file
        try:
            self.close()
            self._file, self._sequence = self._files.open(placed.path), placed.sequence
        except OSError as error:
            raise WalError(f"opening {placed.path}: {error}") from error
        return self._file

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


class BlockWrites:
    """Any thread; methods marked *locked* under the ring's lock, the others without it."""

    def __init__(
        self, files: Files, marks: Watermarks, settings: RingSettings, *, start: int, idle: Callable[[], None],
        wedge: Callable[[WalError], None],
    ) -> None:  # fmt: skip
        """`start`: the log's last block. `idle` is called under the lock when nothing is in flight, `wedge` without it."""
        self._files, self._lock, self._marks, self._clock = files, marks.lock, marks, settings.clock
        self.window = SyncWindow(settings.async_window_s, wanted=start)
        self.times = SyncTimes(settings.timed)
        self._early, self._idle, self._wedge = settings.early, idle, wedge
        self._started: tuple[PlacedBlock, float] | None = None  # and since when
        self._landing = threading.Lock()
        self._direct: DirectWriter | None = None
        self._direct_asked = False
        self._flushing = threading.Lock()  # one sync at a time
        self._flushed = ThreadFile(files)
        self.in_flight = self.blocks = self.block_bytes = 0
        self.last_done = 0.0

    def add(self, placed: PlacedBlock) -> None:
        """Locked. The block has its place."""
        self.in_flight += 1
        self.blocks += 1
        self.block_bytes += len(placed.data)

    def add_seal(self) -> None:
        """Locked. A seal has its place."""
        self.in_flight += 1

    def write(self, placed: PlacedBlock, own: ThreadFile) -> None:
        """Writes the block, and syncs it unless no caller waits for that."""
        if self._started is not None or self._landing.locked():  # its end may be awaited by another thread
            self.land()
        try:
            file = own.of_block(placed)
            begin = self._clock()
            file.pwrite(placed.data, placed.offset)
            upto = self._note_written(placed)
            if upto is not None:
                file.fdatasync()
            if placed.beside is not None:
                placed.beside()
            self._finish(placed, self._clock() - begin, upto)
        except (WalError, OSError) as error:
            self._wedge(wal_error(error, f"writing {placed.path}"))

    def start(self, placed: PlacedBlock, *, lax: bool) -> bool:
        """Gives the block to the direct writer, before the turn is passed on; False: its own thread must `write` it.

        This alone decides which of the two writes a block. One that is started is announced as written at once, on its way as
        it is: a kill leaves it to the kernel, a power cut may take it. `lax`: a caller is answered when it is written.
        """
        if lax:
            return False  # an answer may rest on it before it is durable: it must be in the page cache
        if self.in_flight != 1:
            return False  # another thread is writing to the file: syncs of several blocks take place side by side
        if placed.number > self.window.wanted:
            return False  # no caller waits for it: a later sync covers it
        if self.window.open or self._marks.any_left:
            return False  # its sync must cover those that were left, and a direct write makes only itself durable
        if placed.beside is not None:
            return False  # it counts when a vote is durable too
        direct = self._open_direct()
        if direct is None or not direct.can_start(placed.path, len(placed.data)):
            return False  # the system or the file has no such writes, or it is too long for one
        since = self._clock()
        direct.start(placed.data, placed.offset)
        self._note_written(placed)
        self._started = placed, since  # last: who lands it reports it as durable, which comes after that
        return True

    def land(self) -> None:
        """Waits for the block that was started, if one was and no other thread is faster, and finishes it."""
        with self._landing:
            direct = self._direct
            if self._started is None or direct is None:
                return
            (placed, since), seconds, failure = self._started, None, None
            self._started = None  # first: after a signal handler's exception no other thread waits for the same end
            try:
                if direct.finish():  # else it may have ended long ago
                    seconds = self._clock() - since
            except (WalError, OSError) as error:
                failure = wal_error(error, f"writing {placed.path}")
        if failure is None:
            self._finish(placed, seconds, _ITSELF)
        else:
            self._wedge(failure)

    def flush(self) -> None:
        """Everything written so far is durable on return, unless the log is wedged."""
        with self._flushing:
            with self._lock:
                upto, pending = self._marks.written, self.window.close()
            for placed in pending:
                begin = self._clock()
                try:
                    self._flushed.of_block(placed).fdatasync()
                except (WalError, OSError) as error:
                    self._wedge(wal_error(error, f"syncing {placed.path}"))
                    return
                with self._lock:
                    self.times.add(self._clock() - begin)
            with self._lock:
                self._marks.synced(upto)
        self._marks.deliver()

    def under_way_s(self, now: float) -> float | None:
        """For how long the block that was started is on its way; None when none is."""
        started = self._started
        return None if started is None else now - started[1]

    def close(self) -> None:
        """Gives up what was started: the log has ended."""
        with self._landing:
            self._started = None
            if self._direct is not None:
                self._direct.close()
        self._flushed.close()

    def _open_direct(self) -> DirectWriter | None:
        if not self._direct_asked:
            self._direct, self._direct_asked = self._files.open_direct_writer(), True
        return self._direct

    def _note_written(self, placed: PlacedBlock) -> int | None:
        """Announces the block as written. Up to where its sync will reach; None when it is left without one."""
        with self._lock:
            self._marks.wrote(placed.number)
            upto = self._marks.written if placed.number <= self.window.wanted else None
        if upto is not None and self._early:
            self._marks.deliver()
        return upto

    def _finish(self, placed: PlacedBlock, seconds: float | None, upto: int | None) -> None:
        """The block is written, and synced unless it is left; `upto` as in `Watermarks.synced`. Marks advance over closed gaps.

        `seconds`: None of a sync whose end no thread saw.
        """
        now = self._clock()
        with self._lock:
            self.in_flight -= 1
            self.last_done = now
            if upto is not None:
                self.times.add(seconds)
            if seconds is not None:
                self.times.smooth(seconds)
            # A wedged log counts nothing; a block that is left waits for a later sync; one that is synced moves the marks.
            if self._marks.error is not None:
                return
            if upto is None:
                self._marks.leave(placed.number)
                self.window.leave(placed, now)
            else:
                self._marks.synced(upto, own=placed.number)
                if self.window.open and not self._marks.any_left:
                    self.window.cover()
            if not self.in_flight:
                self._idle()
        self._marks.deliver()
