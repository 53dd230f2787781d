"""Recovery in place: what every start of a node does with its states, and `cmdlog recover` without `--to`.

One rule: the caller holds the directory's lock through an open, not yet started log; on return every state file is at the log's
end, and nothing that the log contradicts is left where a later start could believe it.

The common start, after a clean shutdown or with states that are already at the end, reads no record: the log's fold says where it
ends.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from cmdlog.wal.directory.instance import load_instance
from cmdlog.wal.files import Files
from cmdlog.wal.format.record import Record
from cmdlog.wal.log import Log
from replay.engine import LiveCode
from replay.errors import Divergence, Incomplete, PlanOutdated
from replay.log.scan import start_block
from replay.log.source import source_of
from replay.plan.node_plan import PartitionPlan, Plan, Planned
from replay.plan.planner import WHY, Leave, make_plan
from replay.plan.sole_voter import check_alone
from replay.recover.execute import RecoveryProgress, RecoveryReport, Target, execute
from replay.results import PartitionResult
from replay.state.page_check import page_problem
from replay.state.set_aside_state import drop_kept, keep_states
from replay.state.trust import STATE_FOLDER, read_position, state_path
from snapshot.catalog import list_snapshots, set_aside
from snapshot.restore_speed import note_speed
from snapshot.space_reserve import START_BYTES, Reserve


@dataclass(frozen=True, slots=True)
class InPlacePlan:
    """What is to be done in place: `planned`, or nothing where every state is at the log's end."""

    plan: Plan
    planned: Planned | None


def bring_up(
    files: Files,
    wal: Log,
    *,
    live: LiveCode | None = None,
    plan: Plan | None = None,
    workers: int | None = None,
    progress: Callable[[RecoveryProgress], None] = lambda _progress: None,
    leave: Leave = "nothing",
) -> tuple[Plan, RecoveryReport]:
    """Brings every state of the node to the end of its log, by `plan` or by one made here; see `left_over` for `leave`.

    Raises: what `plan_in_place` and `replay_in_place` raise.
    """
    target = Target(files, wal.directory)
    found = plan_in_place(target, wal, given=plan, leave=leave)
    return found.plan, replay_in_place(target, found, live=live, workers=workers, progress=progress)


def plan_in_place(target: Target, wal: Log, *, given: Plan | None = None, leave: Leave = "nothing") -> InPlacePlan:
    """What brings every state to the end of the log: `given`, or a plan made here. Changes no state.

    Raises: NotSoleVoter, Incomplete, CodeMissing, BundleForged, PlanOutdated, WalError, SnapshotError.
    """
    check_alone(target.files, wal.directory, wal.instance.identity, wal.recovered.groups)
    Reserve(wal.directory).make_room(START_BYTES)  # a start needs it more than the next snapshot, which holds it again
    if given is not None:
        _check_reaches_end(given, wal)
        return InPlacePlan(given, Planned.of(target.files, given))
    if (whole := _already_there(target, wal)) is not None:
        return InPlacePlan(whole, None)
    planned = make_plan(target.files, wal.directory, use_state="trusted", source=source_of(wal), trust=target.trust, leave=leave)
    if any(part.dropped for part in planned.plan.partitions):  # the log would still hold the call, and a later start might run it
        notes = "; ".join(planned.plan.notes)
        raise Incomplete(f"{notes}; this cannot be done in place: use `cmdlog recover DIR --to OUT`")
    return InPlacePlan(planned.plan, planned)


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
    if planned is None:
        drop_kept(directory, [part.partition for part in plan.partitions])
        return RecoveryReport([_stands(part) for part in plan.partitions], 0, 0.0)
    _set_snapshots_aside(target.files, plan)
    target.trust.unseal()
    if planned.made_from is not None:
        seen = planned.made_from
        note_speed(os.path.join(directory, STATE_FOLDER), "check", size_bytes=seen.checked_bytes, seconds=seen.checked_s)
    replaced = [part.partition for part in plan.partitions if part.source != "state"]
    for partition in replaced:
        target.trust.revoke(partition)
    lost = keep_states(directory, replaced)
    try:
        report = execute(planned, target, workers=workers, live=live, progress=progress)
    except Divergence as error:
        if gone := [stop.place.partition for stop in error.stops if stop.place.partition in lost]:
            named = ", ".join(map(str, gone))
            error.hint += f"; the volume had no room to keep the previous state of partition {named}"
        raise
    drop_kept(directory, [part.partition for part in plan.partitions])
    return report


