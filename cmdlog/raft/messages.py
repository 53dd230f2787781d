"""What nodes say to each other, and the values that a log is made of.

One rule: values only; nothing here decides. A message names sender, receiver and the sender's term; which group it belongs to is
said by the frame around it (`codec`), because one connection carries all groups of a node.

What is made per message is a `@value`: the type checker holds that it is never changed, and only the type checker. A frozen
dataclass costs 1.3 to 2 us to make, four times a plain one, and several are made for every entry that is proposed by itself. What
is made rarely stays a frozen dataclass.

Entries travel in columns, never as one object each: the work of a message is then one slice per column, whatever the batch.
Ranges of indexes are first..last, both included, as in the paper.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, TypeVar, dataclass_transform

from cmdlog.raft.configuration import Configuration, NodeId
from cmdlog.wal.ids import Index, PartitionId, Term

NO_TERM: Final = Term(0)
NO_INDEX: Final = Index(0)  # the first entry of a log has index 1

KIND_NORMAL: Final = 0  # the caller's opaque bytes: one batch of the command log
KIND_EMPTY: Final = 1  # the entry that every leader begins its term with (paper, section 8)
KIND_CONFIGURATION: Final = 2  # payload: Configuration.to_bytes()
SIZE_UNKNOWN: Final = -1
ENTRY_KINDS: Final = (KIND_NORMAL, KIND_EMPTY, KIND_CONFIGURATION)


T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[T]) -> type[T]:
    """A dataclass with slots, compared and hashed by its fields."""
    return dataclass(slots=True, unsafe_hash=True)(cls)


@value
class Entries:
    """Consecutive entries in three parallel columns, from index `first` on. Shared, so never changed after construction."""

    first: Index
    terms: list[Term]
    kinds: bytes  # one of ENTRY_KINDS per entry
    payloads: list[bytes]
    size: int = field(default=SIZE_UNKNOWN, compare=False, repr=False)  # bytes of all payloads, where somebody has counted them

    def __len__(self) -> int:
        return len(self.terms)

    @property
    def last(self) -> Index:
        """Index of the last entry; `first - 1` when there is none."""
        return Index(self.first + len(self.terms) - 1)


@value
class HardState:
    """What a node must not forget: paper, Figure 2 "Persistent state". `commit` only saves work at a restart."""

    term: Term = NO_TERM
    vote: NodeId | None = None
    commit: Index = NO_INDEX


@dataclass(frozen=True, slots=True)
class SnapshotDescriptor:
    """A snapshot as consensus sees it: its position. How its state is copied is the caller's affair."""

    index: Index = NO_INDEX
    term: Term = NO_TERM
    configuration: Configuration = field(default_factory=Configuration)


class MessageKind(enum.IntEnum):
    """Numbers on the wire, for ever; new kinds get new numbers."""

    VOTE_REQUEST = 1
    VOTE_REPLY = 2
    APPEND = 3
    APPEND_REPLY = 4
    HEARTBEAT = 5
    HEARTBEAT_REPLY = 6
    INSTALL_SNAPSHOT = 7
    TIMEOUT_NOW = 9
    READ_REQUEST = 10
    READ_REPLY = 11
    HEARTBEAT_BUNDLE = 13
    HEARTBEAT_REPLY_BUNDLE = 14
    REMOVED = 15
    EXECUTED = 16
    FITNESS = 17


class Campaign(enum.IntEnum):
    """What a vote is asked for."""

    PRE = 1  # would you? changes nothing at the voter (dissertation, section 9.6); `term` is the one that would follow
    REAL = 2
    TRANSFER = 3  # real, and the present leader wants it: a voter does not shield that leader (dissertation, section 3.10)


@value
class Message:
    """The part that all have. `term` is the sender's, but for pre-votes: there it is the term asked for."""

    kind: ClassVar[MessageKind]
    sender: NodeId
    receiver: NodeId
    term: Term


