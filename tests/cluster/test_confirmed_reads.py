"""Reads of a simulated cluster: a node that was deposed before a read came never says that it leads.

Cuts in one direction, pauses, crashes and late messages; what a read may rely on is known from outside: which node was seen to
lead, and in which term, before the read came.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import cast

import pytest

from cmdlog.member.read_rounds import ReadRounds
from cmdlog.member.sequenced_machine import SequencedMachine
from cmdlog.raft.messages import Bundle, Message
from cmdlog.raft.ready import ReadResult
from cmdlog.wal.ids import CLUSTER_GROUP, PartitionId
from tests.cluster.world import SimNode, World

STEPS = 3000


class ReadContexts:
    """The part of the node's machine that reads use."""

    def __init__(self) -> None:
        self._waiting: dict[int, Callable[[int | None], None]] = {}
        self._contexts = itertools.count(1)

    def await_read(self, done: Callable[[int | None], None]) -> int:
        context = next(self._contexts)
        self._waiting[context] = done
        return context

    def forget_read(self, context: int) -> None:
        self._waiting.pop(context, None)

    def read(self, group: int, result: ReadResult) -> None:
        if (done := self._waiting.pop(result.context, None)) is not None:
            done(result.index)


class ReadingWorld(World):
    """Its nodes serve reads of the cluster group's leader; each answer is checked when it is given."""

    def __init__(self, seed: int) -> None:
        self.rounds: dict[int, ReadRounds] = {}
        self.term = 0  # the newest in which any node was seen to lead
        self.asked = self.confirmed = self.refused = 0
        self.sleeper: SimNode | None = None
        self.kept: list[tuple[int, int, list[tuple[int, Message | Bundle]]]] = []  # mail of the sleeper, which it reads first
        super().__init__(seed)

    def boot(self, node: int) -> None:
        super().boot(node)
        booted, contexts = self.nodes[node], ReadContexts()
        booted.machine.read = contexts.read  # type: ignore[method-assign]
        self.rounds[node] = ReadRounds(booted.driver, cast(SequencedMachine, contexts), reads_max=100)

    def crash(self, node: int, *, power: bool) -> None:
        super().crash(node, power=power)
        self.rounds.pop(node).lose_all()

    def tick(self) -> None:
        super().tick()
        for rounds in self.rounds.values():
            rounds.tick(1)

    def step(self) -> None:
        super().step()
        self.look()
        for rounds in self.rounds.values():
            rounds.begin_waiting()

    def look(self) -> None:
        """Who leads now is known to everybody outside."""
        for node in self.nodes.values():
            if (view := node.driver.views().get(CLUSTER_GROUP)) is not None and view.confirmed:
                self.term = max(self.term, view.term)

    def post(self, sender: int, receiver: int, messages: list[tuple[int, Message | Bundle]]) -> None:
        if self.sleeper is not None and receiver == self.sleeper.node:
            self.kept.append((sender, receiver, messages))
        else:
            super().post(sender, receiver, messages)

    def pause(self, node: int) -> None:
        """The process is stopped: its mail waits in its sockets."""
        self.sleeper = self.nodes.pop(node)
        self.kept = [mail for mail in self.mail if mail[1] == node]
        self.mail = [mail for mail in self.mail if mail[1] != node]

    def wake(self) -> None:
        """It goes on where it was; a client is quicker than its mail."""
        if (woken := self.sleeper) is not None:
            self.nodes[woken.node], self.sleeper = woken, None
            self.mail = self.kept + self.mail
            if leads(woken):
                self.ask(woken)

    def ask(self, node: SimNode | None = None) -> None:
        """A client reads at a node that takes itself for the leader."""
        leaders = [node for node in self.nodes.values() if leads(node)]
        if not leaders:
            return
        node, newest = node or self.rng.choice(leaders), self.term
        self.asked += 1

        def answered(leads_now: bool) -> None:
            self.confirmed += leads_now
            self.refused += not leads_now
            if leads_now:
                core = node.groups.cores[PartitionId(CLUSTER_GROUP)]
                assert core.leader == core.id, f"node {node.node} follows"
                assert core.term >= newest, f"node {node.node} leads in {core.term}; {newest} had begun before the read"

        self.rounds[node.node].add(answered)

    def disturb(self) -> None:
        """One-way cuts, both ways, healed again; pauses of leaders, crashes, and starts."""
        chance = self.rng.random()
        leaders = [number for number, node in self.nodes.items() if leads(node)]
        if self.sleeper is not None:
            self.wake()
        elif chance < 0.4 and leaders and len(self.nodes) == len(self.lives):
            self.ask(self.nodes[leaders[0]])
            self.step()
            if leaders[0] in self.nodes:
                self.pause(leaders[0])
            return
        chance = self.rng.random()
        pairs = [(a, b) for a in self.lives for b in self.lives if a != b]
        if chance < 0.4:
            self.cut = set(self.rng.sample(pairs, self.rng.randrange(1, 4)))
        elif chance < 0.6:
            alone = self.rng.choice(list(self.lives))
            self.cut = {pair for pair in pairs if alone in pair}
        elif chance < 0.8:
            self.cut = set()
        elif len(self.nodes) == len(self.lives):
            self.crash(self.rng.choice(list(self.nodes)), power=self.rng.random() < 0.5)
        else:
            self.boot(next(node for node in self.lives if node not in self.nodes))


def leads(node: SimNode) -> bool:
    """Whether it takes itself for the leader."""
    view = node.driver.views().get(CLUSTER_GROUP)
    return view is not None and view.confirmed


def play(seed: int) -> ReadingWorld:
    """A history, and its end in peace: every read has one answer then."""
    world = ReadingWorld(seed)
    world.settle()
    for step in range(STEPS):
        world.step()
        if world.rng.random() < 0.2:
            world.ask()
        if step % 400 == 399:
            world.disturb()
    world.wake()
    world.settle()
    for _ in range(100):
        world.tick()
    assert world.asked == world.confirmed + world.refused
    world.check()
    return world


@pytest.mark.slow  # half a second each
@pytest.mark.parametrize("seed", range(8))
def test_deposed_leader_confirms_no_read(seed: int) -> None:
    """Whatever the network does; and every read is answered once, most of them well."""
    world = play(seed)
    assert world.confirmed > 20