def _set_snapshots_aside(files: Files, plan: Plan) -> None:
    """Moves the snapshots that the log contradicts away, before new entries could make them look right."""
    wrong = {name for part in plan.partitions for name in part.set_aside}
    identity = load_instance(files, plan.directory).identity if wrong else None
    for snapshot in list_snapshots(files, plan.directory, identity) if identity else ():
        if snapshot.name in wrong:
            set_aside(files, snapshot)


def distrust_damaged(target: Target, wal: Log) -> None:
    """Checks the pages of states that would be trusted without a seal, as a kill leaves them: those that are damaged are rebuilt.

    Reads every such file once, some 1 s per GB; a node does the same while it serves.
    """
    for partition in _partitions(wal):
        if target.trust.doubt(partition) or target.trust.is_sealed(partition):
            continue
        if page_problem(state_path(wal.directory, partition)):
            target.trust.revoke(partition)


def left_over(wal: Log, plan: Plan) -> dict[int, list[Record]]:
    """Partition -> the entries after the plan's end, in order, of every partition that has any: for sites, which are watched."""
    groups = wal.recovered.groups
    ends = {part.partition: part.to_index for part in plan.partitions}
    ends = {partition: end for partition, end in ends.items() if end < groups.state(partition).last_index}
    left: dict[int, dict[int, Record]] = {partition: {} for partition in ends}
    if not ends:
        return {}
    source = source_of(wal)
    for _, record in source.read(from_block=start_block(source, ends)):
        if record.is_entry and record.index > ends.get(record.partition, record.index):
            before = left[record.partition].items()
            left[record.partition] = {index: entry for index, entry in before if index < record.index} | {record.index: record}
    return {partition: list(entries.values()) for partition, entries in left.items()}


def _already_there(target: Target, wal: Log) -> Plan | None:
    """A plan with nothing to do, when every state is trusted and is at the log's end; else None."""
    groups, parts = wal.recovered.groups, []
    for snapshot in list_snapshots(target.files, wal.directory, wal.instance.identity):
        if snapshot.index > groups.state(snapshot.partition).last_index:
            return None
    for partition in _partitions(wal):
        if target.trust.doubt(partition):
            return None
        state = groups.state(partition)
        position = read_position(state_path(wal.directory, partition), partition)
        end = (state.last_index, state.last_term, state.last_checksum)
        if isinstance(position, str) or (position.index, position.term, position.checksum) != end:
            return None
        parts.append(_nothing_to_do(partition, state_path(wal.directory, partition), end, position.txn_id))
    identity = wal.instance.identity
    return Plan(
        directory=wal.directory,
        cluster_id=identity.cluster_id.hex(),
        node_id=identity.node_id,
        incarnation=identity.incarnation.hex(),
        verdict=wal.recovered.verdict.value,
        from_block=int(wal.recovered.tail_lsn.block),
        last_block=int(wal.recovered.tail_lsn.block),
        until=None,
        row_digests=False,
        partitions=tuple(parts),
    )


def _partitions(wal: Log) -> range:
    return range(wal.recovered.groups.cluster.partitions)


def _nothing_to_do(partition: int, path: str, end: tuple[int, int, int], txn_id: int) -> PartitionPlan:
    index, term, checksum = end
    return PartitionPlan(
        partition=partition,
        source="state",
        name=path,
        from_index=index,
        from_term=term,
        from_checksum=checksum,
        to_index=index,
        to_term=term,
        to_checksum=checksum,
        to_calls=-1,
        to_txn=txn_id,
        entries=0,
        calls=0,
        bytes=0,
        why=WHY["state"],
    )


def _stands(part: PartitionPlan) -> PartitionResult:
    return PartitionResult(part.partition, index=part.to_index, term=part.to_term, checksum=part.to_checksum, txn_id=part.to_txn)


def _check_reaches_end(plan: Plan, wal: Log) -> None:
    """In place, a plan that omits entries would truncate the log. Raises: PlanOutdated."""
    identity = wal.instance.identity
    if (plan.cluster_id, plan.node_id, plan.incarnation) != (
        identity.cluster_id.hex(),
        identity.node_id,
        identity.incarnation.hex(),
    ):
        raise PlanOutdated(f"the plan is for another node than {identity}")
    groups = wal.recovered.groups
    for part in plan.partitions:
        if part.to_index != groups.state(part.partition).last_index or part.to_calls >= 0:
            last = groups.state(part.partition).last_index
            raise PlanOutdated(f"the plan ends partition {part.partition} at index {part.to_index}, the log at {last}")
