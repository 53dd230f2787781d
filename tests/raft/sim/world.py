"""The simulated world: time, disks, network, and nodes that do the duties in the head of `cmdlog.raft`, one by one.

One rule: all chance comes from one seeded generator and all order from the wheel, so a seed is a whole history. Nothing here
judges: every event is shown to the oracle, which does.

Time is counted in units; a node's tick takes `UNITS_PER_TICK` of them at rate 1. What is due in the same unit happens in random
order, so messages overtake each other even on a fast network. `events` counts ticks, messages sent, messages that arrive,
finished writes and copies, faults, requests and answers.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from cmdlog.raft import (
    Configuration,
    Entries,
    EntriesWanted,
    Franchise,
    Message,
    NodeId,
    PlacedProposals,
    RaftCore,
    Ready,
    SnapshotDescriptor,
)
from cmdlog.raft.messages import KIND_NORMAL
from cmdlog.wal.ids import Index
from tests.raft.cluster import Disk, read_entries
from tests.raft.sim.oracle import Oracle, Violation
from tests.raft.sim.swarm import Swarm

UNITS_PER_TICK: Final = 4
DOWN_UNITS_MAX: Final = 300
FETCH_UNITS_MAX: Final = 10

State = dict[int, tuple[int, int, int]]
"""Key -> (index, client, number) of the write that it holds."""


@dataclass(frozen=True, slots=True)
class Image:
    """The state machine at one index."""

    state: Mapping[int, tuple[int, int, int]]
    sessions: Mapping[int, int]


class Node:
    """One machine: disk, perhaps a running core, its state machine and who waits for it."""

    def __init__(self, number: NodeId, rate: float) -> None:
        self.id, self.rate = number, rate
        self.disk = Disk()
        self.core: RaftCore | None = None
        self.life = 0  # of the process
        self.incarnation = 0  # of the disk
        self.admission: PlacedProposals | None = None  # the entry that is to make it a member again
        self.pending: deque[tuple[Ready, int]] = deque()  # (Ready, unit in which it is durable), in order
        self.paused_until = 0
        self.paused = False  # until it has been given the ticks that it missed
        self.missed = 0  # ticks, during a pause
        self.next_tick = 0.0  # in units: clocks run evenly, whatever their rate
        self.forget()

    def forget(self) -> None:
        """What a process keeps in memory alone."""
        self.pending.clear()
        self.applied = 0
        self.state: State = {}
        self.sessions: dict[int, int] = {}
        self.copy: SnapshotDescriptor | None = None
        self.snapshotting = False
        self.waiting: dict[tuple[int, int], Callable[[int], None]] = {}  # (client, number) -> gets the index
        self.reads: list[tuple[int, int]] = []  # (index to wait for, context)
        self.led = self.seen_commit = 0  # what the oracle saw last: a term that it led, its commit mark


EVENTS_MAX: Final = 1_000_000  # of one seed: ten thousand are usual, and forty thousand were seen

Event = tuple[float, Callable[..., None], tuple[Any, ...]]
"""Its place among those of the same unit, what happens, to what."""


class World:
    """Everything there is, at one moment."""

    def __init__(self, seed: int, swarm: Swarm, oracle: Oracle) -> None:
        self.rng, self.swarm, self.oracle = random.Random(seed), swarm, oracle
        self.random = self.rng.random
        self.now = 0
        self.events = 0
        self.wheel: dict[int, list[Event]] = {}
        self.blocked: set[tuple[NodeId, NodeId]] = set()  # (sender, receiver)
        self.loss, self.doubling, self.torn_rounds = swarm.loss, swarm.doubling, swarm.torn_rounds
        self.images: dict[tuple[int, int], Image] = {}  # (index, term) of every snapshot that was ever durable
        self.on_read: Callable[[Node, int, bool], None] = lambda node, context, served: None
        first = Configuration(voters=tuple(NodeId(n + 1) for n in range(swarm.voters)))
        self.images[0, 0] = Image({}, {})
        self.nodes = {NodeId(n + 1): Node(NodeId(n + 1), swarm.rates[n]) for n in range(swarm.nodes)}
        oracle.nodes = self.nodes
        for node in self.nodes.values():
            if node.id in first.voters:
                node.disk.manifest = SnapshotDescriptor(configuration=first)
            self.start(node)

    # Time

    def after(self, units: int, what: Callable[..., None], *given: Any) -> None:
        """Something happens `units` from now; 0 is still in this unit, after what is due already."""
        event = (self.random(), what, given)
        due = self.wheel.get(self.now + units)
        if due is None:
            self.wheel[self.now + units] = [event]
        else:
            due.append(event)

    def run_unit(self) -> None:
        """Everything that is due now, in random order, and what follows from it at once; then time goes on."""
        while due := self.wheel.pop(self.now, None):
            if len(due) > 1:
                due.sort()
            self.events += len(due)
            if self.events > EVENTS_MAX:
                raise Violation(f"{self.events} events at unit {self.now}: something goes on without end")
            for _, what, given in due:
                what(*given)
        self.now += 1

    def _tick(self, node: Node, life: int) -> None:
        if node.life != life:
            return
        node.next_tick += UNITS_PER_TICK / node.rate
        self.after(int(node.next_tick) - self.now, self._tick, node, life)
        if node.paused:
            node.missed += 1
            return
        core = node.core
        assert core is not None
        core.tick()
        if core.dirty:
            self.drain(node)

    def pause(self, node: Node, units: int) -> None:
        """The process stands still: its timers run on, nothing is read or answered."""
        if node.core is None:
            return
        node.paused, node.paused_until = True, max(node.paused_until, self.now + units)
        self.after(node.paused_until - self.now, self.wake, node, node.life)

    def wake(self, node: Node, life: int) -> None:
        """The pause is over, unless another one has begun."""
        if node.life != life or node.paused_until > self.now or node.core is None:
            return
        missed, node.missed, node.paused = node.missed, 0, False
        for _ in range(missed):  # before anything else (duty 9)
            node.core.tick()
        self.drain(node)
        self._complete(node, life)

    def _when_awake(self, node: Node, what: Callable[..., None], *given: Any) -> None:
        self.after(max(1, node.paused_until - self.now + 1), what, *given)

    # Life and death

    def start(self, node: Node) -> None:
        """Starts the process from what is durable."""
        node.forget()
        node.paused, node.paused_until, node.missed = False, 0, 0
        node.core = RaftCore(
            node.id,
            rng=random.Random(self.rng.getrandbits(32)),
            settings=replace(self.swarm.settings, patience=self.swarm.patience[node.id - 1]),
            restored=node.disk.restored(),
        )
        image = self.images[node.disk.manifest.index, node.disk.manifest.term]
        node.applied, node.state, node.sessions = node.disk.manifest.index, dict(image.state), dict(image.sessions)
        self.oracle.started(node)
        node.next_tick = self.now + 1 + self.random() * UNITS_PER_TICK / node.rate
        self.after(int(node.next_tick) - self.now, self._tick, node, node.life)
        self.drain(node)

    def crash(self, node: Node) -> None:
        """Kills the process. Of the writes under way a random number, the oldest ones, turn out to be durable."""
        for ready, _ in list(node.pending)[: self.rng.randrange(len(node.pending) + 1)]:
            node.disk.write(ready)
        node.core = None
        node.life += 1
        node.forget()

    def crash_for_a_while(self, node: Node) -> None:
        """Kills the process and starts it again some time later."""
        self.oracle.note("crash", node.id)
        self.crash(node)
        self.after(self.rng.randrange(DOWN_UNITS_MAX), self.restart, node)

    def restart(self, node: Node) -> None:
        """Starts it again, if it is down."""
        if node.core is None:
            self.start(node)

    def wipe(self, node: Node) -> None:
        """The disk is replaced by an empty one: the node does not know what it promised."""
        if node.core is not None:
            self.crash(node)
        node.incarnation += 1
        node.disk, node.admission = Disk(franchise=Franchise.NONE), None
        self.oracle.wiped(node)
        self.restart(node)

    def admit(self, node: Node, admission: PlacedProposals) -> None:
        """The node is a member again, by a committed entry: it is started anew, and told so."""
        if node.core is not None:
            self.crash(node)
        node.disk.franchise, node.disk.admitted, node.admission = Franchise.FULL, admission, None
        self.restart(node)

    # Duties of a caller

    def drain(self, node: Node) -> None:
        """Takes every Ready that there is."""
        core = node.core
        if core is None:
            return
        self.oracle.watch(node, core)
        while core.dirty and (ready := core.ready()) is not None:
            self._handle(node, ready)

    def _handle(self, node: Node, ready: Ready) -> None:
        """The duties, in the order of the package's head."""
        wrote = ready.completion is not None
        if wrote:
            self.oracle.writes(node, ready)
        for message in ready.send_now:
            self.send(node, message)
        if wrote or node.pending:
            due = self.now
            if wrote:
                fewest = self.swarm.sync_units_min
                due += fewest + int(self.random() * (self.swarm.sync_units_max - fewest + 1))
            if node.pending:
                due = max(due, node.pending[-1][1])
            node.pending.append((ready, due))
            self.after(due - self.now, self._complete, node, node.life)
        else:
            self._release(node, ready)  # nothing to wait for
        if ready.committed is not None:
            self._apply(node, ready.committed)
        for result in ready.reads:
            if result.index is None:
                self.on_read(node, result.context, False)
            else:
                node.reads.append((result.index, result.context))
        self._begin_work(node, ready)
        if node.reads:
            self._serve_reads(node)

    def _begin_work(self, node: Node, ready: Ready) -> None:
        """Copies and reads of the own log take time."""
        if ready.copy is not None:
            node.copy = ready.copy
            self.after(self.rng.randrange(1, self.swarm.copy_units_max + 1), self._copied, node, node.life, ready.copy)
        if ready.fetch is not None:
            self.after(self.rng.randrange(1, FETCH_UNITS_MAX + 1), self._fetched, node, node.life, ready.fetch)

    def _fetched(self, node: Node, life: int, wanted: EntriesWanted) -> None:
        """Entries were read from the node's own log, or are gone from it."""
        if node.life != life or node.core is None:
            return
        if node.paused:
            self._when_awake(node, self._fetched, node, life, wanted)
            return
        found = read_entries(node.disk.entries, wanted)
        self.oracle.counts["entries gone" if found is None else "entries fetched"] += 1
        node.core.report_entries(wanted, found)
        self.drain(node)

    def _complete(self, node: Node, life: int) -> None:
        """Writes whose time has come are durable, in order; what was built on them leaves."""
        if node.life != life or node.core is None or node.paused:
            return
        while node.pending and node.pending[0][1] <= self.now:
            ready, _ = node.pending.popleft()
            node.disk.write(ready)
            if self.torn_rounds and self.random() < self.torn_rounds:
                self.oracle.counts["crashes behind a write"] += 1
                self.crash_for_a_while(node)  # what was built on the write never leaves
                return
            self._release(node, ready)
        self.drain(node)

    def _release(self, node: Node, ready: Ready) -> None:
        assert node.core is not None
        for message in ready.send_after_fsync:
            self.oracle.promises(node, message)
            self.send(node, message)
        node.core.advance(ready.completion)

    def _apply(self, node: Node, committed: Entries) -> None:
        self.oracle.applies(node, committed)
        for offset, (kind, payload) in enumerate(zip(committed.kinds, committed.payloads, strict=True)):
            index = node.applied = committed.first + offset
            if kind == KIND_NORMAL:
                client, number, key = map(int, payload.split())
                if node.sessions.get(client, -1) < number:
                    node.sessions[client] = number
                    node.state[key] = (index, client, number)
                    self.oracle.effective(client, number, index)
                if node.waiting and (done := node.waiting.pop((client, number), None)) is not None:
                    done(self.oracle.index_of(client, number))

    def _serve_reads(self, node: Node) -> None:
        ready = [read for read in node.reads if read[0] <= node.applied]
        if ready:
            node.reads = [read for read in node.reads if read[0] > node.applied]
            for _, context in ready:
                self.on_read(node, context, True)

    # Snapshots and copies

    def snapshot(self, node: Node) -> None:
        """Begins a snapshot of the state as it is; it counts when it is durable."""
        if node.core is None or node.snapshotting or node.applied <= node.core.manifest.index:
            return
        node.snapshotting = True
        index = Index(node.applied)
        manifest = node.core.manifest_at(index)
        image = Image(dict(node.state), dict(node.sessions))
        self.after(self.rng.randrange(1, self.swarm.copy_units_max + 1), self._snapshotted, node, node.life, manifest, image)

    def _snapshotted(self, node: Node, life: int, manifest: SnapshotDescriptor, image: Image) -> None:
        if node.life != life or node.core is None:
            return
        if node.paused:
            self._when_awake(node, self._snapshotted, node, life, manifest, image)
            return
        node.snapshotting = False
        if manifest.index <= node.core.manifest.index:
            return
        known = self.images.setdefault((manifest.index, manifest.term), image)
        self.oracle.same_state(node, manifest, known, image)
        upto = Index(max(0, manifest.index - self.rng.randrange(self.swarm.kept_entries_max + 1)))
        # Taken in the moment in which the core learns of it, as one atomic record of the log would be.
        node.disk.compact(manifest, node.core.compact(manifest, upto))
        self.drain(node)

    def _copied(self, node: Node, life: int, manifest: SnapshotDescriptor) -> None:
        """The node is made again from a copy of another one's state, unless its log has come so far meanwhile."""
        if node.life != life or node.core is None or node.copy != manifest:
            return
        if node.paused:
            self._when_awake(node, self._copied, node, life, manifest)
            return
        if self.random() < self.swarm.copy_failure:
            self.oracle.counts["copies failed"] += 1
            self.after(self.swarm.copy_units_max, self._copied, node, node.life, manifest)
            return
        self.oracle.counts["copies made"] += 1
        node.copy = None
        if node.core.log.commit < manifest.index:
            self.oracle.counts["snapshots installed"] += 1
            self.crash(node)
            node.disk.install(manifest)
            self.restart(node)

    # Network

    def send(self, node: Node, message: Message) -> None:
        """Puts a message on its way, between these incarnations alone; it arrives, perhaps, perhaps twice."""
        receiver = self.nodes[message.receiver]
        self.events += 1
        self.oracle.sends(node, message)
        if self.doubling and self.random() < self.doubling:
            self.oracle.counts["messages doubled"] += 1
            self._launch(node, receiver, message)
        self._launch(node, receiver, message)

    def _launch(self, node: Node, receiver: Node, message: Message) -> None:
        random, swarm = self.random, self.swarm
        if self.loss and random() < self.loss:
            self.oracle.counts["messages lost"] += 1
            return
        fewest = swarm.delay_units_min
        units = fewest + int(random() * (swarm.delay_units_max - fewest + 1))
        if swarm.stray and random() < swarm.stray:
            units += self.rng.randrange(400)
        self.after(units, self._deliver, receiver, (node.incarnation, receiver.incarnation), message)

    def _deliver(self, receiver: Node, incarnations: tuple[int, int], message: Message) -> None:
        core = receiver.core
        if core is None or (message.sender, receiver.id) in self.blocked:
            return
        if incarnations != (self.nodes[message.sender].incarnation, receiver.incarnation):
            return  # of an earlier disk on either side (duty 11)
        if receiver.paused:
            self._when_awake(receiver, self._deliver, receiver, incarnations, message)
            return
        core.step(message)
        self.drain(receiver)

    # What the rest of the world asks

    def running(self) -> list[Node]:
        """Nodes with a process, by number."""
        return [node for node in self.nodes.values() if node.core is not None]

    def leaders(self) -> list[Node]:
        """Those that believe to lead, by number."""
        return [node for node in self.running() if node.core is not None and node.core.role.value == "leader"]
