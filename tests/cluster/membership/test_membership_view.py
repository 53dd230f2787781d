"""What is read off a view: seats, spare voters, whose change is under way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cmdlog.cluster.membership.membership_view import Seat, spare_voters
from cmdlog.raft.configuration import Configuration, nodes
from cmdlog.wal.format.cluster_record import MemberStage
from tests.cluster.membership.plan_model import cluster_of, member_of


@pytest.mark.parametrize(
    ("voters", "outgoing", "live", "spare"),
    [
        ({1, 2, 3}, (), {1, 2, 3}, 1),
        ({1, 2, 3}, (), {1, 2}, 0),
        ({1, 2, 3}, (), {1}, -1),
        ({1, 2}, (), {1, 2}, 0),
        ({1}, (), {1}, 0),
        ({1, 2}, {1, 2, 3, 4}, {1, 2}, -1),
        ({1, 2, 3}, {1, 2, 3, 4}, {1, 2, 3}, 0),
    ],
)
def test_spare_voters_of_both_halves(voters: set[int], outgoing: set[int], live: set[int], spare: int) -> None:
    """As many as may be lost until one half has no majority."""
    configuration = Configuration(nodes(voters), outgoing=nodes(outgoing))
    assert spare_voters(configuration, frozenset(live)) == spare


def test_seats_and_mixed_nodes() -> None:
    """A node with two seats is on its way."""
    model = cluster_of(3)
    assert model.view.seats_of(3) == {Seat.VOTER}
    assert model.view.mixed() == ()
    half = model.with_group(0, cluster_of(2, learners=1).view.groups[0].configuration)
    assert half.view.seats_of(3) == {Seat.VOTER, Seat.LEARNER}
    assert half.view.mixed() == (3,)
    assert half.view.present() == (1, 2, 3)


def test_a_group_settles_when_its_configuration_is_committed_and_not_joint() -> None:
    """Both."""
    sight = cluster_of(3).view.groups[0]
    assert sight.settled
    assert not replace(sight, committed=False).settled
    joint = Configuration(nodes((1, 2)), outgoing=nodes((1, 2, 3)))
    assert not replace(sight, configuration=joint).settled


def test_a_change_under_way_is_found_by_its_stage() -> None:
    """A node that is only expected waits for its disk, and holds nobody up."""
    model = cluster_of(3).with_member(member_of(4, MemberStage.EXPECTED, b""))
    assert model.view.under_way is None
    joining = model.with_member(member_of(4, MemberStage.JOINING)).view.under_way
    assert joining is not None
    assert joining.node == 4
    assert model.view.stage_of(9) is MemberStage.MEMBER
