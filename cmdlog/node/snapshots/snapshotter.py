"""Snapshots of the running node: when one is due, how it is made, and what the log may let go because of it.

One rule: the log gives nothing up before the proof of its replacement is durable. The order, and what a crash after each leaves:

    1 capture    the site copies pages between batches, or   a temporary folder, removed at start
                 the rows that changed since an earlier one
    2 wait       until the image's entries are durable       the same
    3 seal       checksums, fsync, rename, fsync, read back  the same, or a snapshot that nothing relies on yet
    4 mark       SNAPSHOT_MARK in the log, durable           a snapshot; the log still reaches back to the old anchor
    5 anchor     moves to the snapshot to fall back to       segments before it may go; moved again at start
    6 retention  more than `snapshots_kept`: the oldest go   more snapshots than wanted, fewer after the next one

A site executes ahead of the disk. So an image may hold what a power cut takes, and gets no name before it cannot. A log without
room for the mark goes without: the snapshot that makes room needs none.

The anchor is the block of the newest snapshot that shares no file with the newest one (`snapshot.retention`), in general the
second-newest, so that a damaged newest one falls back to its predecessor and a longer log. Any entry after an image lies in the
image's `log_block` or later; for an idle partition that is the log's last block, or an idle partition would hold the whole log.

One thread decides and waits; pages are copied by the sites, checksums are made by a process of low priority
(`snapshot.capture.seal`).
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

import structlog

from cmdlog.node.background.quarantine_moves import set_aside
from cmdlog.node.background.running_work import RunningWork, Work
from cmdlog.node.background.snapshot_schedule import Due, Forecast, LogView, SnapshotPolicy, due, urgency
from cmdlog.node.boot import ManifestFacts
from cmdlog.node.sequencing.sequencer import Sequencer
from cmdlog.node.settings import Settings
from cmdlog.node.sites.inline_sites import InlineSites
from cmdlog.node.sites.supervisor import ProcessSites
from cmdlog.node.snapshots.snapshot_maker import SnapshotMaker
from cmdlog.wal.errors import WalError
from cmdlog.wal.files import Files
from cmdlog.wal.ids import BlockNumber, Lsn
from cmdlog.wal.log import Log
from cmdlog.wal.process_limits import worker_count
from replay.state.trust import state_path
from snapshot.archive.archive import bytes_of
from snapshot.capture.capture import BUSY_SHARE
from snapshot.catalog import Snapshot, clean, describe_snapshot, list_snapshots, temporary_path
from snapshot.errors import SnapshotError, SnapshotFailed
from snapshot.manifest import DELTA_NAME, parse_created
from snapshot.recovery_points import Point, describe_points, keep_points, list_points, write_point
from snapshot.retention import anchor_block, next_wish, retain
from snapshot.space_reserve import Reserve, wanted_bytes

LOOK_EVERY_S: Final = 0.5  # at the log's fill; a segment of 16 MiB takes about as long at full speed
RETRY_FIRST_S: Final = 1.0  # after a failure; doubled up to RETRY_MAX_S
RETRY_MAX_S: Final = 60.0
SHARE_MAX: Final = 0.4  # of a busy site's time, that copying may take when truncation is pressing

log = structlog.get_logger("cmdlog.snapshots")


@dataclass(frozen=True, slots=True)
class Job:
    """Somebody's wish: a snapshot of each of these partitions, and perhaps a recovery point of them together."""

    partitions: Sequence[int]
    point: bool
    future: Future[dict[str, Any]]
    aside: Mapping[str, str]  # paths of damaged ones -> where they are moved first, for good


