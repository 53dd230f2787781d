"""A slice of the simulated cluster: histories under faults, and what the simulation itself promises."""

from __future__ import annotations

import functools
from collections import Counter

import pytest

from tests.cluster.sim.cluster_faults import ClusterFaults
from tests.cluster.sim.cluster_run import Ran, run_history
from tests.cluster.sim.joint_recovery import recover_states
from tests.cluster.sim.sim_cluster import SimCluster
from tests.cluster.sim.sim_member import PARTITIONS

SHORT_STEPS = 1500
SLICE_SEEDS = 7


@pytest.mark.slow
def test_cluster_without_faults_answers_nearly_everything() -> None:
    """Else the histories under faults would show little."""
    ran = run_history(1, steps=SHORT_STEPS, faults=False)
    assert ran.acknowledged > 25


@functools.cache
def ran(seed: int) -> Ran:
    """One history of the slice."""
    return run_history(seed, steps=SHORT_STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SLICE_SEEDS))
def test_histories_under_faults_could_have_happened(seed: int) -> None:
    """And the state is that of a recovery of the logs, and of the cluster that starts again."""
    assert ran(seed).operations


@pytest.mark.slow
def test_every_kind_of_fault_happens() -> None:
    """A simulation in which nothing goes wrong proves nothing."""
    happened = sum((ran(seed).happened for seed in range(SLICE_SEEDS)), Counter[str]())
    assert set(ClusterFaults(SimCluster(0)).names) <= happened.keys()


@pytest.mark.slow
def test_five_nodes_survive_what_three_do() -> None:
    """Majorities may overlap in one node, and rings of cuts leave none with all others."""
    assert run_history(3, steps=SHORT_STEPS, nodes=5).operations


@pytest.mark.slow
def test_a_seed_repeats_its_history() -> None:
    """To the last random number."""
    assert run_history(11, steps=800) == run_history(11, steps=800)


@pytest.mark.sim
@pytest.mark.timeout(0)
def test_many_histories() -> None:
    """As `make sim` runs them."""
    for seed in range(200):
        run_history(seed)


def test_recovery_of_a_new_cluster_is_empty() -> None:
    """Its logs hold what a cluster begins with, and no call."""
    world = SimCluster(3, clients=1)
    disks = {node: machine.files for node, machine in world.machines.items()}
    states = recover_states(disks, PARTITIONS)
    assert {partition: list(state.lists.values()) for partition, state in states.items()} == {0: [[]], 1: [[]]}
