"""The node's archive: what of the log and of old snapshots is kept because moments were promised.

One rule: nothing that a promise needs is given up silently. The log asks `may_go` before it recycles a segment that every anchor
has passed, and the snapshot thread hands every snapshot that does not count any more to `let_go`. What the window or a recovery
point needs goes into `archive/` (`snapshot.archive.archive`); the rest may go, from the archive too.

When the archive can take no more (`archive_bytes_max`, a full disk, a damaged segment), snapshots without which every moment can
still be restored, only later, make room first. Then the rule `archive_full` decides:

    stop      the segment stays in the ring. The log fills, then writes are refused with `log_full`, which names the archive;
              reads continue. It is tried again every second, and continues by itself when there is room.
    shorten   the oldest segments of the archive go, with the snapshots that are of no use without them, until there is room;
              where that is not enough, the segment goes unarchived. How far back one can really go is shown, and logged. What a
              recovery point needs is never given up: for that, shorten is stop.

The log's turn holder never waits for any of this: `may_go` answers from memory, one thread decides and names, and a process of
low priority copies and checks (`cmdlog.node.background.idle_process`). The ring keeps all of its files, so a full disk
costs it none.

A node whose window is 0 again does not throw away what an earlier run had promised: `cmdlog archive prune` does. It says at its
start, in its status and in `archive/promise.json` that the promise is not kept.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import structlog

from cmdlog.node.background.quarantine_moves import set_aside
from cmdlog.node.background.running_work import RunningWork
from cmdlog.wal.errors import Corrupt, DiskFull, WalError
from cmdlog.wal.log import Log
from cmdlog.wal.opening.survey import SegmentFile
from snapshot.archive import archive_retention
from snapshot.archive.archive import (
    ArchiveFolder,
    ArchiveIndex,
    add_segment,
    add_snapshot,
    begins_empty,
    bytes_of,
    clean,
    holds,
    remove_folder,
    remove_segment,
)
from snapshot.archive.segment_copy import CopiedSegment
from snapshot.archive_layout import manifest_bytes_max, run_before
from snapshot.catalog import Snapshot, remove
from snapshot.errors import SnapshotError
from snapshot.recovery_points import BadPoint, list_points
from snapshot.retention import Needs, describe_reach, needs, oldest_restorable, window_begin

LOOK_EVERY_S: Final = 5.0  # at what the window does not need any more; it moves slowly
RETRY_S: Final = 1.0  # after something that is in the way: as often as the log looks at a full disk

log = structlog.get_logger("cmdlog.archive")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The settings of the archive."""

    window_s: float
    bytes_max: int  # 0 = no bound
    when_full: Literal["stop", "shorten"]


class Stuck(Exception):
    """A segment cannot be archived now; the text says why."""


