"""Damage at rest on the disks of a simulated cluster: a recovery of all of them is what the cluster was, or is refused."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping

import pytest

from cmdlog.wal.errors import WalError
from replay.errors import ReplayError
from tests.cluster.sim.cluster_run import settled_history
from tests.cluster.sim.joint_recovery import recover_states
from tests.cluster.sim.list_sites import ListState
from tests.cluster.sim.sim_cluster import SimCluster
from tests.cluster.sim.sim_member import PARTITIONS, directory_of
from tests.wal.sim.simfiles import SimFiles

pytestmark = pytest.mark.slow

CHUNK_BYTES = 16 << 10
STEPS = 1200
VALUES_MIN = 20


@functools.cache
def cluster() -> SimCluster:
    """One that has seen kills, power cuts and changes of leader; its processes have ended."""
    histories = (settled_history(seed, steps=STEPS, keeps_all=True) for seed in range(24, 60))
    world = next(world for world in histories if sum(map(len, world.lists().values())) > VALUES_MIN)
    for node in sorted(world.members):
        world.crash(node, power=False)
    return world


def disks() -> dict[int, SimFiles]:
    """Copies of its disks."""
    return {node: machine.files.kill() for node, machine in cluster().machines.items()}


def segments(files: SimFiles, node: int) -> list[str]:
    """The files of its log."""
    folder = f"{directory_of(node)}/log"
    return [f"{folder}/{name}" for name in files.listdir(folder) if files.open(f"{folder}/{name}").size() >= CHUNK_BYTES]


def damage(files: SimFiles, path: str, at: int, rng: random.Random) -> None:
    """Other bytes in one chunk."""
    size = min(CHUNK_BYTES, files.open(path).size() - at)
    if size > 0:
        files.overwrite(path, at, rng.randbytes(size))


def lists(states: Mapping[int, ListState]) -> dict[str, list[int]]:
    """What the partitions hold."""
    return {name: values for state in states.values() for name, values in state.lists.items()}


def recover_or_refuse(found: Mapping[int, SimFiles]) -> dict[str, list[int]] | None:
    """What a recovery makes of these disks; None when it refuses."""
    try:
        return lists(recover_states(found, PARTITIONS))
    except (WalError, ReplayError):
        return None


def expected() -> dict[str, list[int]]:
    """What the cluster held."""
    return lists(cluster().machines[1].states)


@pytest.mark.parametrize("seed", range(3))
def test_every_chunk_may_be_damaged_on_one_node_each(seed: int) -> None:
    """As a helix around the three logs: no node is whole, and nothing is lost."""
    rng, found = random.Random(seed), disks()
    names = {path.rsplit("/", 1)[1] for node, files in found.items() for path in segments(files, node)}
    for name in sorted(names):
        for at in range(0, 256 << 10, CHUNK_BYTES):
            node = rng.choice(sorted(found))
            path = f"{directory_of(node)}/log/{name}"
            if found[node].exists(path):
                damage(found[node], path, at, rng)
    assert recover_or_refuse(found) in (None, expected())  # one entry lies in other chunks of other logs: damages may meet


@pytest.mark.parametrize("seed", range(6))
def test_one_log_may_be_damaged_anywhere(seed: int) -> None:
    """One chunk, several, or the whole log: the others have all of it."""
    rng, found = random.Random(seed), disks()
    node = rng.choice(sorted(found))
    for path in segments(found[node], node):
        for at in range(0, found[node].open(path).size(), CHUNK_BYTES):
            if rng.random() < (0.1, 0.5, 1.0)[seed % 3]:
                damage(found[node], path, at, rng)
    assert lists(recover_states(found, PARTITIONS)) == expected()


@pytest.mark.parametrize("seed", range(4))
def test_what_all_logs_lack_is_refused(seed: int) -> None:
    """The same chunks of all logs, in use or not: the state that was, or no state at all."""
    rng, found = random.Random(seed), disks()
    at = rng.randrange(4) * CHUNK_BYTES
    for node, files in found.items():
        for path in segments(files, node):
            damage(files, path, at, rng)
    assert recover_or_refuse(found) in (None, expected())
