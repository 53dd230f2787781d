"""The world of a scenario: cores, their disks, and the messages between them, moved by a script alone.

One rule: nothing happens that the script did not say, and everything that happens is told. After every command all invariants are
checked, and what was ever applied is compared: a violation ends the scenario, whatever its expected trace says.

What a trace says, line by line:

    1 becomes leader in t2          a role; a follower also `follows 1 in t2`
    1>2 append ...                  a message leaves; (lost) when the network is cut, (stays) is not said: see `wire`
    1 writes t2 vote 1 commit 0     durable at once; with a slow disk `1 is writing #3: ...` and, by `sync`, `1 has written #3`
    1 commits 4                     its commit mark; `1 applies 4@2 "a"` is the entry handed to the state machine
    1 uses [voters 1 2 3]           the configuration in force changes
    1 drops it: stale_term          a message that nothing is done with
    read 7 at 4 / read 7 is lost    the answer to a read
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from cmdlog.raft import (
    Completion,
    Configuration,
    Entries,
    Message,
    NodeId,
    RaftCore,
    RaftSettings,
    Ready,
    Restored,
    Role,
    SnapshotDescriptor,
)
from cmdlog.raft.errors import Drop
from cmdlog.raft.invariants import check_group, check_invariants
from tests.raft.cluster import Disk
from tests.raft.scenario_text import configuration_text, entry_text, manifest_text, message_text, write_text

ROUNDS_MAX = 500  # of `settle`: more means that messages go in circles
SPREAD = 5  # ticks that every election time-out is longer than the shortest, unless the script says another number


class Violation(AssertionError):
    """What must never happen has happened."""


class Scripted(random.Random):
    """Chance as the script wants it."""

    def __init__(self, spread: int, start: int) -> None:
        super().__init__(0)
        self.spread, self.start = spread, start

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        """Of an election time-out."""
        del stop, step
        return min(self.spread, start - 1)

    def getrandbits(self, bits: int, /) -> int:
        """Of the number that completions begin with."""
        return self.start % (1 << bits)


@dataclass
class Seen:
    """What the trace has told of a node."""

    role: Role
    term: int
    leader: int | None
    commit: int
    configuration: Configuration
    drops: dict[Drop, int] = field(default_factory=dict)


class Node:
    """One node; `core` is None while it is down."""

    def __init__(self, node: NodeId, disk: Disk, settings: RaftSettings) -> None:
        self.id, self.disk, self.settings = node, disk, settings
        self.core: RaftCore | None = None
        self.writing: deque[tuple[int, Ready]] = deque()  # numbered; a Ready without a write waits with them
        self.slow = False
        self.lives = self.number = 0
        self.spread = SPREAD
        self.completions: dict[tuple[int, int], Completion] = {}  # by life and number of the write
        self.copy: SnapshotDescriptor | None = None
        self.seen: Seen | None = None

    def start(self, restored: Restored | None = None) -> None:
        """From what its disk has."""
        self.lives += 1
        self.number = 0
        self.copy = None
        self.writing.clear()
        chance = Scripted(self.spread, self.lives * 1_000_000)
        self.core = RaftCore(self.id, rng=chance, settings=self.settings, restored=restored or self.disk.restored())
        self.seen = Seen(Role.FOLLOWER, self.core.term, None, self.core.log.commit, self.core.configuration)

    def live(self) -> RaftCore:
        """Its core. Raises: ValueError when the node is down: the script is wrong."""
        if self.core is None:
            raise ValueError(f"node {self.id} is down")
        return self.core


class World:
    """All nodes, and the wire."""

    def __init__(self) -> None:
        self.nodes: dict[NodeId, Node] = {}
        self.wire: list[Message] = []
        self.cut: set[tuple[NodeId, NodeId]] = set()  # directions in which messages are lost
        self.held: set[tuple[NodeId, NodeId]] = set()  # directions that only a command naming them delivers
        self.trace: list[str] = []
        self.history: dict[int, tuple[int, int, bytes]] = {}  # index: what anybody ever applied there

    def tell(self, line: str) -> None:
        """One line of the trace."""
        self.trace.append(line)

    # What a node does by itself

    def pump(self, only: Iterable[NodeId] | None = None) -> None:
        """Takes every Ready that there is, and what follows from disks that are done at once."""
        for node in [self.nodes[each] for each in only] if only is not None else self.nodes.values():
            if node.core is not None:
                self._pump(node, node.core)

    def _pump(self, node: Node, core: RaftCore) -> None:
        self.observe(node)
        while (ready := core.ready()) is not None:
            self._send(ready.send_now)
            node.number += ready.writes
            node.writing.append((node.number, ready))
            if ready.completion is not None:
                node.completions[node.lives, node.number] = ready.completion
                doing = f"is writing #{node.number}:" if node.slow else "writes"
                self.tell(f"{node.id} {doing} {write_text(ready)}")
            self._hand_out(node, ready)
            self.sync(node, 0 if node.slow else len(node.writing))

    def _hand_out(self, node: Node, ready: Ready) -> None:
        if ready.committed is not None:
            self._apply(node, ready.committed)
        for result in ready.reads:
            self.tell(f"{node.id} read {result.context} " + ("is lost" if result.index is None else f"at {result.index}"))
        if ready.copy is not None:
            node.copy = ready.copy
            self.tell(f"{node.id} begins to copy {manifest_text(ready.copy)}")

    def _apply(self, node: Node, committed: Entries) -> None:
        for offset in range(len(committed)):
            index = committed.first + offset
            entry = committed.terms[offset], committed.kinds[offset], committed.payloads[offset]
            if self.history.setdefault(index, entry) != entry:
                raise Violation(f"{node.id} applies {entry_text(committed, offset)}, but {self.history[index]} was applied there")
            self.tell(f"{node.id} applies {entry_text(committed, offset)}")

    def sync(self, node: Node, count: int) -> None:
        """The oldest `count` Readies, and those behind them that write nothing, are durable."""
        while node.writing and (count > 0 or not node.writing[0][1].writes):
            number, ready = node.writing.popleft()
            count -= 1
            node.disk.write(ready)
            if node.slow and ready.writes:
                self.tell(f"{node.id} has written #{number}")
            self._send(ready.send_after_fsync)
            node.live().advance(ready.completion)
            self.observe(node)

    def _send(self, messages: Iterable[Message]) -> None:
        for message in messages:
            lost = (message.sender, message.receiver) in self.cut
            self.tell(message_text(message) + (" (lost)" if lost else ""))
            if not lost:
                self.wire.append(message)

    def observe(self, node: Node) -> None:
        """Tells what has changed of a node since it was last told."""
        core, seen = node.core, node.seen
        assert core is not None
        assert seen is not None
        if (core.role, core.term, core.leader) != (seen.role, seen.term, seen.leader):
            follows = core.role is Role.FOLLOWER and core.leader is not None
            word = f"follows {core.leader}" if follows else f"becomes {core.role.value}"
            self.tell(f"{node.id} {word} in t{core.term}")
        if core.configuration != seen.configuration:
            self.tell(f"{node.id} uses [{configuration_text(core.configuration)}]")
        if core.log.commit != seen.commit:
            self.tell(f"{node.id} commits {core.log.commit}")
        for reason, count in core.drops.items():
            if count > seen.drops.get(reason, 0):
                self.tell(f"{node.id} drops it: {reason.value}")
        node.seen = Seen(core.role, core.term, core.leader, core.log.commit, core.configuration, dict(core.drops))

    # What the network does

    def deliver(self, message: Message) -> None:
        """One message that was under way arrives, and the receiver does what follows."""
        node = self.nodes.get(message.receiver)
        if node is None or node.core is None:
            self.tell(f"{message_text(message)} (nobody there)")
            return
        node.core.step(message)
        self.pump([node.id])

    def settle(self) -> None:
        """Until nobody has anything to do or to say. What is held stays."""
        for _ in range(ROUNDS_MAX):
            self.pump()
            moving = [message for message in self.wire if (message.sender, message.receiver) not in self.held]
            if not moving:
                return
            self.wire = [message for message in self.wire if (message.sender, message.receiver) in self.held]
            for message in moving:
                self.deliver(message)
        raise Violation(f"no end after {ROUNDS_MAX} rounds")

    # What must hold

    def check(self) -> None:
        """Every invariant of every core, and of the group. Raises: InvariantBroken."""
        cores = [node.core for node in self.nodes.values() if node.core is not None]
        for core in cores:
            check_invariants(core)
        check_group(cores)
