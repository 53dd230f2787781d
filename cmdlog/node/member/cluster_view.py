"""What a member says about its cluster: its own state, who leads, the members, the groups, its peers."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import asdict
from typing import Any

from cmdlog.cluster.executed_marks import ExecutedMarks
from cmdlog.cluster.replication import Replication
from cmdlog.cluster.transport.peer_transport import LinkStatus
from cmdlog.node.member.leadership import Leadership
from cmdlog.node.member.member_ground import MemberGround, MemberState


class ClusterView:
    """Any thread."""

    def __init__(
        self,
        ground: MemberGround,
        driver: Replication,
        leadership: Leadership,
        marks: ExecutedMarks,
        *,
        too_far_back: Collection[int],
        peers: Callable[[], Collection[LinkStatus]],
    ) -> None:
        """`too_far_back`: groups whose missing entries no log holds; `peers`: the connections to the other nodes."""
        self._ground, self._driver, self._leadership, self._marks = ground, driver, leadership, marks
        self._too_far_back, self._peers = too_far_back, peers

    def member_state(self, *, speaks: bool) -> MemberState:
        """`speaks`: this node takes part in consensus."""
        return MemberState.RUNNING if speaks and self._leadership.leader is not None else MemberState.CONFIGURING

    def status(self, *, speaks: bool) -> dict[str, Any]:
        """Plain data."""
        views, members = self._driver.views(), self._ground.cluster.members
        return {
            "state": self.member_state(speaks=speaks).value,
            "node": self._ground.node,
            "standing": self._leadership.standing.value,
            "leader": self._leadership.leader,
            "members": [{"node": m.node, "client": m.client, "peer": f"{m.peer[0]}:{m.peer[1]}"} for m in members],
            "groups": {str(group): {"term": view.term, "leader": view.leader} for group, view in views.items()},
            "too_far_back": sorted(self._too_far_back),
            "diverged": {str(partition): index for partition, index in self._marks.divergences().items()},
            "peers": [asdict(peer) for peer in self._peers()],
        }
