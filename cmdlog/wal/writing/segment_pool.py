"""Which files the log has: segments in use, files that are ready, reserved ones, and how many may still be made.

One rule: the number of files is fixed, so the log never grows. One thread prepares files ahead of need (zeros really written)
and recycles old segments; the log's turn holder only takes what is ready.

A *reserved* file has its blocks, so no other program takes them, and holds no zeros yet: it is called `free-<n>.wal.tmp`, as a
file that is being made. With `whole` the thread reserves all that are missing, the whole ring.

Recycling is oldest first: the hard state file notes it, then the file is renamed. A crash in between is finished at the next
start.

A segment that every anchor has passed may still be wanted for another reason: its history has been promised. So
`may_go` is asked first. It answers at once: yes, or not yet, and then the one that answered copies the segment away (never moves
it: the ring keeps its files, also on a full disk) and calls `ask` when the answer has changed. While it is not yet, the log fills
up; that is the promise kept.

Named anchors say who still needs the log from where on. (The idea is Apache Kudu's log anchor registry.) A segment is recycled
only when every anchor is beyond its last record; without any anchor nothing is recycled, so a node that has not yet said what it
needs loses nothing.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sortedcontainers import SortedDict

from cmdlog.operator_error import full_text
from cmdlog.wal.errors import DiskFull, WalError
from cmdlog.wal.files import TEMP_SUFFIX, Files
from cmdlog.wal.format.segment import free_name, free_number, reserve_file, write_zeros
from cmdlog.wal.ids import Lsn
from cmdlog.wal.opening.survey import SegmentFile, Survey
from cmdlog.wal.writing.hard_state_writer import HardStateWriter

READY_WANTED: Final = 2  # prepared files: one to rotate into at once, one more while the next is being made
RETRY_S: Final = 1.0  # between looks at a disk that was full


@dataclass(frozen=True, slots=True)
class Anchor:
    """Everything from `lsn` on is needed."""

    lsn: Lsn
    since: float  # seconds since 1970, for the operator who asks what holds the log back


class Anchors:
    """Thread-safe. `moved` is called after every change, outside the lock."""

    def __init__(self, moved: Callable[[], None]) -> None:
        self._moved = moved
        self._lock = threading.Lock()
        self._anchors: dict[str, Anchor] = {}

    def set(self, name: str, lsn: Lsn) -> None:
        """Needs everything from `lsn` on. Moving an anchor back is the caller's claim that the log still reaches there."""
        with self._lock:
            before = self._anchors.get(name)
            if before is not None and before.lsn == lsn:
                return
            self._anchors[name] = Anchor(lsn, time.time())
        self._moved()

    def release(self, name: str) -> None:
        """Forgets the anchor; one that is not there is no error."""
        with self._lock:
            self._anchors.pop(name, None)
        self._moved()

    def oldest(self) -> Lsn | None:
        """The oldest position that anyone needs; None without any anchor."""
        with self._lock:
            return min((anchor.lsn for anchor in self._anchors.values()), default=None)

    def status(self) -> dict[str, dict[str, float]]:
        with self._lock:
            return {
                name: {"block": anchor.lsn.block, "offset": anchor.lsn.offset, "since": anchor.since}
                for name, anchor in sorted(self._anchors.items())
            }


