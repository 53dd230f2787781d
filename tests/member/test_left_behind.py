"""What the log states of members after a forced recovery."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cmdlog.member.lost_majority.left_behind import members_left_behind
from cmdlog.raft.configuration import Configuration, nodes
from cmdlog.wal.format.cluster_record import ClusterMember, MemberStage

A, B = (ClusterMember(node, bytes([node]) * 8, f"10.0.0.{node}:7000", "") for node in (1, 2))
FORCED = Configuration(voters=nodes([1]), forced=True, epoch=9)
LEFT = replace(B, stage=MemberStage.EXPECTED, incarnation=b"", former=(B.incarnation,), forced=True)


def test_without_a_forced_recovery_only_what_is_missing_is_stated() -> None:
    """As in every cluster that begins."""
    assert members_left_behind({1: A}, [B], Configuration(voters=nodes([1]))) == [B]
    assert members_left_behind({1: A, 2: B}, [], Configuration(voters=nodes([1]))) == []


def test_the_lives_of_the_others_are_over() -> None:
    """Whether the log had stated them before, or not; and the survivor's own entry says that it was forced."""
    mine = replace(A, forced=True)
    assert members_left_behind({1: A, 2: B}, [], FORCED) == [mine, LEFT]
    assert members_left_behind({}, [A, B], FORCED) == [mine, LEFT]
    assert members_left_behind({1: mine, 2: LEFT}, [], FORCED) == []


def test_a_member_that_came_back_stays_one() -> None:
    """Its new life is listed by the configuration, or is on its way into it."""
    joining = replace(LEFT, stage=MemberStage.JOINING, incarnation=b"newlife!")
    assert members_left_behind({2: joining}, [], FORCED) == []
    member = replace(joining, stage=MemberStage.MEMBER)
    assert members_left_behind({2: member}, [], replace(FORCED, voters=nodes([1, 2]))) == []


@pytest.mark.parametrize("stage", [MemberStage.LEAVING, MemberStage.REMOVED, MemberStage.EXPECTED])
def test_a_member_on_its_way_out_goes_on_so(stage: MemberStage) -> None:
    """What was decided about it holds."""
    assert members_left_behind({2: replace(B, stage=stage)}, [], FORCED) == []


def test_a_second_forced_recovery_ends_the_next_life() -> None:
    """Both lives are former ones then."""
    again = replace(LEFT, stage=MemberStage.MEMBER, incarnation=b"newlife!")
    (said,) = members_left_behind({2: again}, [], FORCED)
    assert said.former == (B.incarnation, b"newlife!")
