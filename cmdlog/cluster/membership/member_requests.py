"""What an operator's request about a node means as things are: the MEMBER entry that begins it, or why it is refused.

One rule: pure. A request that is done or under way already changes nothing and is no error, so one whose answer was lost is made
again. Two checks guard data and can be overruled: that the live voters which stay are a majority, and that one of them holds
everything.

A disk that wants to be filled takes a place that an operator has prepared, or the place of the life that it gives up: it names
that life, which only the disk itself and the cluster know to be the present one. Any other disk has to wait for an operator.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from cmdlog.cluster.cluster_file import NODES_MAX, MemberAddress, PlaceTaken, check_addresses, parse_address
from cmdlog.cluster.copying.wishes import CopyWish, WishRefusal, WishStanding
from cmdlog.cluster.membership.member_plan import ChangeRisk, risk_of
from cmdlog.cluster.membership.membership_view import NOWHERE, MembershipView, Seat
from cmdlog.cluster.membership.operator_desk import MembershipRefused, RefusedBecause, RequestKind
from cmdlog.raft.configuration import Act
from cmdlog.wal.format.cluster_record import ClusterMember, MemberStage

_GOING = frozenset({MemberStage.LEAVING, MemberStage.REMOVED})
_COMING = frozenset({MemberStage.JOINING, MemberStage.ADMITTED})


@dataclass(frozen=True, slots=True)
class MemberRequest:
    """What is asked for."""

    kind: RequestKind
    node: int
    peer: str = ""  # host:port; "": as it is
    client: str = ""  # URL; "": as it is
    force: bool = False


@dataclass(frozen=True, slots=True)
class MemberDecision:
    """What a request comes to."""

    member: ClusterMember | None = None  # the entry that begins it
    lead: bool = False  # the node is to lead

    @property
    def already(self) -> bool:
        """It is done, or under way."""
        return self.member is None and not self.lead


ALREADY = MemberDecision()


def decide_request(view: MembershipView, request: MemberRequest) -> MemberDecision:
    """What begins the change. Raises: MembershipRefused."""
    if request.kind == "transfer":
        return _decide_transfer(view, request.node)
    decision = {"add": _decide_add, "replace": _decide_replace}.get(request.kind, _decide_removal)(view, request)
    begun = view.under_way
    if decision.member is not None and begun is not None and begun.node != request.node:
        raise MembershipRefused(
            RefusedBecause.OPERATION_UNDER_WAY, f"node {begun.node} is {begun.stage.value}: one change at a time"
        )
    if decision.member is None or not request.force:
        return decision
    return MemberDecision(dataclasses.replace(decision.member, forced=True))


def _decide_add(view: MembershipView, request: MemberRequest) -> MemberDecision:
    old = view.members.get(request.node)
    if old is None or old.stage is MemberStage.REMOVED or _was_left_behind(view, old):
        peer, client = _addresses(view, request)
        if old is None and request.node in view.present():
            return ALREADY  # one of the first members, which the log does not state yet
        if len([of for of in view.members.values() if of.stage is not MemberStage.REMOVED]) >= NODES_MAX:
            raise MembershipRefused(RefusedBecause.TOO_MANY_NODES, f"a cluster has at most {NODES_MAX} nodes")
        if old is None:
            return MemberDecision(ClusterMember(request.node, b"", peer, client, MemberStage.EXPECTED))
        return MemberDecision(_expected(old, peer, client))
    if old.stage is MemberStage.LEAVING:
        raise MembershipRefused(RefusedBecause.OPERATION_UNDER_WAY, f"node {request.node} is leaving: add it when it has left")
    if _same_place(old, request):
        return ALREADY
    if old.stage is MemberStage.EXPECTED:
        return MemberDecision(_expected(old, *_addresses(view, request)))
    raise MembershipRefused(
        RefusedBecause.OTHER_ADDRESS,
        f"node {request.node} is at {old.peer}, {old.client}: `replace` moves it to another address",
    )


def _decide_replace(view: MembershipView, request: MemberRequest) -> MemberDecision:
    old = _known(view, request)
    if old.stage is MemberStage.LEAVING:
        raise MembershipRefused(RefusedBecause.OPERATION_UNDER_WAY, f"node {request.node} is leaving for good")
    if old.stage is MemberStage.REMOVED:
        raise MembershipRefused(RefusedBecause.UNKNOWN_NODE, f"node {request.node} was removed: `add` brings it back")
    if old.stage in _COMING and request.force:  # the disk that was on its way is given up
        return MemberDecision(_gives_up(old, *_addresses(view, request, old)))
    if old.stage is not MemberStage.MEMBER and _same_place(old, request):
        return ALREADY
    if old.stage in _COMING:
        raise MembershipRefused(
            RefusedBecause.OPERATION_UNDER_WAY, f"node {request.node} joins from {old.peer}: `replace --force` gives its disk up"
        )
    peer, client = _addresses(view, request, old)
    if old.stage is MemberStage.MEMBER:
        _check_loss(view, request)
        return MemberDecision(_gives_up(old, peer, client))
    return MemberDecision(dataclasses.replace(old, peer=peer, client=client))


def _gives_up(old: ClusterMember, peer: str, client: str) -> ClusterMember:
    """Its present disk leaves; the next one is expected there."""
    return dataclasses.replace(old, stage=MemberStage.LEAVING_OLD, peer=peer, client=client)


def _decide_removal(view: MembershipView, request: MemberRequest) -> MemberDecision:
    old = _known(view, request)
    if old.stage in _GOING:
        return ALREADY
    if request.kind == "retire" and not view.is_live(request.node) and old.stage not in NOWHERE:
        raise MembershipRefused(
            RefusedBecause.NOT_HEARD, f"node {request.node} is not heard from, so it cannot learn of it: `remove` takes it out"
        )
    _check_loss(view, request)
    return MemberDecision(dataclasses.replace(old, stage=MemberStage.LEAVING))


def _decide_transfer(view: MembershipView, node: int) -> MemberDecision:
    if node == view.node:
        return ALREADY
    if node not in view.present():
        raise MembershipRefused(RefusedBecause.UNKNOWN_NODE, f"the cluster has no node {node}")
    if why := why_no_successor(view, node):
        raise MembershipRefused(RefusedBecause.NO_SUCCESSOR, why)
    return MemberDecision(lead=True)


def why_no_successor(view: MembershipView, node: int) -> str:
    """Why this node cannot lead; "" when it can."""
    if node in view.unfit:
        return f"node {node} says that it should not lead"
    if view.seats_of(node) != {Seat.VOTER}:
        return f"node {node} does not vote in every group"
    return "" if view.is_live(node) else f"node {node} is not heard from"


def find_successor(view: MembershipView) -> int:
    """A node that could lead, the one that holds most groups whole first; 0: none."""
    able = [node for node in view.present() if node != view.node and not why_no_successor(view, node)]
    return max(able, key=lambda node: (sum(node in sight.whole for sight in view.groups.values()), -node), default=0)


def _known(view: MembershipView, request: MemberRequest) -> ClusterMember:
    member = view.members.get(request.node)
    if member is None:
        why = "has not met it yet" if request.node in view.present() else "has no such node"
        raise MembershipRefused(RefusedBecause.UNKNOWN_NODE, f"node {request.node}: the cluster {why}")
    return member


def _check_loss(view: MembershipView, request: MemberRequest) -> None:
    """What is left without the node. Raises: MembershipRefused."""
    node = request.node
    held = {group: sight for group, sight in view.groups.items() if sight.seat_of(node) is Seat.VOTER}
    if any(set(sight.configuration.voters) == {node} for sight in held.values()):
        raise MembershipRefused(RefusedBecause.LAST_VOTER, f"node {node} is the last voter")
    if request.force:
        return
    risks = [(risk, group) for group, sight in sorted(held.items()) if (risk := risk_of(sight, Act.REMOVE, node)) is not None]
    for (kind, why), group in sorted(risks, key=lambda risk: risk[0][0] is ChangeRisk.LAST_COPY):
        code = RefusedBecause.LAST_COPY if kind is ChangeRisk.LAST_COPY else RefusedBecause.QUORUM_AT_RISK
        raise MembershipRefused(code, f"group {group}: {why}; `--force` overrules this, and is recorded for ever")


def _addresses(view: MembershipView, request: MemberRequest, old: ClusterMember | None = None) -> tuple[str, str]:
    """Peer and client address. Raises: MembershipRefused."""
    peer, client = request.peer or (old.peer if old else ""), request.client or (old.client if old else "")
    try:
        parse_address(peer)
    except ValueError as error:
        raise MembershipRefused(RefusedBecause.BAD_REQUEST, f"peer: {error}") from None
    if not client.startswith(("http://", "https://")):
        raise MembershipRefused(RefusedBecause.BAD_REQUEST, f"client: {client!r} is no URL")
    for member in view.members.values():
        taken = {member.peer, member.client} & {peer, client}
        if member.node != request.node and member.stage is not MemberStage.REMOVED and taken:
            raise MembershipRefused(RefusedBecause.ADDRESS_TAKEN, f"node {member.node} has {', '.join(sorted(taken))}")
    others = [of for of in view.members.values() if of.node != request.node and of.stage is not MemberStage.REMOVED]
    try:
        check_addresses(_address(request.node, peer, client), [_address(of.node, of.peer, of.client) for of in others])
    except PlaceTaken as error:
        raise MembershipRefused(RefusedBecause.ADDRESS_TAKEN, str(error)) from None
    except ValueError as error:
        raise MembershipRefused(RefusedBecause.BAD_REQUEST, str(error)) from None
    return peer, client


def _address(node: int, peer: str, client: str) -> MemberAddress:
    """Raises: ValueError."""
    return MemberAddress(node, parse_address(peer), client)


def _was_left_behind(view: MembershipView, old: ClusterMember) -> bool:
    """A recovery without a majority continued without it, and no entry says so."""
    return old.stage is MemberStage.MEMBER and view.seats_of(old.node) == {Seat.OUT}


def _same_place(old: ClusterMember, request: MemberRequest) -> bool:
    return request.peer in ("", old.peer) and request.client in ("", old.client)


def _expected(old: ClusterMember, peer: str, client: str) -> ClusterMember:
    """The node at that place, with no life that counts."""
    former = (*old.former, old.incarnation) if old.incarnation else old.former
    return dataclasses.replace(
        old, incarnation=b"", peer=peer, client=client, stage=MemberStage.EXPECTED, admitted={}, former=former
    )


_REFUSALS = {
    RefusedBecause.QUORUM_AT_RISK: WishRefusal.QUORUM_AT_RISK,
    RefusedBecause.LAST_VOTER: WishRefusal.QUORUM_AT_RISK,
    RefusedBecause.LAST_COPY: WishRefusal.LAST_COPY,
    RefusedBecause.OPERATION_UNDER_WAY: WishRefusal.OPERATION_UNDER_WAY,
}


def decide_wish(view: MembershipView, wish: CopyWish) -> tuple[WishStanding, ClusterMember | None]:
    """The answer, and the entry to be stated."""
    member = view.members.get(wish.node)
    if member is None and wish.node in view.present():
        return _refuse(None, WishRefusal.BUSY, f"the log does not state node {wish.node} yet"), None
    if member is None:
        return _refuse(None, WishRefusal.NOT_EXPECTED, f"`cmdlog cluster add {wish.node}` makes the cluster expect it"), None
    if wish.incarnation in member.former:
        return _refuse(
            member, WishRefusal.STALE_INCARNATION, f"{wish.incarnation.hex()} was replaced, and never comes back"
        ), None
    if member.stage in (MemberStage.LEAVING, MemberStage.REMOVED):
        why = f"node {wish.node} was removed; `cmdlog cluster add {wish.node}` brings it back with another disk"
        return _refuse(member, WishRefusal.REMOVED, why), None
    if member.stage is MemberStage.EXPECTED:
        return _expect(view, wish, member)
    if member.incarnation == wish.incarnation or (member.stage is MemberStage.LEAVING_OLD and _may_wait(member, wish)):
        return WishStanding(member), None
    if not wish.former or wish.former != member.incarnation:
        joins = member.stage in (MemberStage.JOINING, MemberStage.ADMITTED)
        command = f"`cmdlog cluster replace {wish.node}{' --force' if joins else ''}` gives it to another disk"
        why = f"incarnation {member.incarnation.hex()} holds the place of node {wish.node}; {command}"
        return _refuse(member, WishRefusal.REPLACE_NEEDED, why), None
    return _give_up(view, wish, member)


def _expect(view: MembershipView, wish: CopyWish, member: ClusterMember) -> tuple[WishStanding, ClusterMember | None]:
    """The place is prepared."""
    if (begun := view.under_way) is not None:
        why = f"node {begun.node} is {begun.stage.value}: one change at a time"
        return _refuse(member, WishRefusal.OPERATION_UNDER_WAY, why), None
    return WishStanding(member), dataclasses.replace(member, stage=MemberStage.JOINING, incarnation=wish.incarnation)


def _may_wait(member: ClusterMember, wish: CopyWish) -> bool:
    """Its place is being prepared: the first disk that asks then gets it."""
    return wish.former in (b"", member.incarnation)


def _give_up(view: MembershipView, wish: CopyWish, member: ClusterMember) -> tuple[WishStanding, ClusterMember | None]:
    """The disk that holds the place gives up its present life."""
    if member.stage in (MemberStage.JOINING, MemberStage.ADMITTED):
        return WishStanding(member), dataclasses.replace(member, stage=MemberStage.LEAVING_OLD)
    try:
        decision = decide_request(view, MemberRequest("replace", wish.node))
    except MembershipRefused as error:
        return _refuse(member, _REFUSALS[error.code], str(error)), None
    return WishStanding(member), decision.member


def _refuse(member: ClusterMember | None, code: WishRefusal, why: str) -> WishStanding:
    return WishStanding(member, code, why)
