"""A slice of the simulated cluster whose members change, and what that simulation itself promises."""

from __future__ import annotations

import functools
import random
from collections import Counter
from types import SimpleNamespace
from typing import cast

import pytest

from tests.cluster.sim.cluster_run import Ran
from tests.cluster.sim.members.changing_cluster import ChangingCluster
from tests.cluster.sim.members.changing_run import run_changing
from tests.cluster.sim.members.member_faults import MemberFaults

SHORT_STEPS = 900
SLICE = range(6, 12)  # in which every member fault happens
MUST_HAPPEN = {"wiped", "copied", "member admitted", "failure set", "recovery proved", "recovery not proved"}

pytestmark = pytest.mark.slow


@functools.cache
def ran(seed: int) -> Ran:
    """One history of the slice."""
    return run_changing(seed, steps=SHORT_STEPS)


@pytest.mark.parametrize("seed", SLICE)
def test_histories_of_changing_members_could_have_happened(seed: int) -> None:
    """And every subset of the directories is recovered, or said not to prove enough, as the world knows it must be."""
    assert ran(seed).operations


def test_members_change_in_the_slice() -> None:
    """A simulation in which nothing goes wrong proves nothing."""
    happened = sum((ran(seed).happened for seed in SLICE), Counter[str]())
    assert happened.keys() >= MUST_HAPPEN


def test_every_kind_of_member_fault_is_in_twelve_seeds() -> None:
    """As the seed's number says."""
    worlds = [cast(ChangingCluster, SimpleNamespace(seed=seed, rng=random.Random(seed))) for seed in range(12)]
    kinds = [MemberFaults(world) for world in worlds]
    assert set(kinds[0].member_names) <= {name for faults in kinds for name in faults.kinds}


def test_a_seed_repeats_its_history_of_members() -> None:
    """To the last random number."""
    assert run_changing(5, steps=250) == run_changing(5, steps=250)


@pytest.mark.sim
@pytest.mark.timeout(0)
def test_many_histories_of_changing_members() -> None:
    """As `make sim` runs them."""
    for seed in range(100):
        run_changing(seed)
