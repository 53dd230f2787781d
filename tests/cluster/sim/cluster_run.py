"""One history of a simulated cluster from its seed: faults, then peace, then all judges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.cluster.sim.cluster_faults import ClusterFaults
from tests.cluster.sim.joint_recovery import recover_states
from tests.cluster.sim.list_sites import ListState
from tests.cluster.sim.sim_cluster import SimCluster
from tests.cluster.sim.sim_member import PARTITIONS

STEPS: Final = 4000


@dataclass(frozen=True, slots=True)
class Ran:
    """What a history came to."""

    seed: int
    operations: int
    acknowledged: int
    happened: Counter[str]
    ticks: int
    mark: float  # the same in every run of the seed


def run_history(
    seed: int, *, steps: int = STEPS, faults: bool = True, nodes: int = 3, story: Callable[[str], None] | None = None
) -> Ran:
    """Raises: AssertionError, InvariantBroken, or whatever the cluster raised that it should not have."""
    world = SimCluster(seed, nodes=nodes)
    _misbehave(world, steps, faults=faults, story=story)
    if faults and world.rng.random() < 0.5:
        _kill_everything(world)
    world.settle()
    world.final_reads()
    world.check_end()
    _check_equality(world)
    acknowledged = sum(one.value is not None and one.outcome.value == "done" for one in world.history.operations)
    return Ran(seed, len(world.history.operations), acknowledged, world.happened, world.ticks, world.rng.random())


def settled_history(seed: int, *, steps: int, keeps_all: bool) -> SimCluster:
    """A cluster after its faults, level and judged."""
    world = SimCluster(seed)
    world.keeps_all = keeps_all
    _misbehave(world, steps, faults=True, story=None)
    world.settle()
    world.final_reads()
    world.check_end()
    return world


def _misbehave(world: SimCluster, steps: int, *, faults: bool, story: Callable[[str], None] | None) -> None:
    world.faults = ClusterFaults(world) if faults else None
    for number in range(steps):
        before = world.happened.copy()
        world.step()
        if story is not None and world.happened != before:
            story(f"step {number}, tick {world.ticks}: {', '.join(world.happened - before)}")
        world.check()
    world.faults = None


def _kill_everything(world: SimCluster) -> None:
    """What a recovery makes of the logs is a history that could have happened, too, whoever would win the election."""
    power = world.rng.random() < 0.7
    for node in sorted(world.machines):
        if node in world.members:
            world.crash(node, power=power)
    if world.keeps_all:
        world.check_alternative(_recover(world))


def _recover(world: SimCluster) -> dict[int, ListState]:
    return recover_states({node: machine.files for node, machine in world.machines.items()}, PARTITIONS)


def _check_equality(world: SimCluster) -> None:
    """The state of the cluster is the state of a recovery of its logs, and of the cluster that starts again."""
    states = {partition: state.captured() for partition, state in world.machines[1].states.items()}
    for node in sorted(world.members):
        world.crash(node, power=True)
    recovered = _recover(world) if world.keeps_all else states
    world.settle()
    for partition, state in states.items():
        for other in (recovered[partition], *(machine.states[partition] for machine in world.machines.values())):
            assert (other.lists, other.keys) == (state.lists, state.keys), f"partition {partition}: {other} and not {state}"