@value
class VoteRequest(Message):
    """RequestVote; the log that the candidate would bring."""

    kind = MessageKind.VOTE_REQUEST
    campaign: Campaign
    last_index: Index
    last_term: Term


@value
class VoteReply(Message):
    """A granted pre-vote repeats the term asked for; everything else has the voter's own term."""

    kind = MessageKind.VOTE_REPLY
    campaign: Campaign
    granted: bool


@value
class Append(Message):
    """AppendEntries; the entry before the first one has `prev_term`."""

    kind = MessageKind.APPEND
    prev_term: Term
    commit: Index
    entries: Entries


@value
class AppendReply(Message):
    """Accepted: the follower's durable log equals the leader's up to `index`. Rejected: it has no match at `index`, and the
    hint is the highest (index, term) of its own log that could match (terms are skipped as a whole)."""

    kind = MessageKind.APPEND_REPLY
    index: Index
    rejected: bool = False
    hint_index: Index = NO_INDEX
    hint_term: Term = NO_TERM


@value
class Heartbeat(Message):
    """Sign of life. `commit` never exceeds what the follower has acknowledged; `round` is the read round it can confirm."""

    kind = MessageKind.HEARTBEAT
    commit: Index
    round: int


@value
class HeartbeatReply(Message):
    """Still following, as of read round `round`."""

    kind = MessageKind.HEARTBEAT_REPLY
    round: int


@value
class InstallSnapshot(Message):
    """The follower is behind the leader's log: it has to be made again from a copy of the manifest's state or a later one."""

    kind = MessageKind.INSTALL_SNAPSHOT
    manifest: SnapshotDescriptor


@value
class TimeoutNow(Message):
    """The leader hands over: campaign at once."""

    kind = MessageKind.TIMEOUT_NOW


@value
class Removed(Message):
    """To a node that asks for votes: the configuration at `index` is committed, and the receiver is in none from there on."""

    kind = MessageKind.REMOVED
    index: Index


@value
class ReadRequest(Message):
    """A follower's reads want a read index. Contexts are the follower's own numbers (64 bits), different in all its starts."""

    kind = MessageKind.READ_REQUEST
    contexts: tuple[int, ...]


@value
class ReadReply(Message):
    """These reads may be served once `index` is applied."""

    kind = MessageKind.READ_REPLY
    index: Index
    contexts: tuple[int, ...]


@value
class Executed(Message):
    """What the sender's state machine has executed, one row per batch; it belongs to no group, and its term is 0. Consensus
    carries it and takes no notice of it. `terms` are the leader's in each group, `commits` what it knew committed then."""

    kind = MessageKind.EXECUTED
    groups: Sequence[PartitionId]
    terms: Sequence[Term]
    indexes: Sequence[Index]
    commits: Sequence[Index]
    digests: Sequence[int]


@value
class Fitness(Message):
    """Why its sender should not lead, as bits; 0: it may. It belongs to no group, and its term is 0. Consensus carries it and
    takes no notice of it."""

    kind = MessageKind.FITNESS
    reasons: int


@dataclass(frozen=True, slots=True)
class HeartbeatBundle:
    """The heartbeats of many groups from one node to another, in columns, ascending by group. It has no group of its own."""

    kind: ClassVar[MessageKind] = MessageKind.HEARTBEAT_BUNDLE
    sender: NodeId
    receiver: NodeId
    groups: Sequence[PartitionId]
    terms: Sequence[Term]
    commits: Sequence[Index]
    rounds: Sequence[int]


@dataclass(frozen=True, slots=True)
class HeartbeatReplyBundle:
    """The answers to a HeartbeatBundle, likewise."""

    kind: ClassVar[MessageKind] = MessageKind.HEARTBEAT_REPLY_BUNDLE
    sender: NodeId
    receiver: NodeId
    groups: Sequence[PartitionId]
    terms: Sequence[Term]
    rounds: Sequence[int]


Bundle = HeartbeatBundle | HeartbeatReplyBundle
