"""What an executor does for a rebuild: brings one partition to each of the wanted moments and writes its tables there.

One rule: it carries out plans with `replay.recover.execute.execute`, as `cmdlog recover` does, digests compared, and decides
nothing.

One state file goes from moment to moment. A moment within a batch is read in a copy, since no replay can continue from half a
batch: the state file itself stays before that batch.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from cmdlog.wal.files import Files
from procedures.execution import hash_seed
from replay.errors import ReplayError
from replay.plan.node_plan import Plan, Planned
from replay.recover.execute import RecoveryProgress, Target, execute
from replay.results import PartitionResult
from replay.spark.jobs.fetched_inputs import at_hand, bring_images
from replay.spark.jobs.past_replay import naming_damage
from replay.spark.jobs.task_attempt import Attempt
from replay.state.trust import STATE_FOLDER, state_path
from snapshot.export import TableSource, declarations, write_tables
from snapshot.table_digest import open_image, table_digest


class NoSuchTable(ReplayError):
    """A requested table does not exist."""

    exit_code = 2


@dataclass(slots=True)
class StateRebuild:
    """One partition's state while it is replayed."""

    partition: int
    target: Target
    note: Callable[[int], None]
    calls: int = 0  # that were replayed on the way

    def to(self, legs: Sequence[Plan]) -> PartitionResult:
        """Replays to the end of these legs, from a state or from their beginning. Raises: what `execute` raises."""
        result = PartitionResult(self.partition)
        for leg in legs:
            part = leg.partitions[0]
            if leg is not legs[-1] and self._index() >= part.to_index:
                continue
            bring_images(self.target.files, [leg])
            with naming_damage(self.target.files, leg):
                workers = 0 if hash_seed.is_pinned() else 1  # Spark pins the seed of its Pythons, unless it was given another one
                report = execute(
                    Planned.of(self.target.files, leg), self.target, workers=workers, progress=self._report_progress, go_on=True
                )
            result = report.results[0]
            self.calls += result.calls
        return result

    def _report_progress(self, progress: RecoveryProgress) -> None:
        self.note(self.calls + progress.done - progress.before)

    def _index(self) -> int:
        position = self.target.trust.position(self.partition)
        return -1 if isinstance(position, str) else position.index


def make_target(folder: str, files: Files) -> Target:
    """A folder for states. `files` also serve what is replayed."""
    os.makedirs(os.path.join(folder, STATE_FOLDER), mode=0o750)
    return Target(files, folder)


def rebuild_partition(order: Mapping[str, Any], attempt: Attempt) -> dict[str, Any]:
    """Does the work of one order. Raises: Divergence, Poison, WalError, NoSuchTable, …"""
    with at_hand(order, attempt.scratch) as (here, files):
        return _rebuild(here, attempt, files)


def _rebuild(order: Mapping[str, Any], attempt: Attempt, source_files: Files) -> dict[str, Any]:
    partition, points = int(order["partition"]), order["points"]
    walk = StateRebuild(partition, make_target(os.path.join(attempt.scratch, "walk"), source_files), attempt.count_calls)
    declared = declarations({int(version): value for version, value in order["catalogs"].items()})
    wanted = order["tables"]

    def skip(table: str) -> bool:
        replicated = table in declared and declared[table].replicated
        return (wanted is not None and table not in wanted) or (replicated and not order["writes_replicated"])

    files, stands = [], []
    for number, point in enumerate(points):
        result, state = _arrive(walk, [Plan.from_value(leg) for leg in point["legs"]], attempt, last=number == len(points) - 1)
        folder = os.path.join(attempt.folder, str(number))
        os.mkdir(folder, 0o750)
        connection = open_image(state)
        try:
            check_tables(connection, wanted)
            about = {"index": result.index, "txn_id": str(result.txn_id)}
            source = TableSource(partition, order["cluster_id"], about, connection)
            for written in write_tables(source, folder, declared=declared, skip=skip):
                digest = table_digest(connection, written.table)
                sealed = attempt.sealed(os.path.join(folder, written.file))
                about_file = {"table": written.table, "rows": written.rows, "columns": dict(written.columns)}
                files.append({"point": number, **about_file, **sealed, "digest": digest.sha256})
        finally:
            connection.close()
        stands.append(asdict(result))
    return {"partition": partition, "calls": walk.calls, "files": files, "stands": stands}


def _arrive(walk: StateRebuild, legs: list[Plan], attempt: Attempt, *, last: bool) -> tuple[PartitionResult, str]:
    """The moment of these legs: its position, and the closed state file that holds it."""
    path = state_path(walk.target.directory, walk.partition)
    if last or legs[-1].partitions[0].to_calls < 0:
        return walk.to(legs), path
    walk.to([*legs[:-1], before_last(legs[-1])])
    shutil.rmtree(aside := os.path.join(attempt.scratch, "aside"), ignore_errors=True)
    beside = StateRebuild(walk.partition, make_target(aside, walk.target.files), lambda _calls: None)
    copy = state_path(aside, walk.partition)
    if os.path.exists(path):
        shutil.copyfile(path, copy)
        beside.target.trust.grant(walk.partition)
    return beside.to(legs), copy


def before_last(leg: Plan) -> Plan:
    """The legs up to the batch of which only some calls are wanted."""
    part = leg.partitions[0]
    end = max(part.from_index, part.to_index - 1)
    whole = replace(part, to_index=end, to_term=0, to_checksum=0, to_calls=-1, entries=max(0, part.entries - 1))
    return replace(leg, partitions=(whole,))


def check_tables(connection: Any, wanted: Sequence[str] | None) -> None:
    rows = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND substr(name, 1, 8) <> '_cmdlog_'")
    known = sorted(str(row[0]) for row in rows)
    if strange := [table for table in wanted or () if table not in known]:
        raise NoSuchTable(f"there is no table {strange[0]}; there are: {', '.join(known) or 'none'}")
