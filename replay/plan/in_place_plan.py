"""The plan of a recovery in place: every state to the end of the log that the caller has opened, and not yet started.

One rule: it changes no state. What the pages of a state contradict loses its trust, and a start takes the disk space that is held
for it; both may come again.

The common start, after a clean shutdown or with states that are already at the end, reads no record: the log's fold states where
it ends.
"""

from __future__ import annotations

from dataclasses import dataclass

from cmdlog.wal.files import Files
from cmdlog.wal.log import Log
from replay.errors import Incomplete, PlanOutdated
from replay.log.source import source_of
from replay.plan.node_plan import PartitionPlan, Plan, Planned
from replay.plan.planner import RECOVER, WHY, Purpose, make_plan
from replay.state.page_check import page_problem
from replay.state.trust import Trust, state_path
from snapshot.catalog import list_snapshots
from snapshot.space_reserve import START_BYTES, Reserve


@dataclass(frozen=True, slots=True)
class InPlacePlan:
    """What is to be done in place: `planned`, or nothing where every state is at the log's end."""

    plan: Plan
    planned: Planned | None


def plan_in_place(files: Files, wal: Log, trust: Trust, *, given: Plan | None = None, purpose: Purpose = RECOVER) -> InPlacePlan:
    """What brings every state to the end of the log: `given`, or a plan made here. Changes no state.

    The caller has checked that this directory decides alone (`replay.plan.sole_voter.check_alone`).

    Raises: Incomplete, CodeMissing, BundleForged, PlanOutdated, WalError, SnapshotError.
    """
    Reserve(wal.directory).make_room(START_BYTES)  # a start needs it more than the next snapshot, which holds it again
    if given is not None:
        _check_reaches_end(given, wal)
        return InPlacePlan(given, Planned.of(files, given))
    if (whole := _already_there(files, wal, trust)) is not None:
        return InPlacePlan(whole, None)
    planned = make_plan(files, wal.directory, purpose, source=source_of(wal), trust=trust)
    if planned.plan.open_calls:  # the log would still hold the call, and a later start might run it
        notes = "; ".join(planned.plan.notes)
        raise Incomplete(f"{notes}; this cannot be done in place: use `cmdlog recover DIR --to OUT`")
    return InPlacePlan(planned.plan, planned)


def distrust_damaged(wal: Log, trust: Trust) -> None:
    """Checks the pages of states that would be trusted without a seal, as a kill leaves them: those that are damaged are rebuilt.

    Reads every such file once, some 1 s per GB; a node does the same while it serves.
    """
    for partition in _partitions(wal):
        if trust.doubt(partition) or trust.is_sealed(partition):
            continue
        if page_problem(state_path(wal.directory, partition)):
            trust.revoke(partition)


def _already_there(files: Files, wal: Log, trust: Trust) -> Plan | None:
    """A plan with nothing to do, when every state is trusted and is at the log's end; else None."""
    groups, parts = wal.recovered.groups, []
    for snapshot in list_snapshots(files, wal.directory, wal.instance.identity):
        if snapshot.index > groups.state(snapshot.partition).last_index:
            return None
    for partition in _partitions(wal):
        state, position = groups.state(partition), trust.position(partition)
        end = (state.last_index, state.last_term, state.last_checksum)
        if isinstance(position, str) or (position.index, position.term, position.checksum) != end:
            return None
        parts.append(_nothing_to_do(partition, state_path(wal.directory, partition), end, position.txn_id))
    return Plan(
        directory=wal.directory,
        **wal.instance.identity.as_text(),
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
        to_txn=txn_id,
        why=WHY["state"],
    )


def _check_reaches_end(plan: Plan, wal: Log) -> None:
    """In place, a plan that omits entries would truncate the log. Raises: PlanOutdated."""
    identity = wal.instance.identity
    if plan.identity != identity.as_text():
        raise PlanOutdated(f"the plan is for another node than {identity}")
    groups = wal.recovered.groups
    for part in plan.partitions:
        if part.to_index != groups.state(part.partition).last_index or part.to_calls >= 0:
            last = groups.state(part.partition).last_index
            raise PlanOutdated(f"the plan ends partition {part.partition} at index {part.to_index}, the log at {last}")
