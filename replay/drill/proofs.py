"""The proofs of a drill: is what there is of each partition enough to restore it?

Proofs per partition, each with all that a recovery does (checksums, the log's own evidence, the digests of the live run):

    newest   the newest snapshot is restored; its tables have the digests that its manifest states; it is replayed to the end of
             a batch drawn at random after it. Without a second proof, or a snapshot, to the end of the log
    second   the newest snapshot that shares no file with it is restored and replayed to exactly the newest one's last entry; all
             tables have the digests of the restored newest one
    oldest   what is older still, at best the log's first entry, is replayed to exactly the entry at which the path of the second
             proof begins, or to the newest snapshot's when there is no second; all tables have the digests of that one
    moment   where a past was promised: all partitions are restored to a moment drawn at random from it, from the archive

The second proof compares two paths to one state: an image of what the live run had, and an older image with the log in between. A
row that changed in an image together with its checksums, a procedure that is not deterministic, an entry that is missing in the
log: each makes the two paths end in different tables. A row that changed in the live state is in both images. Only what is older
than the change shows it: so the third proof goes back as far as log and archive lead (`replay.drill.proof_start`).
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from cmdlog.wal.errors import WalError
from cmdlog.wal.files import Files
from procedures.execution import hash_seed
from procedures.storage.state import Position
from replay.drill.proof_start import LongestPaths, draw_moment, find_ways, oldest_moment, scan_all
from replay.drill.report import DrillReport, Proof
from replay.drill.view import ViewChanged
from replay.errors import PlanOutdated, ReplayError, UntilBeyond, UntilUnreachable
from replay.log.scan import Scan, ScannedStream
from replay.log.source import LogSource, fold_end, open_source
from replay.plan.node_plan import PartitionPlan, Planned
from replay.plan.planner import MEMBER_PAST, PAST, PROOF, make_plan
from replay.plan.sole_voter import other_nodes
from replay.recover.execute import WORKER_BYTES_MIN, RecoveryProgress, Target, execute
from replay.results import PartitionResult
from replay.state.trust import STATE_FOLDER, state_path
from snapshot.background_io import remove_tree
from snapshot.catalog import Snapshot, list_archived, list_snapshots, restore
from snapshot.errors import SnapshotDamaged, SnapshotError
from snapshot.manifest import Manifest
from snapshot.retention import fallback
from snapshot.table_digest import TableDigest, open_image, table_digests

ROOM_BYTES_MIN: Final = 256 << 20  # stay free on the disk, which may be the running node's
ROOM_SHARE: Final = 1.2  # of the snapshots' size: the states grow while they are replayed


class DrillDiverged(ReplayError):
    """Two paths to one state ended in different tables, or a call behaved differently from the live run."""

    exit_code = 16
    hint = (
        "do not rely on this node's snapshots: keep the directory, check disk and memory, and see `cmdlog check` for what makes "
        "procedures diverge"
    )


class SnapshotWrong(DrillDiverged):
    """A snapshot holds rows that differ from those that the log leads to: the live state had them when it was taken."""

    hint = (
        "move it and every newer one of the partition out of snapshots/ of a stopped node, and `cmdlog recover DIR --to OUT` "
        "restores what the log says; check disk and memory, and see `cmdlog check` for what makes procedures diverge"
    )


class DrillDamaged(ReplayError):
    """What a recovery would start with cannot be used."""

    exit_code = 10
    hint = "a recovery would fall back to an older snapshot and a longer log; take a new snapshot, and check the disk"


class NoRoom(ReplayError):
    """The disk has no room for a restored copy."""

    exit_code = 14
    hint = "choose another folder with --work, or free space on that volume"


class DrillProofs:
    """The proofs of all partitions, over the files as they are now."""

    def __init__(
        self, files: Files, report: DrillReport, view: str, temporary: str, progress: Callable[[RecoveryProgress], None]
    ) -> None:
        self._files, self._report, self._temporary, self._progress = files, report, temporary, progress
        self._directory = view
        self._chance = random.Random(report.seed)
        self._expected: dict[int, dict[str, TableDigest]] = {}  # tables of the restored newest snapshots
        self._older: dict[int, dict[str, TableDigest]] = {}  # of those where the second proof begins

    def run(self) -> None:
        planned = self._plan()
        snapshots = list_snapshots(self._files, self._directory, planned.source.instance.identity)
        of = {part.partition: [s for s in snapshots if s.partition == part.partition] for part in planned.plan.partitions}
        newest = {part.partition: _newest(part, of[part.partition]) for part in planned.plan.partitions}
        seconds = {p: second for p, s in newest.items() if s is not None and (second := fallback(of[p])) is not None}
        targets = {p: seconds.get(p, s) for p, s in newest.items() if s is not None}
        ways = find_ways(self._files, planned, snapshots, targets)
        self._report.log_begins = dict(ways.begins)
        try:
            self._first(planned, newest, seconds)
            self._second(planned, newest, seconds)
            self._oldest(planned, ways, targets)
            self._moment(planned)
        except (SnapshotError, OSError, PlanOutdated) as error:
            begins = [start.snapshot for start in ways.starts.values()]
            used = [link for s in [*newest.values(), *seconds.values(), *begins] if s is not None for link in s.chain]
            if all(os.path.exists(snapshot.path) for snapshot in used):
                raise
            raise ViewChanged from error

    def _plan(self, until: int | None = None) -> Planned:
        """Of a member of a cluster up to the last entry that it has executed, as its own start would: the rest others decide."""
        files, directory = self._files, self._directory
        source = open_source(files, directory)
        others = other_nodes(fold_end(source), source.instance.identity.node_id)
        if not others:
            return make_plan(files, directory, PAST, until=until)
        planned = make_plan(files, directory, PROOF if until is None else MEMBER_PAST, until=until, source=source)
        if until is None:
            ends = {p: stream.last_index for p, stream in planned.scan.streams.items()}
            parts = planned.plan.partitions
            self._report.undecided = {p.partition: n for p in parts if (n := ends[p.partition] - p.to_index)}
            self._report.members = tuple(sorted(others))
        return planned

    def _first(self, planned: Planned, newest: Mapping[int, Snapshot | None], seconds: Collection[int]) -> None:
        """Each newest snapshot is what its manifest states, and leads to a moment after it; to the log's end without a second."""
        self._check_room([s for s in newest.values() if s is not None])
        parts = []
        for part in planned.plan.partitions:
            snapshot = newest[part.partition]
            if part.partition in seconds:
                end = self._chance.randint(part.from_index, part.to_index)
                part = replace(part, to_index=end, to_term=0, to_checksum=0)  # noqa: PLW2901 - the same part, cut short
            if snapshot is not None:
                part = self._restored(part, snapshot)  # noqa: PLW2901 - as above
                self._expected[part.partition] = self._digests(part.partition)
                _compare_with_manifest(snapshot, self._expected[part.partition])
            parts.append(part)
        for result in self._replay(planned.with_parts(parts)):
            part = next(part for part in planned.plan.partitions if part.partition == result.partition)
            tables = self._expected.get(result.partition, {})
            self._report.newest[result.partition] = _proof(part.name, part.from_index, result, tables)
        self._clear()

    def _second(self, planned: Planned, newest: Mapping[int, Snapshot | None], seconds: Mapping[int, Snapshot]) -> None:
        """Each second path leads to the tables of the newest snapshot."""
        if not seconds:
            return
        self._check_room(list(seconds.values()))
        source = planned.source
        found = scan_all(source, planned, {p: snapshot.index for p, snapshot in seconds.items()})
        parts = []
        for p in sorted(seconds):
            m = _manifest(seconds[p])
            begin = Position(m.index, m.term, m.checksum, m.txn_id)
            parts.append(self._restored(_part_to(begin, _manifest(newest[p]), found.streams[p]), seconds[p]))
            self._older[p] = self._digests(p)
        for result in self._replay(_planned(planned, source, found, parts)):
            p = result.partition
            tables = self._digests(p)
            _compare(
                f"partition {p} at index {result.index}: {seconds[p].name} plus the log after it",
                tables,
                f"snapshot {_manifest_name(newest[p])}",
                self._expected[p],
            )
            self._report.second[p] = _proof(seconds[p].name, seconds[p].index, result, tables)
        self._clear()

    def _oldest(self, planned: Planned, ways: LongestPaths, targets: Mapping[int, Snapshot]) -> None:
        """The older states lead to the tables that the other proofs began with."""
        if not ways.starts:
            return
        self._check_room([targets[p] for p in ways.starts])
        parts = []
        for p, start in ways.starts.items():
            part = _part_to(start.position, _manifest(targets[p]), ways.found.streams[p])
            parts.append(replace(part, source="empty") if start.snapshot is None else self._restored(part, start.snapshot))
        for result in self._replay(_planned(planned, ways.source, ways.found, parts)):
            p, name = result.partition, targets[result.partition].name
            start, tables = ways.starts[p], self._digests(p)
            _compare(
                f"partition {p}: snapshot {name} does not match the log: its tables",
                self._older.get(p, self._expected[p]),
                f"those replayed from {start.name or 'the first entry'} to index {result.index}",
                tables,
                SnapshotWrong,
            )
            self._report.oldest[p] = _proof(start.name, start.position.index, result, tables)
        self._clear()

    def _moment(self, planned: Planned) -> None:
        """A moment of the promised past can be restored, from the files that a recovery would choose for it."""
        files, directory = self._files, self._directory
        newest = max(part.to_txn for part in planned.plan.partitions)
        draw = partial(draw_moment, files, directory, planned.source, newest=newest)
        if (until := draw(self._chance)) is None:
            return
        self._report.moment_txn = until
        try:
            past = self._plan(until)
            used = {part.name for part in past.plan.partitions}
            self._check_room([s for s in self._all_snapshots(past) if s.name in used])
            results = self._replay(past)
        except (ReplayError, SnapshotError, WalError, OSError) as error:
            oldest = oldest_moment(files, directory, planned.source, newest=newest)
            if oldest is None or until < oldest or isinstance(error, FileNotFoundError | PlanOutdated):
                raise ViewChanged from error  # the window advanced meanwhile, or a file was moved into the archive
            if isinstance(error, UntilUnreachable | UntilBeyond):
                raise DrillDamaged(f"transaction {until} of the promised window cannot be restored: {error.args[0]}") from error
            raise
        by_partition = {part.partition: part for part in past.plan.partitions}
        for result in results:
            part, tables = by_partition[result.partition], self._digests(result.partition)
            self._report.moment[result.partition] = _proof(part.name, part.from_index, result, tables)
        self._report.archive = past.plan.archive
        self._clear()

    def _all_snapshots(self, planned: Planned) -> list[Snapshot]:
        identity = planned.source.instance.identity
        return [f for of in (list_archived, list_snapshots) for f in of(self._files, self._directory, identity)]

    def _restored(self, part: PartitionPlan, snapshot: Snapshot) -> PartitionPlan:
        """Restores the snapshot into the temporary folder; the part then begins with that state."""
        path = state_path(self._temporary, part.partition)
        restore(snapshot, path)
        return replace(part, source="state", name=path)

    def _replay(self, planned: Planned) -> Sequence[PartitionResult]:
        # One process at most: the others of the machine have other things to do.
        busy = planned.plan.log_bytes >= WORKER_BYTES_MIN or not hash_seed.is_pinned()
        target = Target(self._files, self._temporary)
        return execute(planned, target, workers=int(busy), progress=self._progress).results

    def _digests(self, partition: int) -> dict[str, TableDigest]:
        connection = open_image(state_path(self._temporary, partition))
        try:
            return table_digests(connection)
        finally:
            connection.close()

    def _check_room(self, snapshots: list[Snapshot]) -> None:
        wanted = int(ROOM_SHARE * sum(link.manifest.bytes for s in snapshots for link in s.chain if link.manifest is not None))
        check_space(self._temporary, wanted)

    def _clear(self) -> None:
        folder = os.path.join(self._temporary, STATE_FOLDER)
        remove_tree(folder)
        os.mkdir(folder, 0o750)


