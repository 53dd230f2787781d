"""Every request in every stage of a node: what it begins, what it finds done, and its refusal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cmdlog.cluster.copying.wishes import CopyWish, WishRefusal
from cmdlog.cluster.membership.member_requests import MemberRequest, decide_request, decide_wish, find_successor
from cmdlog.cluster.membership.membership_view import MembershipView
from cmdlog.cluster.membership.operator_desk import MembershipRefused, RefusedBecause, RequestKind
from cmdlog.wal.format.cluster_record import MemberStage as S
from tests.cluster.membership.plan_model import LIVES, Model, cluster_of, member_of

PEER, CLIENT = "127.0.0.1:7009", "http://127.0.0.1:8009"
ALREADY = "already"
R = RefusedBecause


def outcome(view: MembershipView, request: MemberRequest) -> object:
    """The stage that it begins, that it is done already, or the code of its refusal."""
    try:
        decision = decide_request(view, request)
    except MembershipRefused as error:
        return error.code
    if decision.lead:
        return "leads"
    return ALREADY if decision.member is None else decision.member.stage


def in_stage(stage: S | None, node: int = 3) -> Model:
    """Three voters, or two where the node is in no group."""
    if stage in (None, S.EXPECTED, S.REMOVED, S.JOINING):
        model = cluster_of(2)
    else:
        model = cluster_of(3) if stage in (S.MEMBER, S.LEAVING, S.LEAVING_OLD) else cluster_of(2, learners=1)
    return model if stage is None else model.with_member(member_of(node, stage))


@pytest.mark.parametrize(
    ("stage", "add", "replaced", "removed"),
    [
        (None, S.EXPECTED, R.UNKNOWN_NODE, R.UNKNOWN_NODE),
        (S.EXPECTED, S.EXPECTED, S.EXPECTED, S.LEAVING),
        (S.JOINING, R.OTHER_ADDRESS, R.OPERATION_UNDER_WAY, S.LEAVING),
        (S.ADMITTED, R.OTHER_ADDRESS, R.OPERATION_UNDER_WAY, S.LEAVING),
        (S.MEMBER, R.OTHER_ADDRESS, S.LEAVING_OLD, S.LEAVING),
        (S.LEAVING_OLD, R.OTHER_ADDRESS, S.LEAVING_OLD, S.LEAVING),
        (S.LEAVING, R.OPERATION_UNDER_WAY, R.OPERATION_UNDER_WAY, ALREADY),
        (S.REMOVED, S.EXPECTED, R.UNKNOWN_NODE, ALREADY),
    ],
)
def test_every_request_in_every_stage(stage: S | None, add: object, replaced: object, removed: object) -> None:
    """To another address, so that something is to be done."""
    view = in_stage(stage).view
    assert outcome(view, MemberRequest("add", 3, PEER, CLIENT)) == add
    assert outcome(view, MemberRequest("replace", 3, PEER, CLIENT)) == replaced
    assert outcome(view, MemberRequest("remove", 3)) == removed


@pytest.mark.parametrize("stage", [S.EXPECTED, S.JOINING, S.ADMITTED, S.MEMBER, S.LEAVING_OLD])
def test_a_repeated_add_is_done_already(stage: S) -> None:
    """At the same address, however far the node has come."""
    of = member_of(3)
    assert outcome(in_stage(stage).view, MemberRequest("add", 3, of.peer, of.client)) == ALREADY


@pytest.mark.parametrize("stage", [S.EXPECTED, S.JOINING, S.ADMITTED, S.LEAVING_OLD])
def test_a_repeated_replace_is_under_way_already(stage: S) -> None:
    """The disk that joins is not driven out by a repetition."""
    assert outcome(in_stage(stage).view, MemberRequest("replace", 3)) == ALREADY


@pytest.mark.parametrize("stage", [S.JOINING, S.ADMITTED])
def test_a_disk_that_was_lost_on_its_way_is_given_up_by_force(stage: S) -> None:
    """Else the next one would wait for it for ever; that it was forced stays stated."""
    decision = decide_request(in_stage(stage).view, MemberRequest("replace", 3, force=True))
    assert decision.member is not None
    assert (decision.member.stage, decision.member.forced) == (S.LEAVING_OLD, True)


@pytest.mark.parametrize("kind", ["add", "remove", "replace"])
@pytest.mark.parametrize("stage", [S.LEAVING_OLD, S.JOINING, S.ADMITTED, S.LEAVING])
def test_a_second_change_is_refused_while_one_is_under_way(kind: RequestKind, stage: S) -> None:
    """Naming the first."""
    model = in_stage(stage)
    node = 2 if kind != "add" else 9
    with pytest.raises(MembershipRefused, match="node 3 is") as caught:
        decide_request(model.view, MemberRequest(kind, node, PEER, CLIENT))
    assert caught.value.code is R.OPERATION_UNDER_WAY


def test_a_removed_node_comes_back_without_its_former_lives() -> None:
    """What it was stays stated for ever."""
    gone = replace(member_of(3, S.REMOVED), forced=True, ended={0: (1, 9)}, former=(b"a former",))
    decision = decide_request(cluster_of(2).with_member(gone).view, MemberRequest("add", 3, PEER, CLIENT))
    assert decision.member is not None
    assert (decision.member.stage, decision.member.incarnation) == (S.EXPECTED, b"")
    assert decision.member.former == (b"a former", LIVES[3])
    assert (decision.member.forced, dict(decision.member.ended)) == (True, {0: (1, 9)})


@pytest.mark.parametrize(
    ("request_", "up", "code"),
    [
        (MemberRequest("remove", 2), {1, 2}, R.QUORUM_AT_RISK),
        (MemberRequest("replace", 2), {1, 2}, R.QUORUM_AT_RISK),
        (MemberRequest("remove", 3), {1, 2}, S.LEAVING),
        (MemberRequest("retire", 3), {1, 2}, R.NOT_HEARD),
        (MemberRequest("retire", 3), {1, 2, 3}, S.LEAVING),
        (MemberRequest("remove", 2, force=True), {1, 2}, S.LEAVING),
    ],
)
def test_what_stays_decides_about_a_removal(request_: MemberRequest, up: set[int], code: object) -> None:
    """Of three voters, with those that are heard from."""
    assert outcome(replace(cluster_of(3), up=frozenset(up)).view, request_) == code


def test_the_last_whole_copy_stays() -> None:
    """The others are heard from, and lag."""
    view = replace(cluster_of(3), behind=frozenset({1, 3})).view
    assert outcome(view, MemberRequest("remove", 2)) is R.LAST_COPY
    assert outcome(view, MemberRequest("replace", 2)) is R.LAST_COPY
    forced = decide_request(view, MemberRequest("remove", 2, force=True)).member
    assert forced is not None
    assert forced.forced


def test_the_last_voter_stays_whatever_is_forced() -> None:
    """Nobody could commit its removal."""
    assert outcome(cluster_of(1).view, MemberRequest("remove", 1, force=True)) is R.LAST_VOTER


@pytest.mark.parametrize(
    ("peer", "client", "code"),
    [
        ("", CLIENT, R.BAD_REQUEST),
        ("nowhere", CLIENT, R.BAD_REQUEST),
        (PEER, "", R.BAD_REQUEST),
        (PEER, "ftp://x", R.BAD_REQUEST),
        ("127.0.0.1:7001", CLIENT, R.ADDRESS_TAKEN),
        (PEER, "http://127.0.0.1:8002", R.ADDRESS_TAKEN),
        ("localhost:7001", CLIENT, R.ADDRESS_TAKEN),
        (PEER, "http://localhost:7001", R.ADDRESS_TAKEN),
        ("0.0.0.0:7009", CLIENT, R.BAD_REQUEST),
        (PEER, "http://[::]:8009", R.BAD_REQUEST),
        (PEER, "http://h:0", R.BAD_REQUEST),
        (PEER, CLIENT, S.EXPECTED),
    ],
)
def test_an_address_is_checked(peer: str, client: str, code: object) -> None:
    """Of a node that is added."""
    assert outcome(cluster_of(3).view, MemberRequest("add", 9, peer, client)) == code


def test_a_cluster_has_at_most_nine_nodes() -> None:
    """Removed ones do not count."""
    full = cluster_of(9)
    assert outcome(full.view, MemberRequest("add", 10, "h:1", "http://h")) is R.TOO_MANY_NODES
    fewer = full.with_member(member_of(9, S.REMOVED))
    assert outcome(fewer.view, MemberRequest("add", 10, "h:1", "http://h")) is S.EXPECTED


def test_a_first_member_that_the_log_does_not_state_is_known() -> None:
    """It is in every group; who asks is to ask again."""
    model = cluster_of(3)
    view = replace(model.view, members={})
    assert outcome(view, MemberRequest("add", 3, PEER, CLIENT)) == ALREADY
    assert outcome(view, MemberRequest("remove", 3)) is R.UNKNOWN_NODE


def test_a_node_that_a_recovery_left_behind_is_added_under_another_life() -> None:
    """The log still calls it a member, and it is in no group."""
    of = member_of(3)
    decision = decide_request(cluster_of(2).with_member(of).view, MemberRequest("add", 3, of.peer, of.client))
    assert decision.member is not None
    assert (decision.member.stage, decision.member.former) == (S.EXPECTED, (LIVES[3],))


def test_leadership_goes_to_a_voter_that_is_heard_from_and_fit() -> None:
    """Anything else is refused, and the leader itself has it already."""
    model = replace(cluster_of(3, learners=1), up=frozenset({1, 2, 4}))
    outcomes = [outcome(model.view, MemberRequest("transfer", node)) for node in (1, 2, 3, 4, 9)]
    assert outcomes == [ALREADY, "leads", R.NO_SUCCESSOR, R.NO_SUCCESSOR, R.UNKNOWN_NODE]
    assert outcome(replace(model.view, unfit=frozenset({2})), MemberRequest("transfer", 2)) is R.NO_SUCCESSOR


def test_the_wholest_node_is_the_successor() -> None:
    """The first of them, and none where nobody can lead."""
    assert find_successor(cluster_of(3).view) == 2
    assert find_successor(replace(cluster_of(3), behind=frozenset({2})).view) == 3
    assert find_successor(cluster_of(1).view) == 0


NEW, OTHER = b"new disk", b"another1"
W = WishRefusal


def wish(incarnation: bytes = NEW, former: bytes = b"", node: int = 3) -> CopyWish:
    """Of node 3."""
    return CopyWish(node, incarnation, former, "for a test", "", "")


def heard(model: Model, asked: CopyWish) -> tuple[WishRefusal | None, S | None]:
    """The refusal, and the stage that is stated."""
    standing, member = decide_wish(model.view, asked)
    assert standing.why or standing.refusal is None
    return standing.refusal, None if member is None else member.stage


def where(stage: S, incarnation: bytes = LIVES[3], **fields: object) -> Model:
    """Node 3 is there; nodes 1 and 2 live and vote, and it does where it is a member."""
    model = replace(cluster_of(3 if stage in (S.MEMBER, S.LEAVING_OLD, S.LEAVING) else 2), up=frozenset({1, 2}))
    return model.with_member(replace(member_of(3, stage, incarnation), **fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "asked", "refusal", "stated"),
    [
        (cluster_of(2), wish(), W.NOT_EXPECTED, None),
        (where(S.EXPECTED, b""), wish(), None, S.JOINING),
        (where(S.EXPECTED, b"", former=(NEW,)), wish(), W.STALE_INCARNATION, None),
        (where(S.JOINING, NEW), wish(), None, None),
        (where(S.JOINING, OTHER), wish(), W.REPLACE_NEEDED, None),
        (where(S.JOINING, OTHER), wish(former=OTHER), None, S.LEAVING_OLD),
        (where(S.ADMITTED, NEW), wish(), None, None),
        (where(S.ADMITTED, OTHER), wish(), W.REPLACE_NEEDED, None),
        (where(S.MEMBER, NEW), wish(), None, None),
        (where(S.MEMBER), wish(), W.REPLACE_NEEDED, None),
        (where(S.MEMBER), wish(former=OTHER), W.REPLACE_NEEDED, None),
        (where(S.MEMBER), wish(former=LIVES[3]), None, S.LEAVING_OLD),
        (where(S.LEAVING_OLD), wish(), None, None),
        (where(S.LEAVING), wish(), W.REMOVED, None),
        (where(S.REMOVED), wish(), W.REMOVED, None),
        (replace(where(S.MEMBER), up=frozenset({1})), wish(former=LIVES[3]), W.QUORUM_AT_RISK, None),
        (replace(where(S.MEMBER), behind=frozenset({1, 2})), wish(former=LIVES[3]), W.LAST_COPY, None),
    ],
)
def test_every_wish_in_every_stage(model: Model, asked: CopyWish, refusal: WishRefusal | None, stated: S | None) -> None:
    """One row per case."""
    assert heard(model, asked) == (refusal, stated)


def test_one_change_at_a_time() -> None:
    """The place is prepared; another node's change comes first."""
    model = where(S.EXPECTED, b"").with_member(member_of(2, S.LEAVING))
    assert heard(model, wish()) == (W.OPERATION_UNDER_WAY, None)
    waiting = where(S.MEMBER).with_member(member_of(2, S.LEAVING_OLD))
    assert heard(waiting, wish(former=LIVES[3])) == (W.OPERATION_UNDER_WAY, None)


def test_a_disk_that_joins_is_stated_with_its_life_alone() -> None:
    """Address and history are the cluster's, not the disk's."""
    model = where(S.EXPECTED, b"", former=(OTHER,), forced=True)
    asked = replace(wish(), peer="elsewhere:1", client="http://elsewhere")
    _, member = decide_wish(model.view, asked)
    assert member is not None
    assert (member.incarnation, member.peer, member.former, member.forced) == (NEW, "127.0.0.1:7003", (OTHER,), True)


def test_a_first_member_that_the_log_does_not_state_asks_again() -> None:
    """The leader states it soon."""
    standing, _ = decide_wish(replace(cluster_of(3).view, members={}), wish())
    assert standing.refusal is W.BUSY
