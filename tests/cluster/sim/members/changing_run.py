"""One history of a simulated cluster whose members change, from its seed: faults, then peace, then all judges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.cluster.sim.cluster_run import Ran
from tests.cluster.sim.members.changing_cluster import ChangingCluster
from tests.cluster.sim.members.member_faults import MemberFaults
from tests.cluster.sim.members.subset_recovery import check_subsets

MEMBER_STEPS: Final = 2500


def run_changing(seed: int, *, steps: int = MEMBER_STEPS, story: Callable[[str], None] | None = None) -> Ran:
    """Raises: as `run_history`."""
    world = ChangingCluster(seed, nodes=3 if seed % 3 else 5)
    world.faults = MemberFaults(world)
    for number in range(steps):
        before = world.happened.copy()
        world.step()
        if story is not None and world.happened != before:
            story(f"step {number}, tick {world.ticks}: {', '.join(world.happened - before)}")
        world.check()
    world.faults = None
    if world.rng.random() < 0.6:
        _kill_everything(world)
        check_subsets(world, world.rng)
    end_and_judge(world)
    acknowledged = sum(one.value is not None and one.outcome.value == "done" for one in world.history.operations)
    return Ran(seed, len(world.history.operations), acknowledged, world.happened, world.ticks, world.rng.random())


def end_and_judge(world: ChangingCluster) -> None:
    """Peace, the final reads, and recoveries from every subset of the directories. Raises: AssertionError."""
    world.settle()
    world.final_reads()
    world.check_end()
    _check_equality(world)


def _kill_everything(world: ChangingCluster) -> None:
    power = world.rng.random() < 0.7
    for node in sorted(world.machines):
        world.crash(node, power=power)


def _check_equality(world: ChangingCluster) -> None:
    """What a recovery of any directories proves is the state of the cluster, and of the cluster that starts again by itself."""
    states = {p: state.captured() for p, state in world.machines[min(world.machines)].states.items()}
    _kill_everything(world)
    check_subsets(world, world.rng, states)
    world.settle()
    for partition, state in states.items():
        for machine in world.machines.values():
            other = machine.states[partition]
            assert (other.lists, other.keys) == (state.lists, state.keys), f"partition {partition}: {other} and not {state}"
