"""What the log of a node states of the latest forced recovery: its epoch, the groups that it has not reached in a crash, and the
members that it has left behind.

One rule: pure. A forced recovery draws one epoch for all groups of a node, in one round; a crash may leave a prefix of it.
Its term is far above all terms before it, so the configuration of the highest term says which epoch is the latest.

The lives of the other members' disks are over, for ever. That is judged from what is committed alone, so that any later leader
states what the survivor had no time for. A member that the forced configuration does not list is expected back with another life
of its disk, by copy; its old one may hold entries that the cluster has lost, and never counts again. A change of members that
was under way continues where it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from cmdlog.cluster.cluster_file import ClusterFile
from cmdlog.cluster.transport.handshake import ClusterName
from cmdlog.raft.configuration import Configuration
from cmdlog.wal.format.cluster_record import ClusterMember, MemberStage
from cmdlog.wal.group_state import GroupState, GroupStates

HAD_A_PLACE: Final = frozenset({MemberStage.MEMBER, MemberStage.ADMITTED, MemberStage.LEAVING_OLD})
"""Stages in which a configuration lists the node, unless it was forced out."""


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


def members_left_behind(
    stated: Mapping[int, ClusterMember], missing: Iterable[ClusterMember], configuration: Configuration
) -> list[ClusterMember]:
    """What is to be stated, ascending: `missing` ones that the log never stated, and those that a forced recovery has changed."""
    wanted = {member.node: member for member in missing}
    if configuration.forced:
        wanted |= {node: _left(member, configuration) for node, member in ({**stated, **wanted}).items()}
    return [member for node, member in sorted(wanted.items()) if stated.get(node) != member]


def _left(member: ClusterMember, configuration: Configuration) -> ClusterMember:
    if member.node in configuration.members():
        return replace(member, forced=True)
    if member.stage not in HAD_A_PLACE:
        return member
    former = tuple(dict.fromkeys((*member.former, *((member.incarnation,) if member.incarnation else ()))))
    return replace(member, stage=MemberStage.EXPECTED, incarnation=b"", former=former, admitted={}, forced=True)
