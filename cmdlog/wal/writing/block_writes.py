"""Blocks on their way to the disk: written, synced, and reported to the watermarks.

One rule: a block has one of two writers, and `start` decides which. One that is alone, and whose thread has other work, goes to
the direct writer: it is *started*, and on its way during that work. All others are written and synced by the threads that took
them, side by side. Until a started block has landed no other thread writes to its file; a thread that must finishes it first.

Blocks that are written and left without a sync of their own get one for all, `flush`, unless the sync of a later block covers
them first. The first of them opens a window, at whose end that is due. What a flush covers is read before it begins: a block that
is written during it waits for the next one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from cmdlog.wal.errors import WalError
from cmdlog.wal.files import File, Files
from cmdlog.wal.os_errors import wal_error
from cmdlog.wal.system.write_thread import DirectWriter
from cmdlog.wal.writing.tail import PlacedBlock
from cmdlog.wal.writing.watermarks import RingSettings, Watermarks

LATENCY_FIRST_S: Final = 0.0002  # guess until the first sync is measured
LATENCY_WEIGHT: Final = 0.1  # of the newest sync in the smoothed latency
LATENCIES_KEPT: Final = 1024  # for the summary in `status`
_ITSELF: Final = 0  # up to where the sync of a block reaches that brings nothing else to the disk


class ThreadFile:
    """One thread's open file of the segment that it writes; follows its thread from segment to segment.

    Each thread has its own: the kernel reports a failed write-back once to each open file description, so no thread's sync can
    succeed because another one has consumed the error.
    """

    __slots__ = ("_file", "_files", "_path")

    def __init__(self, files: Files) -> None:
        self._files = files
        self._file: File | None = None
        self._path = ""

    def of_block(self, placed: PlacedBlock) -> File:
        """The file of the block's segment. Raises: WalError."""
        if self._file is not None and self._path == placed.path:
            return self._file
        try:
            self.close()
            self._file, self._path = self._files.open(placed.path), placed.path
        except OSError as error:
            raise WalError(f"opening {placed.path}: {error}") from error
        return self._file

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


class SyncTimes:
    """How long syncs take."""

    __slots__ = ("_kept", "_report", "count", "smoothed_s")

    def __init__(self, report: Callable[[float], None]) -> None:
        """`report` gets the seconds of every sync, a block's own with its write."""
        self._report = report
        self.count = 0  # with those whose end no thread saw
        self.smoothed_s = LATENCY_FIRST_S
        self._kept: deque[float] = deque(maxlen=LATENCIES_KEPT)

    def add(self, seconds: float) -> None:
        """A sync took so long."""
        self._kept.append(seconds)
        self._report(seconds)
        self.smoothed_s += (seconds - self.smoothed_s) * LATENCY_WEIGHT

    def smooth(self, seconds: float) -> None:
        """A sync, or the write of a block that has none, took so long."""
        self.smoothed_s += (seconds - self.smoothed_s) * LATENCY_WEIGHT

    def summary(self) -> dict[str, float]:
        """Median, 99th percentile and maximum in microseconds; zeros before the first sync."""
        return _summary(sorted(self._kept))


def _summary(ascending_s: Sequence[float]) -> dict[str, float]:
    shares = (("median", 0.5), ("p99", 0.99), ("max", 1.0))
    last = len(ascending_s) - 1
    return {name: round(ascending_s[int(share * last)] * 1e6, 1) if ascending_s else 0.0 for name, share in shares}


