"""What a log states of the latest forced recovery: its epoch, and the members that it has left behind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cmdlog.member.lost_majority.forced_epoch import StatedEpoch, groups_left_out, latest_epoch, members_left_behind
from cmdlog.raft.configuration import Configuration, nodes
from cmdlog.wal.format.cluster_record import ClusterMember, MemberStage
from cmdlog.wal.group_state import GroupState, Stated

NEVER = StatedEpoch(4, 0)
A, B = (ClusterMember(node, bytes([node]) * 8, f"10.0.0.{node}:7000", "") for node in (1, 2))
FORCED = Configuration(voters=nodes([1]), forced=True, epoch=9)
LEFT = replace(B, stage=MemberStage.EXPECTED, incarnation=b"", former=(B.incarnation,), forced=True)


def test_a_cluster_that_was_never_forced_has_none() -> None:
    """Its name is as it was made, and nothing is left to be done."""
    assert latest_epoch([NEVER]) == 0
    assert groups_left_out({0: NEVER, 1: NEVER}) == []


def test_the_latest_one_has_the_highest_term() -> None:
    """Epochs are drawn at random, so a later one may be the lower number."""
    assert latest_epoch([StatedEpoch(1 << 20, 99), StatedEpoch(3 << 20, 5), NEVER]) == 5


def test_groups_that_a_crash_left_out_are_found() -> None:
    """A prefix of the round is on disk: the others follow, also where an earlier recovery had reached them."""
    assert groups_left_out({0: StatedEpoch(3 << 20, 5), 1: StatedEpoch(1 << 20, 99), 2: NEVER}) == [1, 2]


def test_the_generation_of_a_node_alone_is_no_epoch() -> None:
    """Its configuration counts generations under the same name, and is not forced."""
    alone = GroupState(configurations=[Stated(1, 1, {"voters": [1], "epoch": 1})])
    forced = GroupState(configurations=[Stated(7, 9, {"voters": [1], "epoch": 3, "forced": True})])
    assert [StatedEpoch.of(alone), StatedEpoch.of(forced), StatedEpoch.of(GroupState())] == [(1, 0), (9, 3), (0, 0)]


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
