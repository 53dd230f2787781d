"""The other half of the slice of simulated histories, in a file of its own so that two processes share the time."""

from __future__ import annotations

import functools
from collections import Counter

import pytest

from tests.raft.sim.multi_raft import run_groups
from tests.raft.simslice import PARTS, counted


@pytest.mark.slow
@pytest.mark.parametrize("part", range(1, PARTS, 2))
def test_history_is_safe_and_comes_back_to_life(part: int) -> None:
    """Whatever the seed does, nothing that was promised is broken, and after healing everything works again."""
    counted(part)


@functools.cache
def counted_groups(seed: int) -> Counter[str]:
    """What happened in a history of several groups."""
    return run_groups(seed, units=800)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_groups_over_one_log_are_safe_and_come_back_to_life(seed: int) -> None:
    """Rounds of all groups, one log replayed at every start, groups that leave a node and come back."""
    counted_groups(seed)


@pytest.mark.slow
def test_everything_that_is_simulated_of_groups_happens() -> None:
    """A simulation in which nothing goes wrong proves nothing."""
    total = sum(map(counted_groups, range(8)), Counter[str]())
    wanted = ("rounds", "crash", "removed", "compactions", "fetches", "proposals", "leads")
    assert [name for name in wanted if not total[name]] == []
