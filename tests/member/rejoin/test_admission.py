"""A new life of a node's disk asks until the cluster has admitted it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cmdlog.cluster.cluster_file import MemberAddress
from cmdlog.cluster.copying.copy_values import CopyRefusal, CopyStanding, RollAddress
from cmdlog.cluster.copying.wishes import CopyWish
from cmdlog.member.rejoin.admission import ASK_EVERY_S, ASK_SOON_S, AdmissionWish, AskPauses, LifeOver, Neighbours
from cmdlog.member.rejoin.rejoin_record import MemberTombstone, RejoinReason
from cmdlog.wal.format.cluster_record import MemberStage
from tests.member.rejoin.copykit import LIFE, RECIPIENT, OfferedCopy, ScriptedSource, ground_of, member_of, standing_of

pytestmark = pytest.mark.slow  # the copy comes from a running node

Script = Callable[[CopyWish], CopyStanding]


def scripted(source: ScriptedSource, *stages: MemberStage | None) -> Script:
    """The cluster states of the node one of these after the other; the last one stays."""
    left = list(stages)

    def answer(wish: CopyWish) -> CopyStanding:
        stage = left.pop(0) if len(left) > 1 else left[0]
        member = None if stage is None else member_of(source.offer.cluster, RECIPIENT, wish.incarnation, stage)
        return standing_of(source, member)

    return answer


def admission_of(tmp_path: Path, offer: OfferedCopy, *sources: ScriptedSource) -> AdmissionWish:
    """Of the recipient."""
    ground = ground_of(tmp_path / "n2", offer.cluster, *sources)
    return AdmissionWish(ground, Neighbours(RECIPIENT, offer.cluster.members), LIFE)


def test_node_asks_until_its_life_is_admitted(offer: OfferedCopy, tmp_path: Path) -> None:
    """Expected and joining are on the way; what it says of itself is the same every time."""
    source = ScriptedSource(offer)
    source.standing = scripted(source, None, MemberStage.EXPECTED, MemberStage.JOINING, MemberStage.ADMITTED)
    asking = admission_of(tmp_path, offer, source)
    assert asking.wait_until_admitted(former=b"life-one", reason=RejoinReason.DAMAGED) is None
    assert set(source.wishes) == {CopyWish(RECIPIENT, LIFE, b"life-one", "damaged", "127.0.0.1:1", "http://node2")}
    assert len(source.wishes) == 4
    assert asking.leader == source.node


def test_pauses_between_questions_are_short_while_the_answers_change() -> None:
    """A cluster that goes on is asked soon again; one that says the same as before, less and less often."""
    pauses = AskPauses()
    assert pauses.after("leaving") == ASK_SOON_S
    assert [pauses.after("leaving") for _ in range(6)][-2:] == [ASK_EVERY_S, ASK_EVERY_S]
    assert pauses.after("expected") == ASK_SOON_S


def test_another_life_of_the_node_is_not_this_one(offer: OfferedCopy, tmp_path: Path) -> None:
    """That another disk is admitted under the number admits nobody else."""
    source = ScriptedSource(offer)
    other = member_of(offer.cluster, RECIPIENT, b"life-six", MemberStage.ADMITTED)
    asked = replace(admission_of(tmp_path, offer, source).ask_once(reason="empty"), standings=(standing_of(source, other),))
    assert not asked.admits(LIFE)


def test_life_that_was_replaced_or_votes_already_is_over(offer: OfferedCopy, tmp_path: Path) -> None:
    """A disk that asks has forgotten what it voted for."""
    for stage, former in ((MemberStage.MEMBER, ()), (MemberStage.EXPECTED, (LIFE,))):
        source = ScriptedSource(offer)
        life = LIFE if stage is MemberStage.MEMBER else b""
        member = replace(member_of(offer.cluster, RECIPIENT, life, stage), former=former)
        source.standing = lambda _wish, source=source, member=member: standing_of(source, member)
        with pytest.raises(LifeOver):
            admission_of(tmp_path, offer, source).wait_until_admitted(former=b"", reason=RejoinReason.EMPTY)


def test_only_a_leader_may_say_that_the_node_was_removed(offer: OfferedCopy, tmp_path: Path) -> None:
    """Another node may lag, and the node may have been added again since."""
    source = ScriptedSource(offer)
    member = replace(member_of(offer.cluster, RECIPIENT, b"life-one", MemberStage.REMOVED), ended={0: (2, 9)})
    asking = admission_of(tmp_path, offer, source)
    for leads in (False, True):
        source.standing = lambda _wish, leads=leads: standing_of(source, member, leads=leads)
        removal = asking.ask_once(reason="damaged").removal(RECIPIENT)
        assert removal == (MemberTombstone(RECIPIENT, b"life-one", {0: (2, 9)}) if leads else None)


def test_refusal_of_the_leader_is_reported(offer: OfferedCopy, tmp_path: Path) -> None:
    """An operator reads why the node waits."""
    source = ScriptedSource(offer)
    refusal = CopyRefusal("replace_needed", "`cmdlog cluster replace 2` gives it to another disk")
    source.standing = lambda _wish: standing_of(source, None, refusal=refusal)
    assert "cluster replace 2" in admission_of(tmp_path, offer, source).ask_once(reason="empty").why_not()
    assert admission_of(tmp_path, offer).ask_once(reason="empty").why_not() == "no other node answers"


def test_nodes_that_only_the_roll_names_are_asked(offer: OfferedCopy, tmp_path: Path) -> None:
    """The cluster file may be old: members that joined since are reached, and addresses that changed are followed."""
    first, fourth = ScriptedSource(offer), ScriptedSource(offer, node=4)
    roll = (RollAddress(1, "127.0.0.1:11", "http://one"), RollAddress(4, "127.0.0.1:14", "http://four"))
    first.standing = lambda _wish: standing_of(first, None, leads=False, roll=roll)
    asking = admission_of(tmp_path, offer, first, fourth)
    asked = asking.ask_once(reason="empty")
    assert [standing.node for standing in asked.standings] == [1, 4]
    assert len(first.wishes) == len(fourth.wishes) == 1


def test_roll_of_a_node_that_has_not_begun_is_not_believed(offer: OfferedCopy) -> None:
    """It repeats its own cluster file."""
    known = Neighbours(RECIPIENT, offer.cluster.members)
    source = ScriptedSource(offer, begun=False)
    known.learn_roll(standing_of(source, None, roll=(RollAddress(1, "127.0.0.1:99", ""),)))
    assert known.members == (offer.cluster.member(1),)
    source.begun = True
    known.learn_roll(standing_of(source, None, roll=(RollAddress(1, "127.0.0.1:99", ""), RollAddress(2, "127.0.0.1:2", ""))))
    assert known.members == (MemberAddress(1, ("127.0.0.1", 99), ""),)
