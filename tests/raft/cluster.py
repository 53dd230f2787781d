"""A few cores in one thread: a network and disks that do what the test says, and an order of events that is always the same.

One rule: a node is driven only through the public operations of `RaftCore`, by the duties in the head of `cmdlog.raft`.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from cmdlog.raft import (
    Configuration,
    Entries,
    EntriesWanted,
    Franchise,
    HardState,
    Message,
    PlacedProposals,
    RaftCore,
    RaftSettings,
    ReadResult,
    Ready,
    Restored,
    Role,
    SnapshotDescriptor,
)
from cmdlog.raft.configuration import NodeId, nodes
from cmdlog.raft.messages import KIND_NORMAL, VoteReply, VoteRequest
from cmdlog.wal.ids import Index, Term

ROUNDS_MAX = 2_000  # of `settle`: more means that messages go in circles


def node(value: int) -> NodeId:
    """Short name for a test's node ids."""
    return NodeId(value)


def read_entries(durable: Entries, wanted: EntriesWanted) -> Entries | None:
    """As many of the entries as fit, one at least; None when the first one is gone."""
    begin = wanted.first - durable.first
    if not 0 <= begin < len(durable):
        return None
    end, size = begin, 0
    for payload in durable.payloads[begin : begin + wanted.last - wanted.first + 1]:
        if end > begin and size + len(payload) > wanted.bytes_max:
            break
        end, size = end + 1, size + len(payload)
    return Entries(wanted.first, durable.terms[begin:end], durable.kinds[begin:end], durable.payloads[begin:end])


@dataclass(slots=True)
class Disk:
    """What is durable of one node, and whether it may have forgotten a vote."""

    hard_state: HardState = field(default_factory=HardState)
    manifest: SnapshotDescriptor = field(default_factory=SnapshotDescriptor)
    entries: Entries = field(default_factory=lambda: Entries(Index(1), [], b"", []))
    franchise: Franchise = Franchise.FULL
    admitted: PlacedProposals | None = None

    def write(self, ready: Ready) -> None:
        """One Ready's records, whole; entries replace what stands from their first index on."""
        if ready.hard_state is not None:
            self.hard_state = ready.hard_state
        if (new := ready.entries) is not None:
            own = self.entries  # nobody else's: changed in place
            kept = new.first - own.first
            if not 0 <= kept <= len(own.terms):
                raise AssertionError(f"entries from {new.first} on leave a gap behind {own.first}..{own.last}")
            own.terms[kept:], own.payloads[kept:] = new.terms, new.payloads
            own.kinds = own.kinds[:kept] + new.kinds  # type: ignore[misc]

    def compact(self, manifest: SnapshotDescriptor, base: Index) -> None:
        """The snapshot is durable, and entries up to `base` are gone."""
        self.manifest = manifest
        self.cut(max(self.entries.first, base + 1))

    def cut(self, first: int) -> None:
        """Entries before `first` are gone."""
        old, gone = self.entries, first - self.entries.first
        self.entries = Entries(Index(first), old.terms[gone:], old.kinds[gone:], old.payloads[gone:])

    def install(self, manifest: SnapshotDescriptor) -> None:
        """A copy of a state, and of the term that it has, takes the place of the log."""
        if manifest.term > self.hard_state.term:
            self.hard_state = HardState(manifest.term)
        self.manifest, self.entries = manifest, Entries(Index(manifest.index + 1), [], b"", [])

    def term_at(self, index: Index) -> int | None:
        """Term of a durable entry; None when there is none."""
        if index == self.manifest.index:
            return self.manifest.term
        offset = index - self.entries.first
        return self.entries.terms[offset] if 0 <= offset < len(self.entries) else None

    def restored(self) -> Restored:
        """What a restart begins from."""
        return Restored(self.hard_state, self.manifest, self.entries, self.franchise, self.admitted)


class Member:
    """One node: core, disk, and the writes that are not durable yet."""

    def __init__(self, core: RaftCore, disk: Disk) -> None:
        self.core, self.disk = core, disk
        self.writing: deque[Ready] = deque()
        self.applied: list[tuple[int, bytes]] = []  # (index, payload) of normal entries, since the last start
        self.reads: list[ReadResult] = []
        self.copies: list[SnapshotDescriptor] = []
        self.fetches: list[EntriesWanted] = []  # answered at once
        self.synced = True  # writes become durable at once; else with `sync`

    def take(self) -> list[Message]:
        """Takes every Ready that there is; returns what may leave."""
        out: list[Message] = []
        while (ready := self.core.ready()) is not None:
            out += ready.send_now
            self.writing.append(ready)
            self._use(ready)
            if self.synced:
                out += self.sync()
        return out

    def sync(self, count: int | None = None) -> list[Message]:
        """The oldest `count` writes become durable, all by default; returns what may leave now."""
        out: list[Message] = []
        for _ in range(len(self.writing) if count is None else count):
            ready = self.writing.popleft()
            self.disk.write(ready)
            out += ready.send_after_fsync
            self.core.advance(ready.completion)
        return out

    def _use(self, ready: Ready) -> None:
        if (committed := ready.committed) is not None:
            self.applied += [
                (committed.first + i, payload)
                for i, (kind, payload) in enumerate(zip(committed.kinds, committed.payloads, strict=True))
                if kind == KIND_NORMAL
            ]
        self.reads += ready.reads
        self.copies += [ready.copy] if ready.copy is not None else []
        if ready.fetch is not None:
            self.fetches.append(ready.fetch)
            self.core.report_entries(ready.fetch, read_entries(self.disk.entries, ready.fetch))


