"""Which roles a member had, why they changed, who led, and how long it took to take over: for status, metrics and the log.

One rule: it only records. It is called where roles change, under the driver's lock, and read in any thread.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import structlog

from cmdlog.node.telemetry.stage_timings import SECONDS, Histogram
from cmdlog.raft import Role, RoleReason, SoftState
from cmdlog.raft.configuration import NodeId
from cmdlog.wal.ids import CLUSTER_GROUP

CHANGES_KEPT: Final = 32
ALARMING: Final = frozenset({RoleReason.QUORUM_LOST, RoleReason.DISK_STALLED})

log = structlog.get_logger("cmdlog.cluster")

GroupRole = tuple[int, SoftState, int]  # group, what it is now, its term


@dataclass(frozen=True, slots=True)
class RoleChange:
    """Some groups of this node got another role at the same moment, for the same reason."""

    time: float  # seconds since 1970
    role: str
    was: str
    reason: str
    term: int  # of the first of the groups
    groups: list[int]


@dataclass(frozen=True, slots=True)
class LeaderChange:
    """Another node leads the cluster group, or none."""

    time: float  # seconds since 1970
    leader: int | None
    was: int | None
    term: int
    reason: str  # of the role that this node had then


class RoleHistory:
    """See the module."""

    def __init__(self, node: NodeId, *, wall: Callable[[], float] = time.time, now: Callable[[], float] = time.monotonic) -> None:
        self._node, self._wall, self._now = node, wall, now
        self._roles: defaultdict[int, Role] = defaultdict(lambda: Role.FOLLOWER)
        self._changes: deque[RoleChange] = deque(maxlen=CHANGES_KEPT)
        self._leader_change: LeaderChange | None = None
        self._campaign_began: float | None = None  # for the cluster group, while it has not led to a leader
        self.reason = RoleReason.STARTED  # of the role in the cluster group
        self.elections: Counter[RoleReason] = Counter()  # campaigns that this node began, of any group
        self.leader_changes = 0
        self.takeovers = Histogram(SECONDS)  # from the beginning of the campaign to the first call
        self.last_takeover_s: float | None = None

    def record_roles(self, roles: Sequence[GroupRole]) -> None:
        """Groups whose role or leader is another one than before."""
        together: defaultdict[tuple[Role, Role, RoleReason], list[tuple[int, int]]] = defaultdict(list)
        for group, soft, term in roles:
            was = self._roles[group]
            if group == CLUSTER_GROUP:
                self._follow_campaign(was, soft)
            if soft.role is not was:
                self._roles[group] = soft.role
                together[soft.role, was, soft.reason].append((group, term))
        for (role, was, reason), of in together.items():
            if was is Role.FOLLOWER:
                self.elections[reason] += len(of)
            change = RoleChange(self._wall(), role.value, was.value, reason.value, of[0][1], [group for group, _ in of])
            self._changes.append(change)
            say = log.warning if was is Role.LEADER and reason in ALARMING else log.info
            say("role_changed", node=self._node, role=role.value, was=was.value, reason=reason.value, term=change.term,
                groups=change.groups)  # fmt: skip

    def record_leader(self, leader: NodeId | None, was: NodeId | None, term: int) -> None:
        """The cluster group has another leader, or none any more."""
        self.leader_changes += 1
        self._leader_change = LeaderChange(self._wall(), leader, was, term, self.reason.value)
        log.info("leader_changed", node=self._node, leader=leader, was=was, term=term, reason=self.reason.value)

    def record_calls_taken(self) -> None:
        """The take-over is done: this node takes calls."""
        if self._campaign_began is not None:
            self.last_takeover_s = self._now() - self._campaign_began
            self.takeovers.add(self.last_takeover_s)
            self._campaign_began = None

    def status(self) -> dict[str, Any]:
        """Plain data, the newest change last."""
        changed = self._leader_change
        return {
            "elections": {reason.value: count for reason, count in dict(self.elections).items()},
            "leader_changes": self.leader_changes,
            "last_leader_change": None if changed is None else asdict(changed),
            "last_takeover_s": None if self.last_takeover_s is None else round(self.last_takeover_s, 6),
            "role_changes": [asdict(change) for change in list(self._changes)],
        }

    def _follow_campaign(self, was: Role, soft: SoftState) -> None:
        self.reason = soft.reason
        if soft.role is not Role.FOLLOWER and was is Role.FOLLOWER and self._campaign_began is None:
            self._campaign_began = self._now()
        if soft.role is Role.FOLLOWER and soft.leader is not None:
            self._campaign_began = None  # another node won