class Snapshotter:
    """The node's snapshot thread. `captured`, `lost`, `request_snapshots` may be called from any thread."""

    def __init__(
        self,
        files: Files,
        settings: Settings,
        *,
        wal: Log,
        sequencer: Sequencer,
        sites: InlineSites | ProcessSites,
        facts: ManifestFacts,
        work: RunningWork,
        let_go: Callable[[Snapshot], None],
    ) -> None:
        """From now on the log keeps what the snapshots need; `let_go` gets one that does not count any more."""
        self._files, self._settings, self._wal, self._directory = files, settings, wal, wal.directory
        self._sequencer, self._sites, self._let_go = sequencer, sites, let_go
        self._policy = SnapshotPolicy(settings.snapshot_log_fraction, settings.snapshot_age_max_s, settings.recovery_budget_s)
        self._partitions, self._workers = range(settings.partitions), worker_count()  # a start looks at it again
        self._speeds, self._running_work = sequencer.meter.speeds, work
        self._work = Work("snapshot", "", time.monotonic)  # the one under way
        self.reserve = Reserve(wal.directory)
        self._lock = threading.Condition()
        self._wanted: deque[Job] = deque()
        self._whole_next: set[int] = set()  # partitions of which a delta has failed: what is wrong with it may stay so
        self._stopping = False
        self._retry_at, self._retry_s = 0.0, RETRY_FIRST_S
        self._snapshots: dict[int, list[Snapshot]] = {}
        self.error = ""  # why the last attempt failed, "" when it did not
        self.why = ""  # the last one was taken: request, log, budget, age
        self.taken = self.failures = 0
        self.last_s = 0.0  # how long the last one took
        self._began_at = time.time()
        self._maker = SnapshotMaker(
            files, wal, sequencer=sequencer, sites=sites, facts=facts, set_pace=self._set_pace,
            pressing=lambda: self._urgency() >= 1,
        )  # fmt: skip
        self._thread = threading.Thread(target=self._run, name="snapshots", daemon=True)
        clean(files, wal.directory)
        self._find_snapshots()
        for partition in self._partitions:
            self._set_anchor(partition)

    # -- the node's side -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def request_snapshots(
        self, partitions: Sequence[int], *, point: bool = False, aside: Mapping[str, str] = MappingProxyType({})
    ) -> Future[dict[str, Any]]:
        """Asks for snapshots now; the future gets `snapshots`, a description of each, or SnapshotFailed.

        With `point` it also gets `point`: a transaction id at which these partitions can be restored together, now durable.
        `aside`: damaged snapshots of these partitions, by path, and where they are moved before; the new ones are whole images.
        """
        job = Job(partitions, point, Future(), aside)
        with self._lock:
            if self._stopping:
                job.future.set_exception(SnapshotFailed("the node is stopping"))
                return job.future
            self._wanted.append(job)
            self._lock.notify_all()
        return job.future

    def captured(self, ident: int, report: dict[str, Any]) -> None:
        """A site has completed the image; called in the order in which the site answers."""
        self._maker.capture.complete(ident, report)

    def lost(self, partitions: Sequence[int]) -> None:
        """Sites have ended, and their captures with them."""
        self._maker.capture.lose(partitions)

    def listed(self) -> list[dict[str, Any]]:
        """Every snapshot, by partition and age."""
        return [describe_snapshot(snapshot) for p in sorted(self._snapshots) for snapshot in self._snapshots[p]]

    def points(self) -> list[dict[str, Any]]:
        """Every recovery point, by transaction id."""
        return describe_points(*list_points(self._files, self._directory))

    def status(self) -> dict[str, Any]:
        """How truncation goes: counts, the last one's reason and time, the space that is reserved, the recovery points."""
        return {
            "taken": self.taken,
            "failures": self.failures,
            "last_why": self.why or None,
            "last_s": round(self.last_s, 3),
            "error": self.error or None,
            "reserve_bytes": self.reserve.held_bytes,
            "reserve_problem": self.reserve.problem or None,
            "points": len(self.points()),
        }

    def newest(self, partition: int) -> Snapshot | None:
        """The newest usable snapshot."""
        return max((s for s in self._snapshots.get(partition, ()) if s.manifest is not None), key=lambda s: s.order, default=None)

    def newest_of_each(self) -> dict[int, Snapshot]:
        """By partition; those without any are not in it."""
        return {p: newest for p in self._partitions if (newest := self.newest(p)) is not None}

    def forecast(self) -> Forecast:
        """How long a recovery from snapshots and log would take if the power went now. Any thread."""
        newest = self.newest_of_each()
        restore_s = {p: self._speeds.restore_s(newest[p].chain_bytes if p in newest else 0) for p in self._partitions}
        return Forecast({p: self._speeds.replay_s(p) for p in self._partitions}, restore_s, self._workers)

    def stop(self) -> None:
        """Interrupts what is under way; harmless at any step."""
        with self._lock:
            self._stopping = True
            self._lock.notify_all()
        self._maker.stop()
        if self._thread.is_alive():
            self._thread.join()
        for job in self._wanted:
            job.future.set_exception(SnapshotFailed("the node is stopping"))

    # -- the thread ------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._hold_reserve()
        while (job := self._next_job()) is not None:
            wanted = job.partitions if isinstance(job, Job) else (job.partition,)
            self.why = job.why if isinstance(job, Due) else "request"
            try:
                with self._running_work.track("snapshot", f"snapshot of {_partitions_text(wanted)}") as self._work:
                    result = self._carry_out(job, wanted)
            except (SnapshotError, WalError, OSError) as error:
                self._note_failure(wanted, error)
                failed: SnapshotError = error if isinstance(error, SnapshotError) else SnapshotFailed(str(error))
            except Exception as error:  # our own bug: without this thread the log fills and never empties
                log.exception("snapshot_failed", partitions=list(wanted))
                self._note_failure(wanted, error)
                failed = SnapshotFailed(f"{type(error).__name__}: {error}")
            else:
                self.error, self._retry_s = "", RETRY_FIRST_S
                if isinstance(job, Job):
                    job.future.set_result(result)
                continue
            if isinstance(job, Job):
                job.future.set_exception(failed)

    def _carry_out(self, job: Job | Due, wanted: Sequence[int]) -> dict[str, Any]:
        if isinstance(job, Job) and job.aside:
            set_aside(self._files, job.aside)
            self._whole_next.update(wanted)  # what a delta would be based on may be the next that is found damaged
            self._find_snapshots()
            for partition in wanted:  # the log is held from where those that are left need it, before anything is made of them
                self._set_anchor(partition)
        return self._do(wanted, point=isinstance(job, Job) and job.point)

    def _next_job(self) -> Job | Due | None:
        """Waits for something to do; None when the node stops."""
        with self._lock:
            while not self._stopping:
                if self._wanted:
                    return self._wanted.popleft()
                if time.monotonic() >= self._retry_at and (next_one := self._due()) is not None:
                    return next_one
                self._lock.wait(LOOK_EVERY_S)
        return None

    def _due(self) -> Due | None:
        forecast = self.forecast() if self._policy.budget_s else None
        ages_s = self._ages_s() if self._policy.age_max_s else None
        return due(self._policy, self._log_view(), self._snapshots, self._partitions, forecast=forecast, ages_s=ages_s)

    def _ages_s(self) -> dict[int, float]:
        """Of the newest snapshot of each partition that has executed calls since; of the node itself when there is none."""
        now = time.time()
        ages = {}
        for partition in self._partitions:
            if self._speeds.calls_behind(partition):
                newest = self.newest(partition)
                created = parse_created(newest.manifest.created) if newest is not None and newest.manifest is not None else None
                ages[partition] = now - (created or self._began_at)
        return ages

    def _do(self, partitions: Sequence[int], *, point: bool) -> dict[str, Any]:
        """A snapshot of each partition. The transaction id of a point is read before the last of them is marked in the log.

        Every id given until then is in a block that the log has taken, and the point is made when all of these are durable.
        """
        closed: list[int] = []
        made = [self._make(p, before_mark=lambda: closed.append(self._sequencer.clock.closed())) for p in partitions]
        if not point:
            return {"snapshots": made}
        return {"snapshots": made, "point": self._make_point(closed[-1], made)}

    def _make(self, partition: int, *, before_mark: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """All six steps. On return the snapshot is verified, marked in the log, and counts."""
        began = time.monotonic()
        self.reserve.make_room(wanted_bytes(self._state_bytes(partition)))
        try:
            made = self._make_with_space(partition, before_mark)
        finally:
            self._hold_reserve()
        self.taken, self.last_s = self.taken + 1, time.monotonic() - began
        shown = {name: made[name] for name in ("index", "kind", "bytes")}
        log.info("snapshot_taken", partition=partition, **shown, why=self.why, seconds=round(self.last_s, 3))
        return made

    def _make_with_space(self, partition: int, before_mark: Callable[[], None]) -> dict[str, Any]:
        temporary = temporary_path(self._directory, partition)
        wish, base = next_wish(self._snapshots[partition], os.path.join(temporary, DELTA_NAME))
        if partition in self._whole_next:
            wish, base = replace(wish, base=None, keys_max=0), None
        os.mkdir(temporary, 0o750)
        try:
            made = self._maker.make(wish, base, partition, temporary, self._work, asked=self.why == "request")
        except BaseException:
            self._whole_next ^= {partition}  # in turns: a whole image may be what there is no room for
            raise
        self._whole_next.discard(partition)
        before_mark()
        self._work.enter("marking it in the log")
        self._maker.mark(made)
        self._work.enter("removing older ones")
        self._speeds.settle_snapshot(partition, self._maker.capture.marked)
        self._find_snapshots()
        self._set_anchor(partition)
        retain(self._files, self._snapshots[partition], kept=self._settings.snapshots_kept, let_go=self._let_go)
        self._find_snapshots()
        return next(describe_snapshot(found) for found in self._snapshots[partition] if found.path == made["path"])

    def _make_point(self, txn_id: int, made: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The recovery point at `txn_id` of these snapshots, described; durable on return.

        It is written last, when every id up to its own is in a block that is durable. Raises: SnapshotFailed, WalError.
        """
        feed = self._sequencer.log_feed
        if not self._maker.wait(feed.when_taken_is_durable, lambda: self._stopping or not feed.notes_fit):
            raise SnapshotFailed("the log has no room for the record of the recovery point; its snapshots remain valid")
        point = Point(
            txn_id,
            time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            {snapshot["partition"]: snapshot["name"] for snapshot in made},
            from_block=min(snapshot["log_block"] for snapshot in made),
            to_block=self._wal.durable_block,
        )
        write_point(self._files, self._directory, point)
        gone = keep_points(self._files, self._directory, kept=self._settings.points_kept)
        for old in gone:
            log.warning(
                "recovery_point_dropped", txn_id=str(old.txn_id), created=old.created, points_kept=self._settings.points_kept
            )
        log.info("recovery_point_created", txn_id=str(txn_id), removed=[str(old.txn_id) for old in gone])
        return describe_points([point], ())[0]

    def _set_pace(self, partition: int) -> None:
        """The nearer the log is to its limit, or the forecast to the budget, the more of its time a site gives to the copy."""
        self._sites.pace(partition, min(max(BUSY_SHARE, SHARE_MAX * self._urgency() / 2), SHARE_MAX))

    def _urgency(self) -> float:
        return urgency(self._policy, self._log_view(), self.forecast())

    def _hold_reserve(self) -> None:
        """Room for the largest image that any partition may need next."""
        self.reserve.hold(wanted_bytes(max((self._state_bytes(p) for p in self._partitions), default=0)))

    def _log_view(self) -> LogView:
        wal = self._wal
        return LogView(wal.first_blocks(), wal.instance.segments, full=wal.room_bytes < self._settings.call_bytes_max)

    def _state_bytes(self, partition: int) -> int:
        return bytes_of(state_path(self._directory, partition))

    def _set_anchor(self, partition: int) -> None:
        block = anchor_block(self._snapshots[partition]) or 0
        self._wal.anchors.set(f"snapshot-p{partition:04d}", Lsn(BlockNumber(block), 0))

    def _find_snapshots(self) -> None:
        by_partition: dict[int, list[Snapshot]] = {p: [] for p in self._partitions}
        for snapshot in list_snapshots(self._files, self._directory, self._wal.instance.identity):
            by_partition.setdefault(snapshot.partition, []).append(snapshot)
        self._snapshots = by_partition

    def _note_failure(self, partitions: Sequence[int], error: Exception) -> None:
        if self._stopping:
            return
        self.error, self.failures = str(error), self.failures + 1
        self._retry_at = time.monotonic() + self._retry_s
        log.error("snapshot_failed", partitions=list(partitions), reason=str(error), retry_s=self._retry_s)
        self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)
        with contextlib.suppress(SnapshotError, WalError, OSError):
            self._find_snapshots()


def _partitions_text(partitions: Sequence[int]) -> str:
    return f"partition{'s' if len(partitions) > 1 else ''} {', '.join(map(str, partitions))}"