class Cluster:
    """Nodes by id, and the messages between them in the order in which they were sent."""

    def __init__(
        self,
        voters: Iterable[int] = (1, 2, 3),
        *,
        others: Iterable[int] = (),
        settings: RaftSettings | None = None,
        configuration: Configuration | None = None,
        seed: int = 1,
    ) -> None:
        first = configuration or Configuration(voters=nodes(voters))
        self.settings, self.seed = settings or RaftSettings(), seed
        self.members: dict[NodeId, Member] = {}
        self.wire: deque[Message] = deque()
        self.passes: Callable[[Message], bool] = lambda message: True
        for member in first.members():
            self.add(member, Disk(manifest=SnapshotDescriptor(configuration=first)))
        for member in nodes(others):
            self.add(member, Disk())

    def add(self, member: NodeId, disk: Disk) -> None:
        """Starts a node from its disk."""
        rng = random.Random(f"{self.seed}/{member}")
        self.members[member] = Member(RaftCore(member, rng=rng, settings=self.settings, restored=disk.restored()), disk)

    def install(self, member: int) -> Member:
        """The node is made again from the copy that it was offered last."""
        node = self.members[NodeId(member)]
        node.disk.install(node.copies[-1])
        self.restart(member)
        return self.members[NodeId(member)]

    def restart(self, member: int) -> None:
        """Kills the node, with all that is not durable, and starts it again."""
        self.seed += 1
        self.add(node(member), self.members[node(member)].disk)

    def core(self, member: int) -> RaftCore:
        """The node's core."""
        return self.members[node(member)].core

    def settle(self) -> None:
        """Runs until nobody has anything to do or to say."""
        for _ in range(ROUNDS_MAX):
            for member in self.members.values():
                self.wire += filter(self.passes, member.take())
            if not self.wire:
                return
            self.deliver()
        raise AssertionError(f"no end after {ROUNDS_MAX} rounds")

    def deliver(self) -> None:
        """Delivers what is under way; what is sent in answer waits for the next time."""
        wire, self.wire = self.wire, deque()
        for message in wire:
            if message.receiver in self.members:
                self.members[message.receiver].core.step(message)

    def tick(self, count: int = 1) -> None:
        """Time passes for all; everything that follows from it happens before the next tick."""
        for _ in range(count):
            for member in self.members.values():
                member.core.tick()
            self.settle()

    def tick_one(self, member: int, count: int = 1) -> None:
        """Time passes for one node alone."""
        for _ in range(count):
            self.core(member).tick()
            self.settle()

    def elect(self, member: int) -> RaftCore:
        """Makes the node leader: its time-out is the first to come."""
        core = self.core(member)
        self.tick_one(member, core.timeout)
        assert core.role is Role.LEADER, core.role
        return core

    def leaders(self) -> list[NodeId]:
        """Who leads, or thinks so."""
        return [member.core.id for member in self.members.values() if member.core.role is Role.LEADER]

    def cut(self, *members: int) -> None:
        """The nodes hear nobody and are heard by nobody."""
        gone = set(members)
        self.passes = lambda message: message.sender not in gone and message.receiver not in gone

    def heal(self) -> None:
        """Every message arrives again."""
        self.passes = lambda message: True

    def applied(self, member: int) -> list[bytes]:
        """Payloads that the node's state machine was given."""
        return [payload for _, payload in self.members[node(member)].applied]


def column(first: int, *terms: int, kinds: bytes | None = None, payloads: list[bytes] | None = None) -> Entries:
    """Entries from `first` on with these terms; normal ones, each with its own place as payload."""
    named = [f"{first + i}@{term}".encode() for i, term in enumerate(terms)]
    own_kinds = bytes(len(terms)) if kinds is None else kinds
    return Entries(Index(first), [Term(term) for term in terms], own_kinds, payloads or named)


def solo(
    member: int = 1,
    *,
    voters: Iterable[int] = (1, 2, 3),
    learners: Iterable[int] = (),
    terms: Iterable[int] = (),
    term: int | None = None,
    vote: int | None = None,
    commit: int = 0,
    settings: RaftSettings | None = None,
    franchise: Franchise = Franchise.FULL,
    admitted: PlacedProposals | None = None,
) -> Member:
    """One node by itself, whose log has entries of these terms; the test plays the others."""
    log = column(1, *terms)
    hard = HardState(Term(max([0, *terms]) if term is None else term), None if vote is None else node(vote), Index(commit))
    first = SnapshotDescriptor(configuration=Configuration(voters=nodes(voters), learners=nodes(learners)))
    disk = Disk(hard, first, log, franchise, admitted)
    return Member(RaftCore(node(member), rng=random.Random(member), settings=settings, restored=disk.restored()), disk)


def lead(member: Member) -> RaftCore:
    """Makes a node by itself leader, by votes of the others; what it sends until then is gone."""
    core = member.core
    while core.role is not Role.LEADER:
        core.tick()
        asked = [message for message in member.take() if isinstance(message, VoteRequest)]
        for request in asked:
            core.step(VoteReply(request.receiver, core.id, request.term, request.campaign, True))
    member.take()
    return core
