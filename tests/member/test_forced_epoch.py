"""The epoch of the latest forced recovery, as the groups of a node state it."""

from __future__ import annotations

from cmdlog.member.lost_majority.forced_epoch import StatedEpoch, groups_left_out, latest_epoch
from cmdlog.wal.group_state import GroupState, Stated

NEVER = StatedEpoch(4, 0)


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
