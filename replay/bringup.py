"""Recovery in place: what every start of a node does with its states, and `cmdlog recover` without `--to`.

One rule: the caller holds the directory's lock through an open, not yet started log; on return every state file stands at the
log's end, and nothing that the log contradicts is left where a later start could believe it.

The common start, after an orderly stop or with states that are already at the end, reads no record: the log's fold says where it
ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cmdlog.wal.files import Files
from cmdlog.wal.ids import CLUSTER_GROUP
from cmdlog.wal.log import Log
from replay.apply import Result
from replay.errors import PlanOutdated
from replay.plan import WHY, PartitionPlan, Plan, make_plan
from replay.recover import Live, Progress, Report, Target, execute, put_aside
from replay.source import source_of
from replay.trust import Trust, read_position, state_path
from snapshot.catalog import list_snapshots


def bring_up(
    files: Files,
    wal: Log,
    *,
    live: Live | None = None,
    plan: Plan | None = None,
    workers: int | None = None,
    progress: Callable[[Progress], None] = lambda _progress: None,
) -> tuple[Plan, Report]:
    """Brings every state of the node to the end of its log, by `plan` or by one made here.

    Raises: Incomplete, Divergence, CodeMissing, BundleForged, EnvironmentFault, PlanOutdated, WalError, SnapshotError.
    """
    target = Target(files, wal.directory)
    if plan is None and (whole := _already_there(files, wal)) is not None:
        return whole, Report([_stands(part) for part in whole.partitions], 0, 0.0)
    if plan is not None:
        _check_reaches_end(plan, wal)
        put_aside(files, plan)
        return plan, execute(plan, target, workers=workers, live=live, progress=progress)
    planned = make_plan(files, wal.directory, use_state="trusted", source=source_of(wal))
    put_aside(files, planned.plan)
    return planned.plan, execute(planned, target, workers=workers, live=live, progress=progress)


def _already_there(files: Files, wal: Log) -> Plan | None:
    """A plan with nothing to do, when every state is trusted and stands at the log's end; else None."""
    trust, groups, parts = Trust(files, wal.directory), wal.recovered.groups, []
    for snapshot in list_snapshots(files, wal.directory, wal.instance.identity):
        if snapshot.index > groups.state(snapshot.partition).last_index:
            return None
    for partition in _partitions(wal):
        if trust.doubt(partition):
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
    configuration: dict[str, Any] = wal.recovered.groups.state(CLUSTER_GROUP).configuration or {}
    return range(int(configuration.get("partitions", 0)))


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


def _stands(part: PartitionPlan) -> Result:
    return Result(part.partition, index=part.to_index, term=part.to_term, checksum=part.to_checksum, txn_id=part.to_txn)


def _check_reaches_end(plan: Plan, wal: Log) -> None:
    """In place, a plan that leaves entries out would be a cut. Raises: PlanOutdated."""
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