def check_space(folder: str, wanted: int) -> None:
    """Raises: NoRoom."""
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    if free < wanted + ROOM_BYTES_MIN:
        raise NoRoom(
            f"{folder} has {free >> 20} MiB free; log and restored states take {wanted >> 20} MiB, "
            f"and {ROOM_BYTES_MIN >> 20} MiB stay free"
        )


def _newest(part: PartitionPlan, snapshots: list[Snapshot]) -> Snapshot | None:
    """The partition's newest snapshot, which the plan uses; None: it has none. Raises: DrillDamaged when it cannot be used."""
    newest = max(snapshots, key=lambda snapshot: snapshot.order, default=None)
    if newest is None or newest.name == part.name:
        return newest
    why = {passed.name: passed.why for passed in part.passed}.get(newest.name)
    if why is None:
        raise ViewChanged
    raise DrillDamaged(f"snapshot {newest.name} of partition {part.partition} cannot be used: {why}")


def _part_to(begin: Position, end: Manifest, stream: ScannedStream) -> PartitionPlan:
    """From one state's last entry to that of a newer snapshot."""
    p = end.partition
    if begin.index < stream.base:
        raise DrillDamaged(f"partition {p}: the log begins after index {stream.base}, the older state ends at {begin.index}")
    if begin.index > stream.base and stream.seen.get(begin.index) != (begin.term, begin.checksum):
        raise DrillDamaged(f"partition {p}: the older snapshot holds a different entry at index {begin.index} than the log")
    return PartitionPlan(
        partition=p,
        source="snapshot",
        from_index=begin.index,
        from_term=begin.term,
        from_checksum=begin.checksum,
        to_index=end.index,
        to_term=end.term,
        to_checksum=end.checksum,
        to_txn=end.txn_id,
        entries=end.index - begin.index,
        calls=stream.calls,
        bytes=stream.bytes,
        why="from the older snapshot to the newest one",
        skips=stream.skips,
        voids=tuple(stream.voids),
    )


