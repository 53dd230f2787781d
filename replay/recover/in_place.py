"""Recovery in place: what every start of a node does with its states, and `cmdlog recover` without `--to`.

One rule: the caller holds the directory's lock through an open, not yet started log; on return every state file is at the log's
end, and nothing that the log contradicts is left where a later start could believe it.

The steps in their order, each a call into the room that does it:

    open        the log, by the restart table (`cmdlog.wal.log`); done by the caller, as the next step is
    authority   may this directory decide alone (`replay.plan.sole_voter`)
    plan        the source of each partition, and what is applied to it (`replay.plan.in_place_plan`)
    set aside   snapshots that the log contradicts, states that are replaced (`replay.state.set_aside_state`)
    load        each state is kept, restored from its snapshot, or made (`replay.recover.applier`)
    replay      the log's entries to their partitions (`replay.loop`, `replay.recover.partition_replay`)
    seal        states that no one writes to (`replay.state.trust`); done by the caller
"""

from __future__ import annotations

from collections.abc import Callable

from cmdlog.wal.directory.instance import load_instance
from cmdlog.wal.files import Files
from cmdlog.wal.format.record import Record
from cmdlog.wal.log import Log
from replay.engine import LiveCode
from replay.errors import Divergence
from replay.log.source import source_of
from replay.plan.in_place_plan import InPlacePlan, plan_in_place
from replay.plan.node_plan import PartitionPlan, Plan
from replay.plan.planner import RECOVER, Purpose
from replay.recover.execute import RecoveryProgress, RecoveryReport, Target, execute
from replay.results import PartitionResult
from replay.state.set_aside_state import states_kept
from snapshot.catalog import list_snapshots, set_aside
from snapshot.restore_speed import note_speed


def bring_up(
    files: Files,
    wal: Log,
    *,
    live: LiveCode | None = None,
    progress: Callable[[RecoveryProgress], None] = lambda _progress: None,
    purpose: Purpose = RECOVER,
) -> tuple[Plan, RecoveryReport]:
    """Brings every state of the node to the end of its log, by a plan made here; `left_over` has the rest.

    Raises: what `plan_in_place` and `replay_in_place` raise.
    """
    target = Target(files, wal.directory)
    found = plan_in_place(files, wal, target.trust, purpose=purpose)
    return found.plan, replay_in_place(target, found, live=live, progress=progress)


def replay_in_place(
    target: Target,
    found: InPlacePlan,
    *,
    live: LiveCode | None = None,
    workers: int | None = None,
    progress: Callable[[RecoveryProgress], None] = lambda _progress: None,
) -> RecoveryReport:
    """Carries the plan out, with the states that are replaced set aside until it has succeeded.

    Where nothing has to be done, the state files are still sealed.

    Raises: Divergence, EnvironmentFault, PlanOutdated, WalError, SnapshotError.
    """
    plan, planned, directory = found.plan, found.planned, target.directory
    everything = [part.partition for part in plan.partitions]
    # Nothing is to be done, or states are replaced and kept until that has succeeded.
    if planned is None:
        with states_kept(directory, [], everything):
            return RecoveryReport([_stands(part) for part in plan.partitions], 0, 0.0)
    _set_snapshots_aside(target.files, plan)
    target.trust.unseal()
    replaced = [part.partition for part in plan.partitions if part.source != "state"]
    for partition in replaced:
        target.trust.revoke(partition)
    if planned.made_from is not None:
        seen = planned.made_from
        note_speed(target.state_folder, "check", size_bytes=seen.checked_bytes, seconds=seen.checked_s)
    with states_kept(directory, replaced, everything) as lost:
        try:
            return execute(planned, target, workers=workers, live=live, progress=progress)
        except Divergence as error:
            if gone := [stop.place.partition for stop in error.stops if stop.place.partition in lost]:
                named = ", ".join(map(str, gone))
                error.hint += f"; the volume had no room to keep the previous state of partition {named}"
            raise


def _set_snapshots_aside(files: Files, plan: Plan) -> None:
    """Moves the snapshots that the log contradicts away, before new entries could make them look right."""
    wrong = {name for part in plan.partitions for name in part.set_aside}
    identity = load_instance(files, plan.directory).identity if wrong else None
    for snapshot in list_snapshots(files, plan.directory, identity) if identity else ():
        if snapshot.name in wrong:
            set_aside(files, snapshot)


def left_over(wal: Log, plan: Plan) -> dict[int, list[Record]]:
    """Partition -> the entries after the plan's end, in order, of every partition that has any: for sites, which are watched."""
    groups = wal.recovered.groups
    ends = {part.partition: part.to_index for part in plan.partitions}
    ends = {partition: end for partition, end in ends.items() if end < groups.state(partition).last_index}
    left: dict[int, dict[int, Record]] = {partition: {} for partition in ends}
    if not ends:
        return {}
    source = source_of(wal)
    for _, record in source.read(from_block=source.start_block(ends)):
        if record.is_entry and record.index > ends.get(record.partition, record.index):
            before = left[record.partition].items()
            left[record.partition] = {index: entry for index, entry in before if index < record.index} | {record.index: record}
    return {partition: list(entries.values()) for partition, entries in left.items()}


def _stands(part: PartitionPlan) -> PartitionResult:
    return PartitionResult(part.partition, index=part.to_index, term=part.to_term, checksum=part.to_checksum, txn_id=part.to_txn)
