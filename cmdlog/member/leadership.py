"""Who leads: one node leads all groups, and takes calls only when it knows what the leader before it did.

One rule: the leader of the cluster group is the node that takes calls. It campaigns for the other groups, and begins that with
its campaign for the cluster group: so one write of each node has its votes in all groups. A node that leads one of those without
leading the cluster group hands it over. Calls are taken when every group is led here, and an entry of the present terms is
committed in each: then this node has all that was ever acknowledged. What is left to do before the first call is in
`cmdlog.member.takeover`.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

from cmdlog.cluster.leader_fitness import LeaderFitness
from cmdlog.cluster.replicated_machine import GroupStanding
from cmdlog.node.telemetry.role_history import GroupRole, RoleHistory
from cmdlog.raft import ProposalRefused, RaftCore, Role
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.messages import Fitness
from cmdlog.raft.multi_raft import RaftGroups
from cmdlog.wal.ids import CLUSTER_GROUP, PartitionId

CAMPAIGNING: Final = frozenset({Role.PRE_CANDIDATE, Role.CANDIDATE})
GroupRequest = tuple[int, Callable[[RaftCore], Any]]  # what a group is asked
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

    def end_leading(self, leader: NodeId | None) -> None:
        """That is over, and who leads now."""
        ...

    def name_leader(self) -> None:
        """There is another leader, or none."""
        ...


class Leadership:
    """Under the driver's lock."""

    def __init__(
        self,
        node: NodeId,
        fitness: LeaderFitness,
        ask_groups: Callable[[Callable[[RaftGroups], Any]], Any],
        changes: Callable[[], LeadershipChanges],
    ) -> None:
        """`fitness` learns what peers say of themselves; `ask_groups` runs a request on all groups in one round; `changes` gives
        who acts on changes."""
        self.node, self._fitness, self._ask_groups, self._changes = node, fitness, ask_groups, changes
        self.standing = Standing.FOLLOWING
        self.leader: NodeId | None = None  # of the cluster group
        self.history = RoleHistory(node)
        self.terms: tuple[int, ...] = ()  # of the present leadership, by group
        self._ticks = self._asked_at = 0
        self._campaigns = False  # for the cluster group

    def changed(self, views: Mapping[int, GroupStanding]) -> None:
        """Some group has another leader or term."""
        leader = views[CLUSTER_GROUP].leader
        news = leader != self.leader
        if news:
            self.history.record_leader(leader, self.leader, views[CLUSTER_GROUP].term)
            self.leader = leader
        terms = tuple(view.term for view in views.values())
        leads_all = all(view.confirmed for view in views.values())
        if self.standing is not Standing.FOLLOWING and (not leads_all or terms != self.terms):
            self.standing = Standing.FOLLOWING
            self._changes().end_leading(leader)
        if self.standing is Standing.FOLLOWING and leads_all:
            self.standing, self.terms = Standing.TAKING_OVER, terms
            self._changes().begin_leading(terms)
        if news:
            self._changes().name_leader()
        if news and (leader == self.node or self._campaigns):  # last: what follows from it comes back here
            self._claim_groups(views)
        elif news:
            self._gather_groups(views)

    def roles_changed(self, roles: Sequence[GroupRole]) -> None:
        """Of some groups role or leader have changed."""
        for group, soft, _ in roles:
            if group == CLUSTER_GROUP:
                self._campaigns = soft.role in CAMPAIGNING
        self.history.record_roles(roles)

    def ticked(self, views: Mapping[int, GroupStanding]) -> None:
        """Gathers the groups at the node that leads the cluster group."""
        self._ticks += 1
        if self._ticks - self._asked_at >= ASK_AGAIN_TICKS:
            self._gather_groups(views)

    def take_fitness(self, message: Fitness) -> None:
        """A peer says whether it should lead."""
        self._fitness.take_fitness(message)

    def _gather_groups(self, views: Mapping[int, GroupStanding]) -> None:
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
        self._ask(requests)

    def _claim_groups(self, views: Mapping[int, GroupStanding]) -> None:
        """A campaign for the cluster group begins, or it was won just now. Who led it may have led all groups, and be gone:
        voters that still hear from it refuse, and no wait for time-outs of each group is needed where they do not."""
        self._ask([(group, _campaign) for group, view in views.items() if group != CLUSTER_GROUP and not view.leads])

    def take_calls(self, terms: tuple[int, ...]) -> bool:
        """The take-over of these terms is done; False when it is not this node's any more."""
        if self.standing is not Standing.TAKING_OVER or terms != self.terms:
            return False
        self.standing = Standing.LEADING
        self.history.record_calls_taken()
        return True

    def _ask(self, requests: list[GroupRequest]) -> None:
        if requests:
            self._ask_groups(partial(_ask_each, requests=requests))


def _ask_each(groups: RaftGroups, requests: list[GroupRequest]) -> None:
    for group, request in requests:
        with contextlib.suppress(ProposalRefused, KeyError):
            groups.ask(PartitionId(group), request)


def _campaign(core: RaftCore) -> None:
    core.campaign()


def _offer_once(core: RaftCore, target: NodeId) -> None:
    """A second offer would make the target begin its campaign once more."""
    if core.handover is None or core.handover.target != target:
        core.transfer(target)
