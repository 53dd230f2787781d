"""The newest moment before its damage that a damaged log can restore: offered by the error that refuses the rest.

One rule: it was tried. The moment comes from the blocks before the damage, and counts only if there is a complete plan for it.
"""

from __future__ import annotations

from cmdlog.wal.errors import WalError
from cmdlog.wal.files import Files
from cmdlog.wal.group_state import GroupStates
from cmdlog.wal.ids import PARTITIONS_MAX
from replay.engine import CatalogMissing
from replay.errors import ReplayError
from replay.log.archive_reach import time_of
from replay.log.collect_evidence import gather
from replay.log.spans import salvage
from replay.plan.cluster_planner import make_joint_plan


def newest_before_damage(files: Files, directory: str) -> int | None:
    """A transaction id, for a node that votes alone; None when there is none, or the beginning of the damage is unknown."""
    blocks = [fault.block for fault in gather(files, directory).damage]
    first_bad = min((block or 0 for block in blocks), default=0)
    try:
        source = salvage(files, directory)
        heads = [block for block in source.first_blocks if block < first_bad]
        groups = GroupStates.fold(source.read(from_block=heads[-1], upto_block=first_bad - 1) if heads else ())
        parts = [state for partition, state in groups.by_partition.items() if partition < PARTITIONS_MAX]
        moment = min((max(state.closed_txn, state.last_txn - 1) for state in parts), default=0)
        if moment > 0 and not make_joint_plan(files, [directory], until=moment).incomplete:
            return moment
    except (WalError, ReplayError, CatalogMissing):
        return None
    return None


def describe_moment(moment: int | None) -> str:
    """Describes the moment for an error message."""
    if moment is None:
        return "no moment before it can be restored"
    return f"the newest restorable moment before it is transaction {moment} ({time_of(moment)})"
