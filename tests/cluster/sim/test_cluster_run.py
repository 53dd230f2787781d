"""A slice of the simulated cluster: histories under faults, and what the simulation itself promises."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable

import pytest

from cmdlog.cluster.leader_fitness import FIT, Unfitness
from cmdlog.member.leading.commit_checks import GIVE_UP_S
from cmdlog.node.outcome import CallOutcome, NoMajority, Reply
from tests.cluster.sim.cluster_faults import ClusterFaults
from tests.cluster.sim.cluster_run import Ran, run_history
from tests.cluster.sim.joint_recovery import recover_states
from tests.cluster.sim.list_sites import ROUTES
from tests.cluster.sim.sim_clients import LISTS
from tests.cluster.sim.sim_cluster import SimCluster
from tests.cluster.sim.sim_member import PARTITIONS

SHORT_STEPS = 1500
SLICE_SEEDS = 8
FULL_SEEDS = 2
MAIL_MAX = 8
STEPS_MAX = 20_000
QUIET_STEPS = 2000  # in which everything has been written that can be


@pytest.mark.slow
def test_cluster_without_faults_answers_nearly_everything() -> None:
    """Else the histories under faults would show little."""
    ran = run_history(10, steps=SHORT_STEPS, faults=False)
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


@pytest.mark.slow
def test_follower_whose_disk_was_full_catches_up() -> None:
    """Its log looks at the disk again by itself: entries without room are not taken, so nothing else wakes it."""
    world = SimCluster(4)
    while not any(member.leads for member in world.members.values()):
        world.step()
    node = next(node for node, member in world.members.items() if not member.leads)
    member, files = world.members[node], world.machines[node].files
    files.capacity_bytes = files.disk.used_bytes()
    while not member.reserve.lacks_room:
        world.step()
    for client in world.clients:
        client.stopped = True
    for _ in range(QUIET_STEPS):
        world.step()
    assert member.log.disk_full is not None
    world.settle()
    assert world.members[node] is member
    assert member.log.disk_full is None


@pytest.mark.slow
@pytest.mark.parametrize("said", [True, False], ids=["said", "unsaid"])
@pytest.mark.parametrize("seed", range(FULL_SEEDS))
def test_calls_of_a_leader_whose_followers_are_full_are_answered(said: bool, seed: int) -> None:
    """Those that it has logged are in doubt, new ones are refused, reads are served; with room each is done once.

    `said`: the followers say that they are full, as they do, unless that is lost.
    """
    world = SimCluster(seed)
    world.loss = 0.0  # it leads on: without room there is no vote for another one
    step_until(world, lambda: any(member.leads for member in world.members.values()))
    (leader,) = [member for member in world.members.values() if member.leads]
    followers = [member for member in world.members.values() if member is not leader]
    for member in followers:
        member.machine.files.capacity_bytes = member.machine.files.disk.used_bytes()
    step_until(world, lambda: all(member.reserve.lacks_room for member in followers))
    for member in followers:
        member.transfer.set_reasons(Unfitness.LOG_FULL if said else FIT)
    step_until(world, lambda: leader.sequencer.replicated.suspended)
    refused_at = leader.sequencer.replicated.uncommitted_s
    assert (refused_at < GIVE_UP_S) is said
    replies: list[Reply] = []
    with pytest.raises(NoMajority, match="no room in the log" if said else "no confirmation from node"):
        leader.call(ROUTES["append"], [LISTS[0], 0], b"", replies.append)
    step_until(world, lambda: world.happened["answer unknown"] > 0)
    leader.call(ROUTES["values"], [LISTS[0]], b"", replies.append)
    step_until(world, lambda: bool(replies))
    assert isinstance(replies[0], CallOutcome)
    assert leader.leads
    world.settle()
    assert world.members[leader.node] is leader
    world.final_reads()
    world.check_end()


def step_until(world: SimCluster, condition: Callable[[], bool]) -> None:
    """Things happen until that is so, and no message is late for many steps: leaders stay."""
    for _ in range(STEPS_MAX):
        if condition():
            return
        world.step()
        while len(world.mail) > MAIL_MAX:
            world.deliver()
    raise AssertionError(world.describe())


def test_recovery_of_a_new_cluster_is_empty() -> None:
    """Its logs hold what a cluster begins with, and no call."""
    world = SimCluster(3, clients=1)
    disks = {node: machine.files for node, machine in world.machines.items()}
    states = recover_states(disks, PARTITIONS)
    assert {partition: list(state.lists.values()) for partition, state in states.items()} == {0: [[]], 1: [[]]}
