"""What the log states of members after a forced recovery: the lives of the others' disks are over, for ever.

One rule: pure, and from what is committed alone, so that any later leader states what the survivor had no time for. A member that
the forced configuration does not list is expected back with another life of its disk, by copy; its old one may hold entries that
the cluster has lost, and never counts again. A change of members that was under way continues where it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from cmdlog.raft.configuration import Configuration
from cmdlog.wal.format.cluster_record import ClusterMember, MemberStage

HAD_A_PLACE: Final = frozenset({MemberStage.MEMBER, MemberStage.ADMITTED, MemberStage.LEAVING_OLD})
"""Stages in which a configuration lists the node, unless it was forced out."""


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
