"""Elections on slow disks and long ways: how long a group has no leader, and how many terms that costs.

One rule: every disk and every way takes about as long as is said, from a first start on, and the leader is killed again and
again. What is asked of an election is 5 syncs and 3 time-outs, and no more than 5 terms.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from cmdlog.raft import RaftSettings
from tests.raft.sim.clients import Clients
from tests.raft.sim.oracle import Oracle
from tests.raft.sim.swarm import Swarm, draw
from tests.raft.sim.world import UNITS_PER_TICK, Node, World

TICK_MS: Final = 100
UNIT_MS: Final = TICK_MS // UNITS_PER_TICK
SETTINGS: Final = RaftSettings(heartbeat_ticks=2)
SYNCS_MS: Final = (50, 150, 300, 600)
WAYS_MS: Final = (0, 50, 130, 200)
SYNCS_MAX: Final = 5
TIME_OUTS_MAX: Final = 3
TERMS_MAX: Final = 5
STEADY_UNITS: Final = 200  # that a new leader leads, before it is killed
GIVE_UP_UNITS: Final = 4_000


@dataclass(frozen=True, slots=True)
class Election:
    """One that came to its end."""

    units: int  # without a leader that can commit
    terms: int  # spent
    time_out_ms: int  # of the campaign that was won: with what it has because of slow disks and long ways

    def too_long(self, sync_ms: int) -> bool:
        """Whether it took longer than it may."""
        return self.units * UNIT_MS > SYNCS_MAX * sync_ms + TIME_OUTS_MAX * self.time_out_ms

    def too_many_terms(self) -> bool:
        """Whether it spent more than it may."""
        return self.terms > TERMS_MAX


def elections(seed: int, *, sync_ms: int, way_ms: int, slow: int | None = None, count: int = 3) -> list[Election]:
    """The first election of a group, and those after its leader was killed. `slow`: only so many of its disks are slow.

    Raises: Violation, InvariantBroken.
    """
    world = SlowWorld(seed, _slow_swarm(seed, sync_ms, way_ms), Oracle(), slow)
    clients = Clients(world)
    found = [_elect(world, 0)]
    for _ in range(count - 1):
        for _ in range(STEADY_UNITS):
            world.run_unit()
        (leader,) = [node for node in world.leaders() if _confirmed(node)]
        assert leader.core is not None
        term = int(leader.core.term)
        world.crash(leader)
        found.append(_elect(world, term))
        world.restart(leader)
    clients.judge_history()
    return found


class SlowWorld(World):
    """Some of its disks are slow, the others fast."""

    def __init__(self, seed: int, swarm: Swarm, oracle: Oracle, slow: int | None) -> None:
        self._slow, self._fast_swarm, self._slow_swarm = slow, replace(swarm, sync_units_min=0, sync_units_max=0), swarm
        super().__init__(seed, swarm, oracle)

    def drain(self, node: Node) -> None:
        self.swarm = self._slow_swarm if self._slow is None or node.id <= self._slow else self._fast_swarm
        super().drain(node)


def _elect(world: World, term: int) -> Election:
    began = world.now
    while not (confirmed := [node.core.status() for node in world.leaders() if node.core is not None and _confirmed(node)]):
        world.run_unit()
        assert world.now - began < GIVE_UP_UNITS, f"no leader within {GIVE_UP_UNITS * UNIT_MS} ms"
    spent = max(int(node.core.term) for node in world.running() if node.core is not None) - term
    time_out = confirmed[0].election_ticks + confirmed[0].campaign_extra_ticks
    return Election(world.now - began, spent, time_out * TICK_MS)


def _confirmed(node: Node) -> bool:
    return node.core is not None and node.core.term_committed


def _slow_swarm(seed: int, sync_ms: int, way_ms: int) -> Swarm:
    faults = dict.fromkeys(("partitions", "crashes", "pauses", "transfers", "changes", "snapshots", "wipes"), 0.0)
    network = dict.fromkeys(("loss", "doubling", "stray", "copy_failure", "torn_rounds"), 0.0)
    nodes = 3 if seed % 3 else 5
    sync, way = sync_ms // UNIT_MS, max(1, way_ms // UNIT_MS)
    return replace(
        draw(seed), **faults, **network, voters=nodes, nodes=nodes, settings=SETTINGS, patience=(0,) * nodes,  # type: ignore[arg-type]
        rates=(1.0,) * nodes, sync_units_min=sync * 4 // 5, sync_units_max=sync, delay_units_min=way,
        delay_units_max=way + way // 4,
    )  # fmt: skip
