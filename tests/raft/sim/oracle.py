"""The judge: sees every event, knows what may never happen, and keeps the hash of the whole history.

One rule: it looks at commit marks, promises on the wire, disks and acknowledgements in the moment in which they appear, not when
something is applied: a core with a hole is wrong long before a state machine shows it. Names in brackets are the properties of
the Raft paper, Figure 3, or sections.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from cmdlog.raft import Configuration, Entries, Franchise, Message, NodeId, RaftCore, Ready, Role, SnapshotDescriptor
from cmdlog.raft.messages import (
    KIND_CONFIGURATION,
    Append,
    AppendReply,
    Campaign,
    InstallSnapshot,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from cmdlog.raft.quorum import has_quorum
from tests.raft.completeness import unseeing
from tests.raft.invariants import check_group, check_invariants

if TYPE_CHECKING:
    from tests.raft.sim.world import Image, Node

_BINDING: Final = frozenset((VoteRequest, VoteReply, Append, AppendReply, InstallSnapshot, TimeoutNow))
"""Messages that others act on as a promise in their term; pre-votes and answers to heartbeats promise nothing."""

INVARIANTS_EVERY: Final = 64  # looks at a core; they cost as much as ten events
_EVENTS: Final = (
    ("start", "wipe", "crash", "pause", "partition", "transfer", "change", "snapshot"),
    ("send", "write", "leads", "commit", "apply", "ack"),
)
WORDS: Final = {word: number for number, word in enumerate((*_EVENTS[0], *_EVENTS[1]), 1)}
"""What happens, as numbers for the hash."""
_SEND: Final = WORDS["send"]


class Violation(AssertionError):
    """Something happened that never may. The message says what, in words of the paper."""


class Oracle:
    """`truth` is what is committed: index -> (term, kind, payload), from index 1 on, without gaps."""

    def __init__(self) -> None:
        self.hash = 0
        self.story: Callable[[str], None] | None = None  # gets a line per event, for people
        self.truth: list[tuple[int, int, bytes]] = []
        self.leaders: dict[int, tuple[NodeId, int]] = {}  # term -> who won it, and in which life
        self._votes: dict[tuple[NodeId, int, int], NodeId] = {}  # (voter, incarnation, term) -> candidate
        self._terms: dict[tuple[NodeId, int], int] = {}  # (node, incarnation) -> highest term that it has told anyone
        self._effective: dict[tuple[int, int], int] = {}  # (client, number) -> index of the entry that took effect
        self._looks_left = INVARIANTS_EVERY
        self.counts: Counter[str] = Counter()  # what happened, by name
        self._wiped = False
        self.nodes: Mapping[NodeId, Node] = {}

    def note(self, what: str, *numbers: int) -> None:
        """Adds an event to the hash, and to the story."""
        self.hash = hash((self.hash, WORDS[what], numbers))  # of integers alone: PYTHONHASHSEED does not touch it
        self.counts[what] += 1
        if self.story is not None:
            self.story(" ".join((what, *map(str, numbers))))

    # Lives

    def started(self, node: Node) -> None:
        """A process begins with what is durable."""
        assert node.core is not None
        self.note("start", node.id, node.life, node.core.term, node.core.log.last)
        told = self._terms.get((node.id, node.incarnation), 0)
        if node.core.term < told:
            raise Violation(f"node {node.id} forgot term {told} and is in {node.core.term} [5.1: terms are persistent]")
        node.seen_commit = node.core.log.base

    def wiped(self, node: Node) -> None:
        """A disk is new."""
        self._wiped = True
        self.note("wipe", node.id, node.incarnation)

    # What a node says and takes

    def sends(self, node: Node, message: Message) -> None:
        """A message leaves."""
        # By far the most frequent event: `note` without the call.
        self.hash = hash((self.hash, _SEND, message.kind, message.sender, message.receiver, message.term))
        if self.story is not None:
            self.story(f"send {message.kind.name.lower()} {message.sender} {message.receiver} {message.term}")
        if node.disk.franchise is Franchise.NONE:
            raise Violation(f"node {node.id} speaks, although it forgot what it promised")
        if type(message) not in _BINDING or getattr(message, "campaign", None) is Campaign.PRE:
            return
        who = (node.id, node.incarnation)
        if message.term > node.disk.hard_state.term:
            raise Violation(f"node {node.id} speaks in term {message.term} before it is durable [5.1]")
        self._terms[who] = max(self._terms.get(who, 0), message.term)
        if isinstance(message, TimeoutNow):
            self.counts["leadership offered"] += 1
        if isinstance(message, VoteRequest):
            self._vote(node, message.term, node.id)

    def promises(self, node: Node, message: Message) -> None:
        """A message leaves that was built on durable things: are they?"""
        if isinstance(message, VoteReply) and message.granted and message.campaign is not Campaign.PRE:
            hard, admitted = node.disk.hard_state, node.disk.admitted
            if admitted is not None and admitted.first > max(node.disk.manifest.index, node.disk.entries.last):
                raise Violation(f"node {node.id} votes without entry {admitted.first}, which made it a member again")
            if (hard.term, hard.vote) != (message.term, message.receiver):
                raise Violation(f"node {node.id} grants a vote in {message.term} that is not durable [5.2]")
            self._vote(node, message.term, message.receiver)
        if isinstance(message, AppendReply) and not message.rejected:
            end = max(node.disk.manifest.index, node.disk.entries.last)
            if message.index > end and message.term == node.disk.hard_state.term:
                raise Violation(f"node {node.id} acknowledges {message.index}, durable is {end} [5.3]")

    def _vote(self, node: Node, term: int, candidate: NodeId) -> None:
        before = self._votes.setdefault((node.id, node.incarnation, term), candidate)
        if before != candidate:
            raise Violation(f"node {node.id} votes for {before} and {candidate} in term {term} [5.2]")

    def writes(self, node: Node, ready: Ready) -> None:
        """A Ready that is to be made durable was taken."""
        entries, counts = ready.entries, self.counts
        self.note("write", node.id, entries.first if entries else 0, len(entries) if entries else 0)
        if entries and entries.first <= node.disk.entries.last:
            counts["conflicts truncated"] += 1

    # What a node knows

    def watch(self, node: Node, core: RaftCore) -> None:
        """Looks at a node after an event."""
        if core.role is Role.LEADER and node.led != core.term:
            self._watch_leader(node, core)
        if core.log.commit != node.seen_commit:
            self._watch_commit(node, core)
        self._looks_left -= 1
        if not self._looks_left:
            self._looks_left = INVARIANTS_EVERY
            check_invariants(core)

    def _watch_leader(self, node: Node, core: RaftCore) -> None:
        won = self.leaders.get(core.term)
        if won is not None:
            raise Violation(f"nodes {won[0]} and {node.id} both lead term {core.term} [election safety]")
        self.leaders[core.term] = (node.id, node.life)
        node.led = core.term
        self.note("leads", node.id, core.term)
        if self.truth and core.log.base < len(self.truth) and core.log.term_at(len(self.truth)) != self.truth[-1][0]:
            raise Violation(
                f"node {node.id} leads term {core.term} without committed entry {len(self.truth)} [leader completeness]"
            )

    def _watch_commit(self, node: Node, core: RaftCore) -> None:
        log, before = core.log, node.seen_commit
        if log.commit < before:
            raise Violation(f"node {node.id}: commit falls from {before} to {log.commit}")
        node.seen_commit = log.commit
        self.note("commit", node.id, log.commit)
        if log.base > before:
            before = log.base
            if log.base > len(self.truth) or self.truth[log.base - 1][0] != log.base_term:
                raise Violation(f"node {node.id} has a snapshot at {log.base} of what was never committed [7]")
        for index in range(before + 1, log.commit + 1):
            at = index - log.base - 1
            self._commit(node, index, (log.terms[at], log.kinds[at], log.payloads[index - log.held - 1]))
        if core.role is Role.LEADER:
            self._watch_leaders_commit(node, core)

    def _commit(self, node: Node, index: int, entry: tuple[int, int, bytes]) -> None:
        if index <= len(self.truth):
            if self.truth[index - 1] != entry:
                raise Violation(
                    f"node {node.id} commits {entry} at {index}, {self.truth[index - 1]} is committed [state machine safety]"
                )
            return
        self.truth.append(entry)
        if entry[1] == KIND_CONFIGURATION:
            configuration = Configuration.from_bytes(entry[2])
            self.counts["joint configurations committed" if configuration.joint else "configurations committed"] += 1

    def _watch_leaders_commit(self, node: Node, core: RaftCore) -> None:
        if core.log.term_at(core.log.commit) != core.term:
            raise Violation(f"leader {node.id} commits an entry of an earlier term by counting [5.4.2, Figure 8]")
        if self._wiped:
            return  # somebody held it and does no more
        commit = core.log.commit
        # Counted by the configuration in force, the last one in the log; by the one before if this commit ended a joint one.
        in_force = [value for at, value in core.log.configurations if at >= commit] + [core.log.configuration_at(commit)]
        holders = {
            other.id
            for other in self.nodes.values()
            if other.disk.manifest.index >= commit or other.disk.term_at(commit) == core.term
        }
        if not any(has_quorum(configuration, holders) for configuration in in_force):
            raise Violation(f"leader {node.id} commits {commit}, durable on {sorted(holders)} of {in_force} [5.3]")
        if len(holders) < len(self.nodes):
            disks = {other.id: other.disk for other in self.nodes.values()}
            if unseen := unseeing(disks, holders):
                raise Violation(f"the logs of nodes {unseen} suffice by all they know, and lack entry {commit} [recovery]")

    # State machines

    def applies(self, node: Node, committed: Entries) -> None:
        """Entries are handed to the state machine."""
        self.note("apply", node.id, committed.first, committed.last)
        if committed.first != node.applied + 1:
            raise Violation(f"node {node.id} applies {committed.first} after {node.applied} [5.3: in order, each once]")
        if committed.last > len(self.truth):
            raise Violation(f"node {node.id} applies {committed.last}, committed is {len(self.truth)} [5.3]")
        if node.disk.entries.last < committed.last and node.disk.manifest.index < committed.last:
            raise Violation(f"node {node.id} applies {committed.last} before it is durable there")
        for offset, payload in enumerate(committed.payloads):
            if self.truth[committed.first + offset - 1][2] != payload:
                raise Violation(f"node {node.id} applies another entry at {committed.first + offset} [state machine safety]")

    def effective(self, client: int, number: int, index: int) -> None:
        """An operation took effect on a node; it does so at the same index on all."""
        known = self._effective.setdefault((client, number), index)
        if known != index:
            raise Violation(f"operation {number} of client {client} takes effect at {known} and {index}")

    def index_of(self, client: int, number: int) -> int:
        """Where an operation took effect."""
        return self._effective[client, number]

    def same_state(self, node: Node, manifest: SnapshotDescriptor, known: Image, image: Image) -> None:
        """Two nodes took a snapshot at one index."""
        self.note("snapshot", node.id, manifest.index)
        if known != image:
            raise Violation(f"node {node.id} has another state at {manifest.index} than the node before it")

    def check_together(self, nodes: list[Node]) -> None:
        """Compares all logs at one moment [log matching]."""
        check_group([node.core for node in nodes if node.core is not None])