class BlockWrites:
    """Any thread; methods marked *locked* under the ring's lock, the others without it."""

    def __init__(
        self,
        files: Files,
        marks: Watermarks,
        settings: RingSettings,
        *,
        idle: Callable[[], None],
        wedge: Callable[[WalError], None],
    ) -> None:
        """`idle` is called under the lock when nothing is in flight, `wedge` without it."""
        self._files, self._lock, self._marks, self._clock = files, marks.lock, marks, settings.clock
        self._window_s, self._hastened = settings.async_window_s, False
        self.times = SyncTimes(settings.timed)
        self._idle, self._wedge = idle, wedge
        self.started: PlacedBlock | None = None  # and announced as written: who lands it reports it as durable
        self._landing = threading.Lock()
        self._direct: DirectWriter | None = None
        self._direct_asked = False
        self._flushing = threading.Lock()  # one sync at a time
        self._flushed = ThreadFile(files)
        self.last_done = 0.0

    def write(self, placed: PlacedBlock, own: ThreadFile) -> None:
        """Writes the block, and syncs it unless no caller waits for that."""
        if self.started is not None or self._landing.locked():  # its end may be awaited by another thread
            self.land()
        marks = self._marks
        try:
            file = own.of_block(placed)
            begin = self._clock()
            file.pwrite(placed.data, placed.offset)
            with self._lock:
                delivers = marks.wrote(placed)
                upto, left = marks.written, placed.number > marks.wanted
                if left:
                    delivers = self._leave(placed, begin) or delivers
            if delivers:
                marks.deliver()
            if left:
                return
            file.fdatasync()
            if placed.beside is not None:
                placed.beside()
            self._finish(placed, self._clock() - begin, upto)
        except (WalError, OSError) as error:
            self._wedge(wal_error(error, f"writing {placed.path}"))

    def start(self, placed: PlacedBlock) -> bool:
        """Gives the block to the direct writer, before the turn is passed on; False: its own thread must `write` it.

        This alone decides which of the two writes a block; what it looks at changes to its favour alone while the caller has the
        turn. A block that is started is announced as written at once, and is `started` then: a kill leaves it to the kernel, a
        power cut may take it.
        """
        marks = self._marks
        if marks.in_flight:
            return False  # another thread is writing to the file: syncs of several blocks take place side by side
        if not placed.awaited:
            return False  # no caller waits for it: a later sync covers it
        if marks.left:
            return False  # its sync must cover those that were left, and a direct write makes only itself durable
        if placed.beside is not None:
            return False  # it counts when a vote is durable too
        direct = self._direct if self._direct_asked else self._open_direct()
        if direct is None:
            return False  # the system has no such writes
        placed.since = self._clock()
        return direct.start(placed.path, placed.data, placed.offset)  # False: nor has the file, or it is too long for one

    def land(self) -> None:
        """Waits for the block that was started, if one was and no other thread is faster, and finishes it."""
        with self._landing:
            placed, direct = self.started, self._direct
            if placed is None or direct is None:
                return
            seconds, failure = None, None
            self.started = None  # first: after a signal handler's exception no other thread waits for the same end
            try:
                if direct.finish():  # else it may have ended long ago
                    seconds = self._clock() - placed.since
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
                upto, pending, self._hastened = self._marks.written, self._marks.left_blocks(), False
            for placed in {placed.path: placed for placed in pending}.values():  # one of each segment
                begin = self._clock()
                try:
                    self._flushed.of_block(placed).fdatasync()
                except (WalError, OSError) as error:
                    self._wedge(wal_error(error, f"syncing {placed.path}"))
                    return
                with self._lock:
                    self.times.count += 1
                    self.times.add(self._clock() - begin)
            with self._lock:
                delivers = self._marks.synced(upto)
        if delivers:
            self._marks.deliver()

    def hasten(self) -> None:
        """Locked. A caller waits for a block that was left: the window is over."""
        self._hastened = True

    def window_s(self, now: float) -> float:
        """Locked. Seconds until what was left is synced at the latest; all of them while it follows an unwritten block."""
        pending = self._marks.left_blocks()
        if not pending or self._hastened:
            return 0.0 if pending else self._window_s
        return min([placed.since for placed in pending]) + self._window_s - now

    def under_way_s(self, now: float) -> float | None:
        """For how long the block that was started is on its way; None when none is."""
        started = self.started
        return None if started is None else now - started.since

    def close(self) -> None:
        """Gives up what was started: the log has ended."""
        with self._landing:
            self.started = None
            if self._direct is not None:
                self._direct.close()
        self._flushed.close()

    def _open_direct(self) -> DirectWriter | None:
        self._direct, self._direct_asked = self._files.open_direct_writer(), True
        return self._direct

    def _leave(self, placed: PlacedBlock, begin: float) -> bool:
        """Locked. A written block waits for a later sync; whether the caller must `deliver`."""
        self.last_done = placed.since = self._clock()
        self.times.smooth(placed.since - begin)
        placed.data = b""
        delivers = self._marks.leave(placed)
        if not self._marks.in_flight:
            self._idle()
        return delivers

    def _finish(self, placed: PlacedBlock, seconds: float | None, upto: int) -> None:
        """The block is written and synced; `upto` as in `Watermarks.synced`. `seconds`: None where no thread saw the end."""
        marks = self._marks
        with self._lock:
            self.last_done = self._clock()
            self.times.count += 1
            if seconds is not None:
                self.times.add(seconds)
            delivers = marks.synced(upto, placed)
            if not marks.in_flight:
                self._idle()
        if delivers:
            marks.deliver()