class Archiver:
    """The archive's thread. `may_go`, `let_go`, `status`, `why_full` may be called from any thread."""

    def __init__(
        self,
        place: ArchiveFolder,
        partitions: Sequence[int],
        rules: Rules,
        *,
        wal: Log,
        copy: Callable[[str, str, int], CopiedSegment],
        now_millis: Callable[[], int],
        work: RunningWork,
    ) -> None:
        """`copy`: source, target, last block. `now_millis`: never later than the newest transaction id; any thread.

        Raises: OSError, WriteFailed, DiskFull.
        """
        self._place, self._partitions, self._rules = place, partitions, rules
        self._wal, self._copy, self._now_millis, self._running_work = wal, copy, now_millis, work
        self._work_lock = threading.RLock()  # the index and the folder: the thread here, and the snapshot thread
        self._lock = threading.Condition()
        self._wanted: tuple[SegmentFile, int] | None = None  # what the log asks for
        self._released = 0  # sequence up to which the answer is yes
        self._stopping = False
        self._begins_empty: bool | None = None
        self._bad_points: Sequence[BadPoint] = ()
        self.problem = ""  # why the oldest segment stays in the ring though it could go
        self._problem_since = 0.0  # seconds since 1970
        self.archived = self.given_up = 0  # segments, since the start
        clean(place, wal.segments)
        promised = archive_retention.read_promise(place.files, place.directory)
        self._purges = bool(rules.window_s) or not promised
        self._unkept_s = 0.0 if self._purges else promised  # window of an earlier run, which this one does not keep
        with contextlib.suppress(DiskFull):  # written at the next start; until then the CLI believes the older one
            if self._purges:
                archive_retention.write_promise(place.files, place.directory, window_s=rules.window_s)
            else:
                self._warn_of_promise()
        self._index = ArchiveIndex(place)
        self._status: dict[str, Any] = {}
        self._refresh_status()
        self._thread = threading.Thread(target=self._run, name="archive", daemon=True)

    # -- the node's side -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Interrupts what is under way, harmless at any step; the caller has stopped the copies."""
        with self._lock:
            self._stopping = True
            self._lock.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def may_go(self, segment: SegmentFile, last_block: int) -> bool:
        """Whether the ring may recycle the segment now; if not, it is seen to. Never waits."""
        with self._lock:
            if segment.sequence <= self._released or self._nothing_is_promised():
                return True
            self._wanted = segment, last_block
            self._lock.notify_all()
            return False

    def let_go(self, snapshot: Snapshot) -> None:
        """A snapshot that does not count any more: into the archive if a promise needs it, else removed."""
        with self._work_lock:
            self._index.refresh()
            needed, name = self._needs(), (snapshot.partition, snapshot.name)
            base, size_bytes = name in needed.bases, bytes_of(snapshot.path)
            if base and not self._fits(size_bytes):
                with contextlib.suppress(Stuck):
                    self._make_room(size_bytes, needed)
                if self._rules.when_full == "shorten":
                    base = all(useless.path != snapshot.path for useless in self._useless(snapshot.path))
            wanted = base or (name in needed.snapshots and name not in needed.bases)
            if wanted and self._fits(size_bytes):
                add_snapshot(self._place, snapshot)
            elif not base:
                remove(self._place.files, snapshot)  # a base stays where it is, and is let go again after the next snapshot

    def set_aside(self, moves: Mapping[str, str]) -> None:
        """Damaged files leave the archive, path -> path; the next look shows how far back one can go."""
        with self._work_lock:
            set_aside(self._place.files, moves)

    def why_full(self) -> str:
        """The answer to a caller that is refused with `log_full`."""
        if self.problem:
            why = f"its oldest segment is promised to the archive and cannot be copied there: {self.problem}"
            return f"the log has no room: {why}"
        return "the log has no room until a snapshot releases its oldest segment"

    def status(self) -> dict[str, Any]:
        """The archive as `GET /v1/status` shows it; as of the last look, at most a few seconds ago."""
        counts = {"archived": self.archived, "given_up": self.given_up}
        since = self._problem_since if self.problem else None
        return {**self._status, **counts, "problem": self.problem or None, "problem_since": since}

    # -- the thread ------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while self._wait():
            try:
                with self._running_work.track("archive", "archiving of the log"), self._work_lock:
                    self._work()
            except (SnapshotError, WalError, OSError) as error:
                self._note_problem(str(error))
            except Exception as error:  # our own bug: without this thread the log fills and never empties
                log.exception("archiving_failed")
                self._note_problem(f"{type(error).__name__}: {error}")

    def _wait(self) -> bool:
        with self._lock:
            if self._stopping:
                return False
            if self._wanted is None or self.problem:
                self._lock.wait(RETRY_S if self.problem else LOOK_EVERY_S)
            return not self._stopping

    def _work(self) -> None:
        self._index.refresh()
        self._purge(self._needs())
        with self._lock:
            wanted = self._wanted
        try:
            if wanted is not None:
                self._settle_segment(*wanted)
        except Stuck as stuck:
            self._note_problem(str(stuck))
        else:
            self.problem = ""
            if wanted is not None:
                with self._lock:
                    self._released, self._wanted = wanted[0].sequence, None
                self._wal.look_again()
        self._refresh_status()

    def _settle_segment(self, segment: SegmentFile, last_block: int) -> None:
        """On return the ring may recycle the segment. Raises: Stuck, WalError, SnapshotError, OSError: it must stay."""
        needed = self._needs()
        if not needed.log(first_block=int(segment.header.first_block), last_block=last_block):
            return
        if holds(self._place, segment, last_block):
            return
        try:
            self._make_room(segment.header.segment_bytes + manifest_bytes_max(len(self._partitions)), needed)
            while not self._archive(segment, last_block):
                if not self._drop_something(needed):
                    raise Stuck(f"the disk of {self._place.folder} is full")
        except (Stuck, Corrupt) as error:
            self._give_up(segment, last_block, str(error), needed)

    def _archive(self, segment: SegmentFile, last_block: int) -> bool:
        """False when the disk is full."""
        place, temporary = self._place, self._place.temporary()
        try:
            copied = self._copy(segment.path, temporary, last_block)
            before = self._index.before(int(segment.header.first_block))
            add_segment(place, segment, last_block, temporary=temporary, copied=copied, before=before)
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            if isinstance(error, DiskFull):
                return False
            raise
        self.archived += 1
        self._index.refresh()
        log.info("segment_archived", first_block=int(segment.header.first_block), last_block=last_block, bytes=copied.bytes)
        return True

    def _fits(self, size_bytes: int) -> bool:
        return not self._rules.bytes_max or self._index.bytes + size_bytes <= self._rules.bytes_max

    def _make_room(self, size_bytes: int, needed: Needs) -> None:
        """Raises: Stuck."""
        while not self._fits(size_bytes):
            if not self._drop_something(needed):
                held = f"{self._index.bytes} bytes are in {self._place.folder}, and archive_bytes_max={self._rules.bytes_max}"
                raise Stuck(f"{held} leaves no room for {size_bytes} more")

    def _drop_something(self, needed: Needs) -> bool:
        """What costs least; False when nothing may go."""
        return self._drop_spare(needed) or (self._rules.when_full == "shorten" and self._drop_oldest(needed))

    def _give_up(self, segment: SegmentFile, last_block: int, why: str, needed: Needs) -> None:
        """The rule `archive_full`, for a segment that cannot be archived. Raises: Stuck."""
        first_block = int(segment.header.first_block)
        pinned = needed.pins_alone().log(first_block=first_block, last_block=last_block)
        if self._rules.when_full == "stop" or pinned:
            raise Stuck(f"{why}; retried until there is room, or a restart with archive_full=shorten or a smaller window")
        self.given_up += 1
        log.warning("segment_not_archived", first_block=first_block, last_block=last_block, reason=why)

    def _drop_spare(self, needed: Needs) -> bool:
        """Gives up the oldest snapshot of the archive without which every moment can still be restored."""
        oldest = archive_retention.spare_snapshot(self._index.snapshots, needed)
        if oldest is None:
            return False
        remove_folder(self._place, oldest.path)
        self._index.refresh()
        return True

    def _drop_oldest(self, needed: Needs) -> bool:
        """Gives up the oldest segment of the archive that no point needs, and snapshots that are of no use without it."""
        oldest = archive_retention.oldest_unpinned_segment(self._index.segments, needed)
        if oldest is None:
            return False
        remove_segment(self._place, oldest)
        self.given_up += 1
        log.warning("archived_segment_dropped", file=oldest.name)
        self._index.refresh()
        for snapshot in self._useless():
            remove_folder(self._place, snapshot.path)
        self._index.refresh()
        return True

    def _useless(self, leaving: str = "") -> list[Snapshot]:
        """Snapshots of the archive, and the one at the path `leaving`, without the log after them that nothing else needs."""
        points, _ = list_points(self._place.files, self._place.directory)
        return archive_retention.useless_snapshots(
            self._index.snapshots, self._partitions, points, log_from=self._log_from(), leaving=leaving
        )

    def _purge(self, needed: Needs) -> None:
        """Removes what nothing needs any more."""
        if not self._purges:
            return
        segments = archive_retention.unneeded_segments(self._index.segments, needed)
        snapshots = archive_retention.unneeded_snapshots(self._index.snapshots, needed)
        for segment in segments:
            remove_segment(self._place, segment)
        for snapshot in snapshots:
            remove_folder(self._place, snapshot.path)
        if segments or snapshots:
            self._index.refresh()

    def _needs(self) -> Needs:
        points, self._bad_points = list_points(self._place.files, self._place.directory)
        if self._bad_points:  # what it pins is unknown
            return Needs(frozenset((s.partition, s.name) for s in self._index.snapshots), 0, ())
        begin = window_begin(now_millis=self._now_millis(), window_s=self._rules.window_s)
        return needs(self._index.snapshots, self._partitions, begin=begin, points=points)

    def _nothing_is_promised(self) -> bool:
        points, bad = list_points(self._place.files, self._place.directory)
        return not (self._rules.window_s or points or bad)

    # -- what is shown ---------------------------------------------------------------------------------------------------

    def _warn_of_promise(self) -> None:
        """Raises: DiskFull, when it has been logged."""
        log.warning(
            "retention_window_abandoned",
            promised_window_s=self._reported_unkept_s(),
            retention_window_s=self._rules.window_s,
            remedy="older moments stop being restorable: start with that retention_window_s; see `cmdlog archive verify`",
        )
        archive_retention.end_promise(self._place.files, self._place.directory, now_millis=self._now_millis())

    def _reported_unkept_s(self) -> float | None:
        """None as well of a file that cannot be read: it promises everything."""
        return self._unkept_s if 0 < self._unkept_s < math.inf else None

    def _note_problem(self, problem: str) -> None:
        if self._stopping:
            return
        if problem != self.problem:
            log.error("archiving_blocked", reason=problem)
        if not self.problem:
            self._problem_since = time.time()
        self.problem = problem

    def _log_from(self) -> int:
        """First block of the log that is there without a gap, archive and ring together."""
        live = self._wal.segments
        run = run_before(self._index.segments, live[0].header)
        return run[0].first_block if run else int(live[0].header.first_block)

    def _refresh_status(self) -> None:
        log_from = self._log_from()
        oldest = oldest_restorable(self._index.snapshots, self._partitions, log_from=log_from)
        if log_from == 1 and self._log_begins_empty():
            oldest = 0
        self._status = {
            "bytes": self._index.bytes,
            "bytes_max": self._rules.bytes_max or None,
            "segments": len(self._index.segments),
            "snapshots": sum(snapshot.archived for snapshot in self._index.snapshots),
            "window_s": self._rules.window_s,
            "unkept_window_s": self._reported_unkept_s(),
            "promise_problem": archive_retention.promise_problem(self._place.files, self._place.directory) or None,
            "when_full": self._rules.when_full,
            "first_block": log_from,
            "damaged_points": [point.name for point in self._bad_points],
            **describe_reach(
                oldest,
                now_millis=self._now_millis(),
                window_s=self._rules.window_s,
                unkept_s=self._unkept_s,
                log_from=log_from,
            ),
        }

    def _log_begins_empty(self) -> bool:
        """Whether block 1 is the beginning of everything, and not of a node that a recovery made from an older one."""
        if self._begins_empty is None:
            segments = [s.segment for s in self._index.segments if s.segment is not None and s.first_block == 1]
            first = next(iter([*segments, *self._wal.segments]))
            self._begins_empty = begins_empty(self._place.files, first)
        return self._begins_empty
