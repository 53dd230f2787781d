"""What comes out of a core: what it wants done (`Ready`), and what it is (`GroupStatus`).

One rule: everything in one Ready belongs to one moment, and Readies are handled in the order in which they were taken. The duties
that go with each field are numbered in the package's head.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from cmdlog.raft.configuration import Configuration, NodeId
from cmdlog.raft.entries import Completion
from cmdlog.raft.messages import Entries, HardState, Message, SnapshotDescriptor, value
from cmdlog.raft.progress import Sending
from cmdlog.wal.ids import Index, Term


@value
class ReadResult:
    """The read may be served once `index` is applied; None: its leader is gone, ask again."""

    context: int
    index: Index | None


@value
class PlacedProposals:
    """Where proposals stand: consecutive from `first` on, if they are ever committed. When another term is committed at their
    index, they are not there; until then their outcome is unknown."""

    first: Index
    term: Term


@value
class EntriesWanted:
    """Entries `first..last` that are in the caller's log alone: to be read for a follower, from the first one on, as many as
    `bytes_max` allows and one at least; then `report_entries`, also when they cannot be read."""

    first: Index
    last: Index
    bytes_max: int


class Role(enum.Enum):
    """Whether a follower is a learner, or no member at all, is said by the configuration."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre_candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"

    __hash__ = object.__hash__  # members are single objects; the one of enum hashes a name, at every message


class RoleReason(enum.Enum):
    """Why a node has the role that it has. A campaign keeps the reason that began it, and so does the leader that it makes."""

    STARTED = "started"
    ELECTION_TIMEOUT = "election_timeout"  # no leader was heard from
    CAMPAIGN = "campaign"  # the caller asked for one
    TRANSFER = "transfer"  # the leader handed over: to this node, or from it
    FORCED = "forced"  # a recovery without a majority
    HIGHER_TERM = "higher_term"  # another node is in a later term
    LEADER_FOUND = "leader_found"  # the leader of the present term has spoken
    ELECTION_LOST = "election_lost"
    QUORUM_LOST = "quorum_lost"  # no majority was heard from
    DISK_STALLED = "disk_stalled"  # the own disk does not answer
    REMOVED = "removed"  # no voter, by its own log or another node's
    STEPPED_DOWN = "stepped_down"  # the caller asked for it

    __hash__ = object.__hash__  # members are single objects


@value
class SoftState:
    """What a restart forgets: the role, who leads, and whether a committed configuration is without this node."""

    role: Role
    leader: NodeId | None
    removed: bool
    reason: RoleReason  # of the role; news of it alone is no new soft state


@value
class Ready:
    """Work for the caller; fields in the order in which they are to be written."""

    hard_state: HardState | None  # term, vote, commit: changed, or worth writing beside the entries
    entries: Entries | None  # to be written; they replace everything from their first index on
    send_now: list[Message]  # may leave before the write
    send_after_fsync: list[Message]  # only after this write and all earlier ones are durable
    committed: Entries | None  # to be applied, in order, each once; durable here already
    reads: list[ReadResult]  # reads that are decided
    copy: SnapshotDescriptor | None  # this node is too far back: it has to be made again from a copy of this or a later state
    completion: Completion | None  # give it to `advance` when this write and all earlier ones are durable; None: no write
    soft_state: SoftState | None = None  # when it has changed; nothing of it is durable
    fetch: EntriesWanted | None = None  # to be read from the caller's log; there is one at a time


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """What a leader knows of one other node. `match` is the lag's other end; `silent_ticks` is None for a node that has said
    nothing in this term."""

    node: NodeId
    match: Index
    next: Index
    sending: Sending
    silent_ticks: int | None
    in_flight_bytes: int
    copy: SnapshotDescriptor | None  # the snapshot that it needs


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """One group at one moment, for operators and metrics."""

    node: NodeId
    role: Role
    term: Term
    leader: NodeId | None
    removed: bool  # a committed configuration is without this node
    base: Index  # the log in memory begins after it
    applied: Index  # handed out
    durable: Index
    commit: Index
    last: Index
    configuration: Configuration
    transfer: NodeId | None  # leadership is on its way to this node
    copy: SnapshotDescriptor | None  # the snapshot that this node needs
    peers: tuple[PeerStatus, ...]  # ascending by node; none but at a leader
    election_ticks: int  # without a leader's sign of life, before this node campaigns: between one and two of these
    sync_ticks: int  # the slowest write of the own disk that was seen lately
    answer_ticks: int  # the slowest answer to a question about votes
    campaign_extra_ticks: int  # that a campaign waits longer because of both
