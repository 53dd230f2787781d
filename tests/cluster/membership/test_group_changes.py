"""When a change of one node is safe, and where it is begun."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cmdlog.cluster.membership.group_changes import ChangeGroups, ChangeRisk, Rest, Wait, is_level, risk_of, seat_node
from cmdlog.cluster.membership.membership_view import GroupSight, Seat
from cmdlog.raft.configuration import Act
from cmdlog.wal.ids import CLUSTER_GROUP
from tests.cluster.membership.plan_model import Model, cluster_of

LIVE = frozenset({1, 2})


def sight(voters: int, *, live: frozenset[int], learners: int = 0, whole: frozenset[int] | None = None) -> GroupSight:
    """The first group of a cluster of so many."""
    of = replace(cluster_of(voters, learners=learners), up=live).view.groups[0]
    return of if whole is None else replace(of, whole=whole)


@pytest.mark.parametrize(
    ("act", "node", "of", "risk"),
    [
        (Act.REMOVE, 1, sight(1, live=frozenset({1})), ChangeRisk.LAST_VOTER),
        (Act.REMOVE, 3, sight(3, live=LIVE), None),
        (Act.REMOVE, 2, sight(3, live=LIVE), ChangeRisk.QUORUM),
        (Act.ADD_LEARNER, 2, sight(2, live=frozenset({1})), ChangeRisk.QUORUM),
        (Act.REMOVE, 4, sight(4, live=LIVE), ChangeRisk.QUORUM),  # joint: of the four, two are no majority
        (Act.REMOVE, 3, sight(3, live=LIVE, whole=frozenset({3})), ChangeRisk.LAST_COPY),
        (Act.ADD_LEARNER, 3, sight(3, live=LIVE, whole=frozenset()), ChangeRisk.LAST_COPY),
        (Act.ADD_VOTER, 3, sight(2, live=LIVE, learners=1), ChangeRisk.NOT_LEVEL),
        (Act.ADD_VOTER, 3, sight(2, live=frozenset({1, 2, 3}), learners=1), None),
        (Act.ADD_LEARNER, 9, sight(3, live=LIVE), None),  # takes nobody's vote
    ],
)
def test_every_risk_has_a_name(act: Act, node: int, of: GroupSight, risk: ChangeRisk | None) -> None:
    """One row per case."""
    found = risk_of(of, act, node)
    assert (None if found is None else found[0]) is risk


def test_a_change_begins_in_all_groups_or_in_none() -> None:
    """A group where it is not safe holds the others back, until it is begun somewhere."""
    model = cluster_of(3)
    view = model.view
    unsafe = replace(view.groups[1], live=frozenset({1, 3}))
    assert isinstance(seat_node(replace(view, groups={**view.groups, 1: unsafe}), 3, Seat.OUT), Wait)
    begun = model.with_group(0, cluster_of(2).view.groups[0].configuration).view
    assert seat_node(replace(begun, groups={**begun.groups, 1: unsafe}), 3, Seat.OUT) == ChangeGroups(
        Act.REMOVE, 3, (CLUSTER_GROUP,)
    )


def test_a_seat_that_a_node_has_needs_no_step() -> None:
    """In every group."""
    assert seat_node(cluster_of(3).view, 3, Seat.VOTER) is None
    assert seat_node(cluster_of(3).view, 9, Seat.OUT) is None


def test_a_node_is_level_by_the_groups_where_it_does_not_vote() -> None:
    """A voter that lags is one all the same."""
    assert is_level(replace(cluster_of(3), behind=frozenset({3})).view, 3)
    learner: Model = replace(cluster_of(2, learners=1), behind=frozenset({3}))
    assert not is_level(learner.view, 3)


def test_equal_steps_are_equal() -> None:
    """By what they do."""
    assert ChangeGroups(Act.REMOVE, 3, (0, 1)) == ChangeGroups(Act.REMOVE, 3, (0, 1))
    assert ChangeGroups(Act.REMOVE, 3, (0, 1)) != ChangeGroups(Act.REMOVE, 3, (0, 1), forced=True)
    assert Wait("for one") != Wait("for another")
    assert Rest() == Rest()
