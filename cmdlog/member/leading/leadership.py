"""Who leads: one node leads all groups, and takes calls only when it knows what the leader before it did.

One rule: the leader of the cluster group is the node that takes calls. It campaigns for the other groups, and begins that with
its campaign for the cluster group: so one write of each node has its votes in all groups. A node that leads one of those without
leading the cluster group hands it over. Calls are taken when every group is led here, and an entry of the present terms is
committed in each: then this node has all that was ever acknowledged. What is left to do before the first call is in
`cmdlog.member.leading.takeover`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, Protocol

from cmdlog.cluster.leader_fitness import LeaderFitness
from cmdlog.cluster.replicated_machine import GroupRequest, GroupStanding
from cmdlog.node.telemetry.role_history import GroupRole, RoleHistory
from cmdlog.raft import RaftCore, Role
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.messages import Fitness
from cmdlog.wal.ids import CLUSTER_GROUP

CAMPAIGNING: Final = frozenset({Role.PRE_CANDIDATE, Role.CANDIDATE})
ASK_AGAIN_TICKS: Final = 5  # between two campaigns, or offers, for a group that somebody else leads


class Standing(enum.Enum):
    """What this node is for clients."""

    FOLLOWING = "following"
    TAKING_OVER = "taking_over"  # it leads, and does not take calls yet
    LEADING = "leading"


class LeadershipChanges(Protocol):
    """Who acts on changes of leadership; under the driver's lock."""

    def begin_leading(self, terms: tuple[int, ...]) -> None:
        """All groups are led here, in these terms."""
        ...

    def end_leading(self, leader: NodeId | None, reason: str) -> None:
        """That is over; who leads now, and why."""
        ...

    def name_leader(self, leader: NodeId | None, *, follows: bool, ticks: int = 0) -> None:
        """There is another leader, or none; or so many ticks have passed."""
        ...


class Leadership:
    """Under the driver's lock."""

    def __init__(self, node: NodeId, fitness: LeaderFitness, changes: LeadershipChanges) -> None:
        """`fitness` learns what peers say of themselves."""
        self.node, self._fitness, self._changes = node, fitness, changes
        self.standing = Standing.FOLLOWING
        self.leader: NodeId | None = None  # of the cluster group
        self.history = RoleHistory(node)
        self.terms: tuple[int, ...] = ()  # of the present leadership, by group
        self._ticks = self._asked_at = 0
        self._campaigns = False  # for the cluster group

    def changed(self, views: Mapping[int, GroupStanding]) -> list[GroupRequest]:
        """Some group has another leader or term; what groups are asked, so that one node leads them all."""
        leader = views[CLUSTER_GROUP].leader
        news = leader != self.leader
        if news:
            self.history.record_leader(leader, self.leader, views[CLUSTER_GROUP].term)
            self.leader = leader
        terms = tuple(view.term for view in views.values())
        leads_all = all(view.confirmed for view in views.values())
        if self.standing is not Standing.FOLLOWING and (not leads_all or terms != self.terms):
            self.standing = Standing.FOLLOWING
            self._changes.end_leading(leader, self.history.reason.value)
        if self.standing is Standing.FOLLOWING and leads_all:
            self.standing, self.terms = Standing.TAKING_OVER, terms
            self._changes.begin_leading(terms)
        if news:
            self._changes.name_leader(leader, follows=self.standing is Standing.FOLLOWING)
        if news and (leader == self.node or self._campaigns):
            return self._claim_groups(views)
        return self._gather_groups(views) if news else []

    def roles_changed(self, roles: Sequence[GroupRole]) -> None:
        """Of some groups role or leader have changed."""
        for group, soft, _ in roles:
            if group == CLUSTER_GROUP:
                self._campaigns = soft.role in CAMPAIGNING
        self.history.record_roles(roles)

    def ticked(self, views: Mapping[int, GroupStanding]) -> list[GroupRequest]:
        """Gathers the groups at the node that leads the cluster group."""
        self._ticks += 1
        return self._gather_groups(views) if self._ticks - self._asked_at >= ASK_AGAIN_TICKS else []

    def note_ticks(self, ticks: int) -> None:
        """So many ticks have passed, also for refusals that name who leads."""
        self._changes.name_leader(self.leader, follows=self.standing is Standing.FOLLOWING, ticks=ticks)

    def take_fitness(self, message: Fitness) -> None:
        """A peer says whether it should lead."""
        self._fitness.take_fitness(message)

    def _gather_groups(self, views: Mapping[int, GroupStanding]) -> list[GroupRequest]:
        """The leader of the cluster group, or who wants to be that, campaigns for groups that nobody leads; others hand theirs
        over to it."""
        cluster = views[CLUSTER_GROUP]
        wins, requests = cluster.leads or self._campaigns, list[GroupRequest]()
        for group, view in views.items():
            if group == CLUSTER_GROUP or view.leads is wins:
                continue
            self._asked_at = self._ticks
            if wins and view.leader is None:
                requests.append((group, _campaign))
            elif view.leads and cluster.leader is not None:
                requests.append((group, partial(_offer_once, target=cluster.leader)))
        return requests

    def _claim_groups(self, views: Mapping[int, GroupStanding]) -> list[GroupRequest]:
        """A campaign for the cluster group begins, or it was won just now. Who led it may have led all groups, and be gone:
        voters that still hear from it refuse, and no wait for time-outs of each group is needed where they do not."""
        return [(group, _campaign) for group, view in views.items() if group != CLUSTER_GROUP and not view.leads]

    def take_calls(self, terms: tuple[int, ...]) -> bool:
        """The take-over of these terms is done; False when it is not this node's any more."""
        if self.standing is not Standing.TAKING_OVER or terms != self.terms:
            return False
        self.standing = Standing.LEADING
        self.history.record_calls_taken()
        return True


def _campaign(core: RaftCore) -> None:
    core.campaign()


def _offer_once(core: RaftCore, target: NodeId) -> None:
    """A second offer would make the target begin its campaign once more."""
    if core.handover is None or core.handover.target != target:
        core.transfer(target)