class SegmentPool:
    """Thread-safe."""

    def __init__(self, files: Files, survey: Survey, hard: HardStateWriter) -> None:
        self._files, self.log_dir, self.instance, self._hard = files, survey.log_dir, survey.instance, hard
        self.anchors = Anchors(self.ask)
        self._changed = threading.Condition()
        self.segments: SortedDict = SortedDict({segment.sequence: segment for segment in survey.segments})
        self._ready = [path for path in survey.free if not path.endswith(TEMP_SUFFIX) and self._usable(path)]
        self._reserved = [path for path in survey.free if path.endswith(TEMP_SUFFIX) and self._usable(path)]
        self.recycled = 0  # sequence of the last segment whose file was taken back, or just is
        self.whole = False  # the space of the whole ring is taken, not only that of the next files
        self._taken: str | None = None  # the file that a rotation is writing to
        self.disk_full: str | None = None
        self.awaited = False  # the turn's holder waits for a file, so no block is written meanwhile
        self._asked = True
        self._stopped = False
        self._thread: threading.Thread | None = None
        self.failed: Callable[[WalError], None] = lambda error: None
        self.may_go: Callable[[SegmentFile, int], bool] = lambda segment, last_block: True

    # -- the log's side --------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> int:
        return len(self._ready)

    @property
    def reserved(self) -> int:
        """Files that have their blocks, and hold no zeros yet."""
        return len(self._reserved)

    @property
    def unmade(self) -> int:
        """Files whose space is not taken yet; on a full disk they do not count as room."""
        made = len(self.segments) + len(self._ready) + len(self._reserved) + (self._taken is not None)
        return self.instance.segments - made

    @property
    def available(self) -> int:
        """Segments that a rotation can count on; on a full disk those whose space is taken."""
        if self.disk_full:
            return len(self._ready) + len(self._reserved)
        return self.instance.segments - len(self.segments) - (self._taken is not None)

    def oldest(self) -> SegmentFile:
        segment: SegmentFile = self.segments.peekitem(0)[1]
        return segment

    def newest(self) -> SegmentFile:
        segment: SegmentFile = self.segments.peekitem(-1)[1]
        return segment

    def take_ready(self) -> str | None:
        """A prepared file to write the next segment's head into; None when there is none now."""
        with self._changed:
            if not self._ready:
                return None
            self._taken = self._ready.pop(0)
            return self._taken

    def put_to_use(self, segment: SegmentFile) -> None:
        """The taken file is a segment now, name and head durable."""
        with self._changed:
            self.segments[segment.sequence] = segment
            self._taken = None
        self.ask()

    def wait_ready(self, given_up: Callable[[], bool]) -> bool:
        """Waits until a file is ready; False when `given_up` says so. Without a background thread, makes one here or gives up."""
        if self._ready:
            return True
        if self._thread is None:
            self.prepare_files()
            return bool(self._ready)
        self.ask()
        with self._changed:
            self.awaited = True
            while not self._ready and not given_up():
                self._changed.wait()
            self.awaited = False
            return bool(self._ready)

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # -- preparation -----------------------------------------------------------------------------------------------------

    def start(self, failed: Callable[[WalError], None]) -> None:
        self.failed = failed
        self._thread = threading.Thread(target=self._run, name="cmdlog-space", daemon=True)
        self._thread.start()

    def ask(self) -> None:
        """Something changed: an anchor, a rotation. The preparing thread looks again."""
        with self._changed:
            self._asked = True
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread is not None and self._thread.ident is not None:  # else it could not be started
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._asked and not self._stopped:
                    if not self._changed.wait(RETRY_S if self.disk_full else None):
                        break
                if self._stopped:
                    return
                self._asked = False
            try:
                self.prepare_files()
            except (WalError, OSError) as error:
                self.failed(error if isinstance(error, WalError) else WalError(str(error)))
                return

    def prepare_files(self) -> None:
        """Recycles what is not needed, makes files until READY_WANTED are ready, reserves the others. Raises: WriteFailed."""
        while (passed := self._passed()) is not None and self.may_go(*passed):
            self._recycle(passed[0])
        try:
            while len(self._ready) < READY_WANTED and (self._reserved or self.unmade > 0) and not self._stopped:
                self._make()
            while self.whole and self.unmade > 0 and not self._stopped:
                self._reserve()
        except DiskFull as error:
            self.disk_full = full_text(error)
            return
        self.disk_full = None

    def _passed(self) -> tuple[SegmentFile, int] | None:
        """The oldest segment and its last block, if a successor exists and every anchor is beyond that block."""
        with self._changed:
            if len(self.segments) < 2:
                return None
            successor: SegmentFile = self.segments.peekitem(1)[1]
            needed = self.anchors.oldest()
            if needed is None or needed.block < successor.header.first_block:
                return None
            return self.oldest(), int(successor.header.first_block) - 1

    def _recycle(self, segment: SegmentFile) -> None:
        self._hard.note_oldest(segment.sequence + 1)
        self.recycled = segment.sequence  # before the name goes: no reader is to miss the file
        target = self._new_path()
        self._files.rename(segment.path, target)
        self._files.fsync_dir(self.log_dir)
        with self._changed:
            del self.segments[segment.sequence]
            self._ready.append(target)
            self._changed.notify_all()

    def _make(self) -> None:
        """A reserved file is zeroed, or a new one made."""
        with self._changed:
            temporary = self._reserved[0] if self._reserved else self._new_path() + TEMP_SUFFIX
        path = temporary.removesuffix(TEMP_SUFFIX)
        try:
            write_zeros(self._files, temporary, self.instance.segment_bytes, over=True)
        except DiskFull:
            with self._changed:
                self._reserved = [other for other in self._reserved if other != temporary]
            self._files.unlink(temporary)
            raise
        self._files.rename(temporary, path)
        self._files.fsync_dir(self.log_dir)
        with self._changed:
            self._reserved = [other for other in self._reserved if other != temporary]
            self._ready.append(path)
            self._changed.notify_all()

    def _reserve(self) -> None:
        path = self._new_path() + TEMP_SUFFIX
        reserve_file(self._files, path, self.instance.segment_bytes)
        with self._changed:
            self._reserved.append(path)

    def _new_path(self) -> str:
        with self._changed:
            there = (*self._ready, *self._reserved, self._taken or "")
        taken = {free_number(os.path.basename(path).removesuffix(TEMP_SUFFIX)) for path in there}
        number = next(number for number in range(self.instance.segments + 1) if number not in taken)
        return os.path.join(self.log_dir, free_name(number))

    def _usable(self, path: str) -> bool:
        """A free file of another length is a leftover of other settings or of an operator: it goes."""
        file = self._files.open(path, read_only=True)
        try:
            whole = file.size() == self.instance.segment_bytes
        finally:
            file.close()
        if not whole:
            self._files.unlink(path)
        return whole
