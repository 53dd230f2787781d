"""The epoch of the latest forced recovery, as the groups of a node state it, and the groups that it has not reached in a crash.

One rule: pure. A forced recovery draws one epoch for all groups of a node, in one round; a crash may leave a prefix of it.
Its term is far above all terms before it, so the configuration of the highest term says which epoch is the latest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from cmdlog.cluster.cluster_file import ClusterFile
from cmdlog.cluster.transport.handshake import ClusterName
from cmdlog.wal.group_state import GroupState, GroupStates


class StatedEpoch(NamedTuple):
    """What the newest configuration of a group says. The order is that of time."""

    term: int  # of the entry
    epoch: int  # 0: never forced

    @classmethod
    def of(cls, state: GroupState) -> StatedEpoch:
        """As a log ends."""
        if not state.configurations:
            return cls(0, 0)
        newest = state.configurations[-1]
        forced = newest.value.get("forced") is True  # the configuration of a node alone counts its own generations as epochs
        return cls(newest.term, int(newest.value.get("epoch", 0)) if forced else 0)


def latest_epoch(stated: Iterable[StatedEpoch]) -> int:
    """The epoch that the cluster's name follows from; 0: the cluster is as it was made."""
    return max((one for one in stated if one.epoch), default=StatedEpoch(0, 0)).epoch


def groups_left_out(stated: Mapping[int, StatedEpoch]) -> list[int]:
    """Groups that the latest forced recovery has not reached, ascending."""
    epoch = latest_epoch(stated.values())
    return sorted(group for group, one in stated.items() if epoch and one.epoch != epoch)


def name_of(states: GroupStates, cluster: ClusterFile) -> ClusterName:
    """What the nodes of the cluster call it, as far as this log knows."""
    return ClusterName(cluster.cluster_id, latest_epoch(map(StatedEpoch.of, states.by_partition.values())))
