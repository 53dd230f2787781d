"""Which survivor of a lost majority holds the most."""

from __future__ import annotations

import pytest

from cmdlog.member.lost_majority.unsafe_recovery import better_ends
from cmdlog.wal.ids import CLUSTER_GROUP

ME = {0: (3, 10), CLUSTER_GROUP: (3, 7)}


def test_an_equal_survivor_is_not_better() -> None:
    """Either of two equal ones may be taken."""
    assert better_ends(1, ME, {2: ME, 1: ME}) == []


@pytest.mark.parametrize("end", [(3, 11), (4, 1)])
def test_a_later_term_or_a_longer_log_is_better(end: tuple[int, int]) -> None:
    """As in an election: the term first, then the index."""
    (said,) = better_ends(1, ME, {2: {0: end, CLUSTER_GROUP: (3, 7)}})
    assert said == f"node 2 ends partition 0 at term {end[0]} index {end[1]}, node 1 at term 3 index 10"


def test_a_longer_log_of_an_earlier_term_is_not_better() -> None:
    """Its tail may have been replaced in a term that it does not know."""
    assert better_ends(1, ME, {2: {0: (2, 99), CLUSTER_GROUP: (3, 7)}}) == []


def test_every_group_counts() -> None:
    """A survivor that is ahead in one group alone holds something that this one lacks."""
    said = better_ends(1, ME, {3: {0: (1, 1), CLUSTER_GROUP: (3, 8)}, 2: {5: (1, 1)}})
    assert [one.split(" at")[0] for one in said] == ["node 2 ends partition 5", "node 3 ends the cluster group"]
