"""What a disk hears that wants to be filled, by the stage of its node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cmdlog.cluster.copying.wishes import CopyWish, WishRefusal
from cmdlog.cluster.membership.copy_wishes import decide_wish
from cmdlog.wal.format.cluster_record import MemberStage as S
from tests.cluster.membership.plan_model import LIVES, Model, cluster_of, member_of

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
