"""What the cluster says to a disk that wants to be filled, and the MEMBER entry that follows from it.

One rule: pure. A disk takes a place that an operator has prepared, or the place of the life that it gives up: it names that life,
which only the disk itself and the cluster know to be the present one. Any other disk has to wait for an operator.
"""

from __future__ import annotations

import dataclasses

from cmdlog.cluster.copying.wishes import CopyWish, WishRefusal, WishStanding
from cmdlog.cluster.membership.member_requests import MemberRequest, decide_request
from cmdlog.cluster.membership.membership_view import MembershipView
from cmdlog.cluster.membership.refusals import MembershipRefused, RefusedBecause
from cmdlog.wal.format.cluster_record import ClusterMember, MemberStage

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
