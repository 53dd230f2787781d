"""One seed: a time of faults, in which nothing unsafe may happen, then healing, after which everything must work again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from cmdlog.raft import Franchise
from tests.raft.sim.clients import Clients
from tests.raft.sim.faults import Faults
from tests.raft.sim.oracle import Oracle, Violation
from tests.raft.sim.swarm import Swarm, draw
from tests.raft.sim.world import UNITS_PER_TICK, World

FAULTY_UNITS: Final = 2_000
CALM_TICKS_MAX: Final = 4_000  # after healing, until everything must work
CALM_THINK_UNITS_MAX: Final = 160
MEND_EVERY_UNITS: Final = 60
TOGETHER_EVERY_UNITS: Final = 250  # comparisons of all logs
TERMS_AFTER_HEALING_MAX: Final = 60  # a group that finds a leader at last has not fought for ever


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a seed came to."""

    seed: int
    events: int
    hash: int
    entries: int  # committed
    writes: int  # acknowledged
    reads: int
    counts: Mapping[str, int]  # what happened, by name; see HAPPENINGS


HAPPENINGS: Final = (
    ("start", "wipe", "crash", "crashes of all", "crashes behind a write", "pause", "partition"),
    ("messages lost", "messages doubled"),
    ("leads", "transfer", "leadership offered", "conflicts truncated"),
    ("change", "configurations committed", "joint configurations committed"),
    ("snapshot", "copies made", "copies failed", "snapshots installed", "entries fetched", "entries gone"),
    ("write", "commit", "apply", "ack", "reads by followers"),
)
"""What a simulation that tests anything must have made happen, by what it is about."""


def run(
    seed: int, *, story: Callable[[str], None] | None = None, swarm: Swarm | None = None, units: int = FAULTY_UNITS
) -> Outcome:
    """Runs one history. Raises: Violation and InvariantBroken for what is unsafe, or does not come back to life."""
    oracle = Oracle()
    oracle.story = story
    world = World(seed, swarm or draw(seed), oracle)
    if story is not None:
        oracle.story = lambda line: story(f"{world.now:6} {line}")
    clients, faults = Clients(world), Faults(world)
    for unit in range(units):
        faults.act()
        world.run_unit()
        if unit % MEND_EVERY_UNITS == 0:
            faults.mend()
        if unit % TOGETHER_EVERY_UNITS == 0:
            oracle.check_together(world.running())
    _demand_life(world, clients, faults)
    oracle.check_together(world.running())
    for (client, number), index in sorted(clients.writes.items()):
        if oracle.index_of(client, number) != index:
            raise Violation(f"write {number} of client {client} was acknowledged at {index} and is not there")
    clients.judge_history()
    return Outcome(seed, world.events, oracle.hash, len(oracle.truth), len(clients.writes), clients.reads, dict(oracle.counts))


def _demand_life(world: World, clients: Clients, faults: Faults) -> None:
    """Heals, and waits until one leader has everybody's log equal and fresh writes and reads of every client are served."""
    faults.heal()
    # No log catches up with writers that are faster than it is sent: where it goes one entry at a time, that is one in a round
    # trip and a sync, 7 units at the mean and 12 at most, and half as much again where the leader fetches it from its log first;
    # five clients that think for so long write one in 27 at the mean.
    swarm = world.swarm
    quick = {
        "sync_units_max": min(swarm.sync_units_max, 4),
        "delay_units_max": min(swarm.delay_units_max, 4),
        "think_units_max": CALM_THINK_UNITS_MAX,
    }
    world.swarm = replace(swarm, **quick, copy_failure=0.0, stray=0.0)  # type: ignore[arg-type]
    term, began = max(node.core.term for node in world.running() if node.core is not None), world.now
    wanted: tuple[int, int] | None = None
    while not (wanted is not None and (len(clients.writes), clients.reads) >= wanted and _agree(world)):
        if world.now - began > CALM_TICKS_MAX * UNITS_PER_TICK:
            raise Violation(
                f"{CALM_TICKS_MAX} ticks after healing: {_state(world)}, {len(clients.writes)} writes, {clients.reads} reads"
            )
        world.run_unit()
        if world.now % MEND_EVERY_UNITS == 0:
            faults.mend()
            faults.add_voters(min(world.swarm.voters, len(world.nodes)))
        if wanted is None and _agree(world):
            wanted = len(clients.writes) + 2, clients.reads + 2
    risen = max(node.core.term for node in world.running() if node.core is not None) - term
    settings = world.swarm.settings  # without these two, a removed node may disturb the others for ever
    if settings.pre_vote and settings.check_quorum and risen > TERMS_AFTER_HEALING_MAX:
        raise Violation(f"{risen} terms were spent after healing")


def _agree(world: World) -> bool:
    """One leader that all members follow, nobody far behind, nobody without its vote."""
    leaders = world.leaders()
    if len(leaders) != 1 or leaders[0].core is None:
        return False
    leader = leaders[0].core
    configuration = leader.configuration
    if configuration.joint or len(configuration.voters) < min(world.swarm.voters, len(world.nodes)):
        return False
    members = [world.nodes[node] for node in configuration.members()]
    return all(
        node.core is not None
        and node.disk.franchise is Franchise.FULL
        and node.core.leader == leader.id
        and node.core.log.commit >= leader.log.commit - 20
        for node in members
    )


def _state(world: World) -> str:
    cores = [node.core for node in world.running() if node.core is not None]
    return "; ".join(f"{core.id} {core.role.value} term {core.term} commit {core.log.commit}" for core in cores)
