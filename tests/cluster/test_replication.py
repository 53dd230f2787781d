"""The driver, over histories with crashes: what is committed anywhere is the same everywhere, and survives."""

from __future__ import annotations

import pytest

from tests.cluster.world import World
from tests.wal.sim.simfiles import SimCrash


def history(seed: int, *, steps: int, faults: bool) -> World:
    """One history; ends with every node up, level and led."""
    world = World(seed)
    rng = world.rng
    for _ in range(steps):
        try:
            world.step()
            if rng.random() < 0.1:
                world.propose()
            if faults and rng.random() < 0.004:
                number = rng.choice(list(world.lives))
                if number in world.nodes:
                    world.crash(number, power=rng.random() < 0.5)
            if faults and rng.random() < 0.02 and (down := sorted(set(world.lives) - set(world.nodes))):
                world.boot(rng.choice(down))
            if faults and rng.random() < 0.005:
                world.cut = {(a, b) for a in world.lives for b in world.lives if rng.random() < 0.2}
            if faults and rng.random() < 0.02:
                world.cut.clear()
        except SimCrash:
            continue
        world.check()
    world.settle()
    world.check()
    return world


def test_three_nodes_elect_replicate_and_converge() -> None:
    """Without faults everything that a leader took is run everywhere, in one order."""
    world = history(1, steps=3000, faults=False)
    assert world.proposed > 50
    ran = {node.node: node.machine.ran for node in world.nodes.values()}
    assert ran[1] == ran[2] == ran[3]
    waiting = sum(len(numbers) for node in world.nodes.values() for numbers in node.machine.waiting.values())
    assert sum(len(of) for of in ran[1].values()) >= world.proposed - waiting


@pytest.mark.parametrize("seed", range(3))
def test_histories_with_crashes_and_cuts(seed: int) -> None:
    """Kills, power cuts, cut links, lost and doubled messages; then all is well again."""
    history(seed, steps=3000, faults=True)


def test_the_log_keeps_what_is_committed_and_not_run() -> None:
    """A durable commit mark does not let go of an entry that waits for the leader or for other partitions."""
    world = history(2, steps=2000, faults=False)
    driver = world.nodes[1].driver
    marked = driver.marked[0]
    assert marked > 6
    blocks = driver.entry_blocks
    assert driver.first_needed_block({0: 4, 1: driver.marked[1]}) == blocks.block_of(0, 5)
    free = driver.first_needed_block({})
    assert free is None or free > (blocks.block_of(0, 5) or 0)