def _compare_with_manifest(snapshot: Snapshot, found: Mapping[str, TableDigest]) -> None:
    manifest = _manifest(snapshot)
    if manifest.kind == "full":  # of a delta the manifest states its own rows; what they make of the base, the second proof says
        stated = {table.name: TableDigest(table.rows, table.sha256) for table in manifest.tables}
        _compare(f"partition {snapshot.partition}: the restored tables of {snapshot.name}", found, "its manifest", stated)


def _compare(
    what: str,
    found: Mapping[str, TableDigest],
    other: str,
    expected: Mapping[str, TableDigest],
    error: type[DrillDiverged] = DrillDiverged,
) -> None:
    """Raises: `error` naming the tables."""
    wrong = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
    if wrong:
        rows = ", ".join(f"{name} ({_rows(found, name)} rows against {_rows(expected, name)})" for name in wrong)
        raise error(f"{what} and {other} differ in {rows}")


def _rows(tables: Mapping[str, TableDigest], name: str) -> str:
    return str(tables[name].rows) if name in tables else "no"


def _planned(planned: Planned, source: LogSource, found: Scan, parts: Sequence[PartitionPlan]) -> Planned:
    """Other parts of the same node, from this pass over its log."""
    plan = replace(planned.plan, from_block=found.from_block, last_block=found.last_block, row_digests=found.row_digests)
    return Planned(plan, lambda: source, found).with_parts(parts)


def _proof(name: str, from_index: int, result: PartitionResult, tables: Mapping[str, TableDigest]) -> Proof:
    rows = sum(table.rows for table in tables.values())
    return Proof(name, from_index, result.index, result.txn_id, result.calls, result.digests, len(tables), rows)


def _manifest(snapshot: Snapshot | None) -> Manifest:
    if snapshot is None or snapshot.manifest is None:
        raise SnapshotDamaged("a snapshot lost its manifest in the meantime")
    return snapshot.manifest


def _manifest_name(snapshot: Snapshot | None) -> str:
    return snapshot.name if snapshot is not None else ""
