"""One node's way to a seat in every group, and whether that is safe.

One rule: a change is begun where it is safe in all groups, and continued in each group where it is safe there. *Safe*: the live
voters are a majority of the configuration that follows, of both halves where it is joint, and a live voter that stays holds
everything that is committed.

The steps of a plan can be repeated, and their results are seen in the logs alone: every leader continues the plan of the one
before.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from cmdlog.cluster.membership.membership_view import GroupSight, MembershipView, Seat, spare_voters
from cmdlog.raft.confchange import apply_change
from cmdlog.raft.configuration import Act, Configuration, MemberChange, NodeId
from cmdlog.raft.errors import BadChange
from cmdlog.wal.format.cluster_record import ClusterMember, FaultSet


@dataclass(frozen=True, slots=True)
class ChangeGroups:
    """One change of one node in these groups, each compared with the configuration that was seen there."""

    act: Act
    node: int
    groups: tuple[int, ...]  # ascending
    forced: bool = False  # an operator has overruled what speaks against it


@dataclass(frozen=True, slots=True)
class StateMember:
    """A MEMBER entry."""

    member: ClusterMember


@dataclass(frozen=True, slots=True)
class StateFaults:
    """A FAULTS entry."""

    faults: FaultSet


@dataclass(frozen=True, slots=True)
class GiveLeadership:
    """Another node has to lead before anything else happens."""

    why: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Something is under way that this node cannot hasten."""

    why: str


@dataclass(frozen=True, slots=True)
class Rest:
    """Nothing is to be done."""


Step = ChangeGroups | StateMember | StateFaults | GiveLeadership | Wait | Rest


ACTS: Final = {Seat.OUT: Act.REMOVE, Seat.LEARNER: Act.ADD_LEARNER, Seat.VOTER: Act.ADD_VOTER}


def change_of(act: Act, node: int) -> tuple[MemberChange]:
    """The change, in one step or joint, as the voters demand."""
    return (MemberChange(act, NodeId(node)),)


def following(sight: GroupSight, act: Act, node: int) -> Configuration | None:
    """The configuration that the change makes; None where it makes no sense."""
    try:
        return apply_change(sight.configuration, change_of(act, node))
    except BadChange:
        return None


class ChangeRisk(enum.Enum):
    """What speaks against a change."""

    LAST_VOTER = "last_voter"  # no voter would be left
    NOT_LEVEL = "not_level"  # the node has not caught up
    QUORUM = "quorum"  # the live voters are no majority afterwards
    LAST_COPY = "last_copy"  # no live voter holds everything afterwards


def risk_of(sight: GroupSight, act: Act, node: int) -> tuple[ChangeRisk, str] | None:
    """What speaks against the change in this group, for people too; None when nothing does."""
    after = following(sight, act, node)
    if after is None:
        return ChangeRisk.LAST_VOTER, f"no voter would be left without node {node}"
    if act is Act.ADD_VOTER and node not in sight.level:
        return ChangeRisk.NOT_LEVEL, f"node {node} has not caught up"
    if spare_voters(after, sight.live) < 0:
        voters = sorted({*after.voters, *after.outgoing})
        return ChangeRisk.QUORUM, f"of the voters {_named(voters)} only {_named(sight.live.intersection(voters))} are heard from"
    if act is not Act.ADD_VOTER and not sight.whole.intersection(after.voters):
        return ChangeRisk.LAST_COPY, f"no voter but node {node} is known to hold everything"
    return None


def seat_node(view: MembershipView, node: int, seat: Seat, *, forced: bool = False) -> Step | None:
    """The next step to that seat in every group; None when the node has it everywhere. All groups are settled."""
    act = ACTS[seat]
    left = [group for group, sight in sorted(view.groups.items()) if sight.seat_of(node) is not seat]
    if not left:
        return None
    risks = {group: risk for group in left if (risk := risk_of(view.groups[group], act, node)) is not None}
    overruled = forced and act is Act.REMOVE
    stops = {group: risk for group, risk in risks.items() if not overruled or risk[0] is ChangeRisk.LAST_VOTER}
    safe = tuple(group for group in left if group not in stops)
    begun = len(left) < len(view.groups)
    if not safe or (stops and not begun):
        group, (_, why) = next(iter(stops.items()))
        return Wait(f"group {group}: {why}")
    return ChangeGroups(act, node, safe, forced=bool(risks) and overruled)


def is_level(view: MembershipView, node: int) -> bool:
    """Whether it could vote in every group where it does not."""
    return all(node in sight.level for sight in view.groups.values() if sight.seat_of(node) is not Seat.VOTER)


def _named(nodes: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(nodes))) or "none"
