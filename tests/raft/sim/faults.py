"""What goes wrong: partitions, crashes, pauses, hand-overs, changes of members, snapshots, lost disks.

One rule: never more than can be survived. Of the voters of any configuration a minority at most has lost its disk at a time, and
`heal` ends all of it, so that liveness may be demanded afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from cmdlog.raft import (
    Act,
    BadChange,
    ChangeRefused,
    Configuration,
    Franchise,
    MemberChange,
    NodeId,
    PlacedProposals,
    ProposalRefused,
)
from tests.raft.sim.world import Node, World

PAUSE_UNITS_MAX: Final = 300
PARTITION_UNITS_MAX: Final = 600


class Faults:
    """Chooses and does; `act` once per unit of time."""

    def __init__(self, world: World) -> None:
        self._world, self._rng = world, world.rng
        swarm = world.swarm
        kinds: list[tuple[float, Callable[[], None]]] = [
            (swarm.partitions, self._partition),
            (swarm.crashes, self._crash),
            (swarm.pauses, self._pause),
            (swarm.transfers, self._transfer),
            (swarm.changes, self._change),
            (swarm.snapshots, self._snapshot),
            (swarm.wipes, self._wipe),
        ]
        self._kinds = [(rate, do) for rate, do in kinds if rate]
        self._total = sum(rate for rate, _ in self._kinds)

    def act(self) -> None:
        """Perhaps does one thing."""
        if self._rng.random() >= self._total:
            return
        at = self._rng.random() * self._total
        for rate, do in self._kinds:
            at -= rate
            if at < 0:
                self._world.events += 1
                do()
                return

    def heal(self) -> None:
        """No more faults of the network, of processes or of clocks; what is down comes up."""
        world = self._world
        world.blocked.clear()
        world.loss = world.torn_rounds = 0.0
        for node in world.nodes.values():
            if node.paused:
                node.paused_until = world.now
                world.wake(node, node.life)
            world.restart(node)

    def mend(self) -> None:
        """What an operator does about members after faults: takes those that lost their disk out and in again. Called now and
        then, also while faults go on."""
        forgot = [node for node in self._world.nodes.values() if node.disk.franchise is Franchise.NONE]
        for node in forgot:
            self._admit_if_committed(node)
        leader = self._leader()
        if leader is None or leader.core is None:
            return
        configuration = leader.core.configuration
        for node in forgot:
            if node.disk.franchise is Franchise.NONE and node.admission is None:
                if node.id in configuration.members():
                    self._ask(leader, (MemberChange(Act.REMOVE, node.id),))
                else:
                    node.admission = self._ask(leader, (MemberChange(Act.ADD_LEARNER, node.id),))
                return

    def _admit_if_committed(self, node: Node) -> None:
        """The node is told of the entry that makes it a member again once that is committed; a lost one is asked for again."""
        admission, truth = node.admission, self._world.oracle.truth
        if admission is None or admission.first > len(truth):
            return
        if truth[admission.first - 1][0] == admission.term:
            self._world.admit(node, admission)
        else:
            node.admission = None

    def add_voters(self, wanted: int) -> None:
        """Brings the number of voters towards `wanted`, by learners that are promoted once they have caught up."""
        leader = self._leader()
        if leader is None or leader.core is None:
            return
        configuration = leader.core.configuration
        if configuration.joint or len(configuration.voters) >= wanted:
            return
        if configuration.learners:
            self._ask(leader, (MemberChange(Act.ADD_VOTER, configuration.learners[0]),))
            return
        for node in self._world.nodes.values():
            if node.id not in configuration.members() and node.disk.franchise is Franchise.FULL:
                self._ask(leader, (MemberChange(Act.ADD_LEARNER, node.id),))
                return

    # One fault each

    def _partition(self) -> None:
        world, rng = self._world, self._rng
        nodes = list(world.nodes)
        kind = rng.randrange(4)
        if kind == 0:  # two halves
            side = {node for node in nodes if rng.random() < 0.5}
            blocked = {(a, b) for a in nodes for b in nodes if (a in side) != (b in side)}
        elif kind == 1:  # one node hears nobody, or nobody hears it, or both
            alone, hears, heard = rng.choice(nodes), rng.random() < 0.5, rng.random() < 0.5
            blocked = {(alone, b) for b in nodes if not heard} | {(b, alone) for b in nodes if not hears}
        elif kind == 2:  # one direction between one pair
            blocked = {(rng.choice(nodes), rng.choice(nodes))}
        else:  # all but one see only that one
            bridge = rng.choice(nodes)
            blocked = {(a, b) for a in nodes for b in nodes if bridge not in (a, b)}
        world.oracle.note("partition", kind, len(blocked))
        world.blocked |= blocked
        world.after(rng.randrange(1, PARTITION_UNITS_MAX), self._rejoin, blocked)

    def _rejoin(self, blocked: set[tuple[NodeId, NodeId]]) -> None:
        self._world.blocked -= blocked

    def _crash(self) -> None:
        world, rng = self._world, self._rng
        running = world.running()
        count = 1
        if rng.random() < 0.1:  # now and then all of them
            count = len(running)
            world.oracle.counts["crashes of all"] += 1
        for node in rng.sample(running, min(count, len(running))):
            world.crash_for_a_while(node)

    def _pause(self) -> None:
        node = self._rng.choice(list(self._world.nodes.values()))
        self._world.oracle.note("pause", node.id)
        self._world.pause(node, self._rng.randrange(1, PAUSE_UNITS_MAX))

    def _transfer(self) -> None:
        leader = self._leader()
        if leader is None or leader.core is None:
            return
        target = self._rng.choice(list(self._world.nodes))
        self._world.oracle.note("transfer", leader.id, target)
        try:
            leader.core.transfer(target)
        except ProposalRefused:
            return
        self._world.drain(leader)

    def _snapshot(self) -> None:
        self._world.snapshot(self._rng.choice(list(self._world.nodes.values())))

    def _change(self) -> None:
        leader = self._leader()
        if leader is None or leader.core is None or self._somebody_forgot():
            return
        rng, configuration = self._rng, leader.core.configuration
        steps = tuple(self._step(configuration) for _ in range(rng.choice((1, 1, 1, 2, 3))))
        self._ask(leader, steps)

    def _step(self, configuration: Configuration) -> MemberChange:
        rng, nodes = self._rng, [node for node in self._world.nodes.values() if node.disk.franchise is Franchise.FULL]
        if configuration.learners and rng.random() < 0.4:
            return MemberChange(Act.ADD_VOTER, rng.choice(configuration.learners))
        outside = [node.id for node in nodes if node.id not in configuration.members()]
        if outside and rng.random() < 0.5:
            return MemberChange(Act.ADD_LEARNER, rng.choice(outside))
        return MemberChange(rng.choice((Act.REMOVE, Act.ADD_LEARNER)), rng.choice(list(self._world.nodes)))

    def _wipe(self) -> None:
        """A node loses its disk, if what is left can go on: nobody else has, and it is needed by no majority that is due."""
        world = self._world
        cores = [node.core for node in world.nodes.values() if node.core is not None]
        if self._somebody_forgot() or len(cores) < len(world.nodes):
            return  # who is down may know of a configuration that is due
        node = self._rng.choice(list(world.nodes.values()))
        known = [each for core in cores for each in core.needed_configurations()]
        if any(node.id in half and len(half) < 3 for each in known for half in (each.voters, each.outgoing)):
            return
        world.wipe(node)

    # Shared

    def _somebody_forgot(self) -> bool:
        """Then no other member may go: with the one that only listens they might be a majority."""
        return any(node.disk.franchise is Franchise.NONE for node in self._world.nodes.values())

    def _leader(self) -> Node | None:
        """The one that leads the highest term, if it can act."""
        leaders = [node for node in self._world.leaders() if not node.paused]
        return max(leaders, key=lambda node: node.core.term if node.core is not None else 0, default=None)

    def _ask(self, leader: Node, steps: Sequence[MemberChange]) -> PlacedProposals | None:
        assert leader.core is not None
        self._world.oracle.note("change", leader.id, len(steps))
        try:
            placed = leader.core.change(steps)
        except (ChangeRefused, BadChange):
            return None
        self._world.drain(leader)
        return placed
