"""Steps are values: a plan that is made twice is compared, and logged once."""

from __future__ import annotations

from cmdlog.cluster.membership.member_steps import ChangeGroups, Rest, Wait
from cmdlog.raft.configuration import Act


def test_equal_steps_are_equal() -> None:
    """By what they do."""
    assert ChangeGroups(Act.REMOVE, 3, (0, 1)) == ChangeGroups(Act.REMOVE, 3, (0, 1))
    assert ChangeGroups(Act.REMOVE, 3, (0, 1)) != ChangeGroups(Act.REMOVE, 3, (0, 1), forced=True)
    assert Wait("for one") != Wait("for another")
    assert Rest() == Rest()
