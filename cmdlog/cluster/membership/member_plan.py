"""The plan: from what the leading node sees to what it does next.

One rule: pure, and from what is replicated alone, so every leader has the same plan. One node at a time is on its way from one
seat to another, and only while no group's configuration is changing: two configurations that may be in force differ by one node.

    LEAVING_OLD  removed from every group                                    -> EXPECTED, its life is a former one
    JOINING      its incarnation is pinned here; where its number had another life, it is in the failure set;
                 a learner of every group                                    -> ADMITTED, with the places
    ADMITTED     caught up, a voter of every group                           -> MEMBER
    LEAVING      removed from every group                                    -> REMOVED, with the places

    a voter is silent          -> a learner of every group  -> FAULTS with it
    it is heard and level      -> a voter of every group    -> FAULTS without it
    it is removed for good     -> FAULTS without it

The pin comes before the learner: what the former life still says would else count as the new one's. The FAULTS come before the
learner too: a recovery that reads a directory of the former life then knows that it is one (`replay.plan.directory_lineage`).

A change is begun where it is safe in all groups, and continued in each group where it is safe there. *Safe*: the live voters are
a majority of the configuration that follows, of both halves where it is joint, and a live voter that stays holds everything that
is committed. Steps can be repeated, and their results are seen in the logs alone: each leader continues the plan of the last one.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from cmdlog.cluster.membership.membership_view import GroupSight, MembershipView, Seat, spare_voters
from cmdlog.raft.confchange import apply_change
from cmdlog.raft.configuration import Act, Configuration, MemberChange, NodeId
from cmdlog.raft.errors import BadChange
from cmdlog.wal.format.cluster_record import ClusterMember, FaultSet, MemberStage, Places


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


ONLY_VOTER, ONLY_LEARNER = frozenset({Seat.VOTER}), frozenset({Seat.LEARNER})


def next_step(view: MembershipView) -> Step:
    """See the module."""
    if not view.settled:
        return Wait("a configuration is not committed yet")
    begun = view.under_way
    mixed = [node for node in view.mixed() if begun is None or node != begun.node]
    if mixed:
        return _repair_seats(view, mixed[0])
    if begun is None:
        return _watch_voters(view)
    step = _advance(view, begun)
    if isinstance(step, Wait) and len(view.seats_of(begun.node)) == 1:
        watched = _watch_voters(view)
        return step if isinstance(watched, Rest) else watched
    return step


# -- a change that was asked for -------------------------------------------------------------------------------------------


def _advance(view: MembershipView, member: ClusterMember) -> Step:
    if member.stage is MemberStage.JOINING:
        return _admit(view, member)
    if member.stage is MemberStage.ADMITTED:
        return _promote(view, member)
    if member.node == view.node:
        return GiveLeadership(f"node {member.node} leaves, and leads")
    step = seat_node(view, member.node, Seat.OUT, forced=member.forced)
    if step is not None:
        return step
    former = (*member.former, member.incarnation) if member.incarnation else member.former
    if member.stage is MemberStage.LEAVING_OLD:
        return StateMember(replace(member, stage=MemberStage.EXPECTED, incarnation=b"", former=former, admitted={}))
    return StateMember(replace(member, stage=MemberStage.REMOVED, ended=_places(view)))


def _admit(view: MembershipView, member: ClusterMember) -> Step:
    node = member.node
    if view.pinned.get(node) != member.incarnation:
        return Wait(f"incarnation {member.incarnation.hex()} of node {node} is being pinned")
    if member.former and node not in view.failed:
        return state_faults(view, view.failed | {node}, f"the disk of node {node} was replaced")
    step = seat_node(view, node, Seat.LEARNER)
    return step or StateMember(replace(member, stage=MemberStage.ADMITTED, admitted=_places(view)))


def _promote(view: MembershipView, member: ClusterMember) -> Step:
    node = member.node
    begun = len(view.seats_of(node)) > 1
    if begun and node in view.silent:  # gone before it voted everywhere
        return _step_or_wait(seat_node(view, node, Seat.LEARNER))
    if not begun and not is_level(view, node):
        return Wait(f"node {node} has not caught up")
    step = seat_node(view, node, Seat.VOTER)
    return step or StateMember(replace(member, stage=MemberStage.MEMBER))


def _places(view: MembershipView) -> Places:
    return {group: sight.place for group, sight in sorted(view.groups.items())}


# -- failures --------------------------------------------------------------------------------------------------------------


def _repair_seats(view: MembershipView, node: int) -> Step:
    """A demotion or promotion came through in some groups alone."""
    if node not in view.silent and is_level(view, node):
        return _step_or_wait(seat_node(view, node, Seat.VOTER))
    if node in view.failed and node not in view.silent:
        return Wait(f"node {node} has not caught up in every group")
    return _step_or_wait(seat_node(view, node, Seat.LEARNER))


def _watch_voters(view: MembershipView) -> Step:
    """What follows from who is heard; every node has one seat in all groups."""
    own = [node for node in sorted({*view.present(), *view.failed}) if view.stage_of(node) is MemberStage.MEMBER]
    # First what the groups have done already and the failure set does not say yet.
    for node in sorted(view.failed):
        if view.stage_of(node) is MemberStage.REMOVED:
            return state_faults(view, view.failed - {node}, f"node {node} was removed")
    for node in own:
        seats = view.seats_of(node)
        if seats == ONLY_LEARNER and node not in view.failed:
            return state_faults(view, view.failed | {node}, f"node {node} was silent", places=True)
        if seats == ONLY_VOTER and node in view.failed:
            return state_faults(view, view.failed - {node}, f"node {node} votes again")
    # Then votes back to who is level, and only then votes away from who is silent.
    waits: Step = Rest()
    for node in own:
        if view.seats_of(node) == ONLY_LEARNER and node not in view.silent and is_level(view, node):
            step = _step_or_wait(seat_node(view, node, Seat.VOTER))
            if not isinstance(step, Wait):
                return step
            waits = step
    for node in own:
        if view.seats_of(node) == ONLY_VOTER and node in view.silent and node != view.node:
            step = _step_or_wait(seat_node(view, node, Seat.LEARNER))
            if not isinstance(step, Wait):
                return step
            waits = step
    return waits


def state_faults(view: MembershipView, failed: frozenset[int], reason: str, *, places: bool = False) -> StateFaults:
    """The next failure set; `places`: with the entries that took the votes."""
    demotions = tuple((group, sight.place[1], sight.place[0]) for group, sight in sorted(view.groups.items())) if places else ()
    return StateFaults(FaultSet(view.sequence + 1, tuple(sorted(failed)), view.epoch, view.term, view.node, demotions, reason))


def _step_or_wait(step: Step | None) -> Step:
    assert step is not None  # the node has another seat somewhere
    return step
