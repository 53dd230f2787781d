"""Clients that write and read registers, repeat what they do not know the end of, and remember what they saw.

One rule: a client believes only what was acknowledged to it, and the history is judged while it is made.

Each write is one entry, and writes of one client are applied once, whatever is repeated. The log's order is then the order of all
writes, and a read is placed behind the write that it saw. The history is linearizable by that order if and only if it agrees with
real time: whatever was acknowledged before an operation began stands before it. So every operation takes along the highest place
on its key that was acknowledged when it began, and is compared with it when it is acknowledged itself. The order of the log
is the witness of that judgement; `linear` judges the same history at its end without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cmdlog.raft import ProposalRefused
from tests.raft.sim.linear import UNWRITTEN, Operation, Value, linearizable, until
from tests.raft.sim.oracle import Violation
from tests.raft.sim.world import Node, World

PATIENCE_UNITS: Final = 160  # until an answer is given up; then the outcome is unknown
JUDGED_MAX: Final = 150  # operations of one key that the second judge looks at


@dataclass(slots=True)
class Doing:
    """One write or read, from its beginning to its acknowledgement."""

    key: int
    number: int
    write: bool
    floor: int  # the highest index acknowledged on this key when it began
    began: int  # moment
    attempt: int = 0


class Client:
    """One client: one operation at a time."""

    def __init__(self, world: World, number: int, clients: Clients) -> None:
        self._world, self._number, self._clients = world, number, clients
        self._next = 0
        self._doing: Doing | None = None
        world.after(world.rng.randrange(1, world.swarm.think_units_max), self._begin)

    def open_write(self) -> tuple[int, Operation] | None:
        """The key, and the write that has no answer yet."""
        doing = self._doing
        if doing is None or not doing.write:
            return None
        return doing.key, Operation(doing.began, None, True, (self._number, doing.number))

    def _begin(self) -> None:
        rng = self._world.rng
        key = rng.randrange(self._world.swarm.keys)
        self._next += 1
        clients = self._clients
        self._doing = Doing(key, self._next, rng.random() < 0.6, clients.acknowledged.get(key, 0), clients.moment())
        self._try(self._doing)

    def _try(self, doing: Doing) -> None:
        """Asks some node; whoever does not answer in time is asked no more."""
        if self._doing is not doing:
            return
        world = self._world
        doing.attempt += 1
        node = self._choose()
        world.after(PATIENCE_UNITS if node is not None and self._ask(node, doing) else 8, self._again, doing, doing.attempt)

    def _again(self, doing: Doing, attempt: int) -> None:
        if doing.attempt == attempt:
            self._try(doing)

    def _choose(self) -> Node | None:
        world = self._world
        leaders = world.leaders()
        nodes = leaders if leaders and world.rng.random() < 0.7 else world.running()
        nodes = [node for node in nodes if not node.paused]
        return world.rng.choice(nodes) if nodes else None

    def _ask(self, node: Node, doing: Doing) -> bool:
        """Whether the node took it."""
        assert node.core is not None
        attempt = doing.attempt
        try:
            if doing.write:
                node.core.propose([b"%d %d %d" % (self._number, doing.number, doing.key)])
                node.waiting[self._number, doing.number] = lambda index: self._written(doing, index)
            else:
                context = self._clients.context(lambda served: self._read(node, doing, attempt, served=served))
                node.core.read_index(context)
        except ProposalRefused:
            return False
        self._world.drain(node)
        return True

    def _written(self, doing: Doing, index: int) -> None:
        if self._doing is doing:
            self._acknowledge(doing, index, (self._number, doing.number))

    def _read(self, node: Node, doing: Doing, attempt: int, *, served: bool) -> None:
        if self._doing is not doing or doing.attempt != attempt:
            return
        if served:
            index, *value = node.state.get(doing.key, (0, *UNWRITTEN))
            core = node.core
            if core is not None and core.leader != core.id:
                self._world.oracle.counts["reads by followers"] += 1
            self._acknowledge(doing, index, (value[0], value[1]))
        else:
            self._world.after(0, self._try, doing)

    def _acknowledge(self, doing: Doing, index: int, value: Value) -> None:
        self._clients.judge(self._number, doing, index, value)
        self._doing = None
        self._world.after(self._world.rng.randrange(1, self._world.swarm.think_units_max), self._begin)


class Clients:
    """All of them, and what they have been told."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.acknowledged: dict[int, int] = {}  # key -> highest index of a write that anyone was told of
        self.writes: dict[tuple[int, int], int] = {}  # (client, number) -> index, acknowledged
        self.reads = 0
        self._contexts: dict[int, Callable[[bool], None]] = {}
        self._last_context = 0
        world.on_read = self._on_read
        self.history: dict[int, list[Operation]] = {}  # by key
        self._moments = 0
        self._all = [Client(world, number, self) for number in range(1, world.swarm.clients + 1)]

    def context(self, done: Callable[[bool], None]) -> int:
        """A number for a read that is in use by no other."""
        self._last_context += 1
        self._contexts[self._last_context] = done
        return self._last_context

    def _on_read(self, node: Node, context: int, served: bool) -> None:
        del node
        done = self._contexts.pop(context, None)
        if done is not None:
            done(served)

    def moment(self) -> int:
        """Now, told apart from every other moment."""
        self._moments += 1
        return self._moments

    def judge(self, client: int, doing: Doing, index: int, value: Value) -> None:
        """An operation is acknowledged at this place of the order of its key. Raises: Violation."""
        self._world.events += 1
        self._world.oracle.note("ack", client, doing.number, index)
        self.history.setdefault(doing.key, []).append(Operation(doing.began, self.moment(), doing.write, value))
        if index < doing.floor or (doing.write and index == doing.floor):
            what = "write" if doing.write else "read"
            raise Violation(
                f"{what} {doing.number} of client {client} stands at {index} of key {doing.key}, but {doing.floor} was "
                "acknowledged before it began: the history is not linearizable"
            )
        self.acknowledged[doing.key] = max(self.acknowledged.get(doing.key, 0), index)
        if doing.write:
            self.writes[client, doing.number] = index
        else:
            self.reads += 1

    def judge_history(self) -> None:
        """What all clients saw, without a look at the log. Raises: Violation."""
        for client in self._all:
            if (open_ := client.open_write()) is not None:
                key, operation = open_
                self.history.setdefault(key, []).append(operation)
        for key, history in sorted(self.history.items()):
            if not linearizable(until(history, JUDGED_MAX)):
                raise Violation(f"what clients saw of key {key} is not linearizable")
