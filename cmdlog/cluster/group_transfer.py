"""Leadership of all groups, offered to one other node.

One rule: functions over the groups of this node, under the driver's lock. A group under offer takes no proposals, and the
driver looks at `under_offer` before it proposes.
"""

from __future__ import annotations

import contextlib
from functools import partial

from cmdlog.raft import Franchise, ProposalRefused, RaftCore, Role
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.multi_raft import RaftGroups
from cmdlog.wal.ids import CLUSTER_GROUP


def find_successors(groups: RaftGroups) -> list[NodeId]:
    """The nodes that could lead everything that this node leads; the one that lacks least comes first.

    Each votes in all these groups and was heard from in their present terms within an election time-out.
    """
    led = [core for core in groups.cores.values() if core.leader == core.id]
    lacks: dict[NodeId, int] = {}
    for core in led:
        for node in core.live() - {core.id}:
            if core.configuration.is_voter(node):
                lacks[node] = lacks.get(node, 0) + core.log.last - core.progress[node].match
    able = [node for node in lacks if all(node in core.live() and core.configuration.is_voter(node) for core in led)]
    return sorted(able, key=lambda node: (lacks[node], node))


def offer_groups(groups: RaftGroups, target: NodeId) -> None:
    """Offers every group that is led here to that node; in one round, so that it campaigns for all of them at once."""
    for group, core in list(groups.cores.items()):
        if core.leader == core.id:
            with contextlib.suppress(ProposalRefused):
                groups.ask(group, partial(RaftCore.transfer, target=target))


def resign_groups(groups: RaftGroups) -> None:
    """Leads nothing any more, without a successor: the others elect one after their time-out."""
    for group, core in list(groups.cores.items()):
        if core.leader == core.id:
            groups.ask(group, lambda core: core.become_follower(core.term, None))


def set_franchise(groups: RaftGroups, franchise: Franchise) -> None:
    """Gives this node another word in elections. Who has none leads nothing, and campaigns no more."""
    for group, core in list(groups.cores.items()):
        core.franchise = franchise
        if franchise is not Franchise.FULL and core.role is not Role.FOLLOWER:
            groups.ask(group, lambda core: core.become_follower(core.term, None))


def patience_of(group: int, unfit: int) -> int:
    """Election time-outs that this node leaves to others in a group: as many as it is unfit for, and in a partition one more,
    since who campaigns for the cluster group does so for all, and its leader for those that lose theirs."""
    return unfit + (group != CLUSTER_GROUP)


def set_patience(groups: RaftGroups, unfit: int) -> None:
    """From its next time-out on the node leaves so many to others, or none."""
    for group, core in groups.cores.items():
        core.set_patience(patience_of(group, unfit))


def extra_ticks(groups: RaftGroups) -> int:
    """What an offer may take longer on disks and ways as slow as was seen."""
    return max((core.pace.extra_ticks for core in groups.cores.values()), default=0)


def under_offer(groups: RaftGroups) -> bool:
    """Whether some group's leadership is on its way to another node."""
    return any(core.handover is not None for core in groups.cores.values())
