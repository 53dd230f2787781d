"""Simulated histories of several groups over one log, for the `RaftGroups` of a node."""

from __future__ import annotations

import functools
from collections import Counter

import pytest

from tests.raft.sim.multi_raft import run_groups


@functools.cache
def counted_groups(seed: int) -> Counter[str]:
    """What happened in a history of several groups."""
    return run_groups(seed, units=800)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_groups_over_one_log_are_safe_and_come_back_to_life(seed: int) -> None:
    """Rounds of all groups, one log replayed at every start, groups that leave a node and come back."""
    counted_groups(seed)


@pytest.mark.slow
def test_everything_that_is_simulated_of_groups_happens() -> None:
    """A simulation in which nothing goes wrong proves nothing."""
    total = sum(map(counted_groups, range(5)), Counter[str]())
    wanted = ("rounds", "crash", "compactions", "fetches", "proposals", "leads")
    assert [name for name in wanted if not total[name]] == []
