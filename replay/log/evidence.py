"""What one node's directory states about every group, before anything is decided: the input of `replay.plan.authority`.

One rule: values only, and all of them taken from durable files; nothing here judges. What could not be read is stated as such,
never left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from cmdlog.wal.errors import Corrupt, WalError
from cmdlog.wal.fault_log import FaultRecord
from cmdlog.wal.format.cluster_record import FaultSet
from cmdlog.wal.format.record import BadRecord
from cmdlog.wal.group_state import GroupState, Stated

PINNED: Final = (0, 0)  # the place of what only the book states
BOOTSTRAP_INDEX: Final = 1  # of the configuration that a group is made with: it was never put to the vote


@dataclass(frozen=True, slots=True)
class StatedConfiguration:
    """A configuration entry: who votes in a group from that index on. `outgoing` holds voters only while it is joint."""

    index: int
    term: int
    voters: frozenset[int]
    outgoing: frozenset[int] = frozenset()
    learners: frozenset[int] = frozenset()

    def is_voter(self, node: int) -> bool:
        """In either half."""
        return node in self.voters or node in self.outgoing

    @classmethod
    def from_stated(cls, stated: Stated) -> StatedConfiguration:
        """Reads the record's JSON. Raises: BadRecord when it is malformed."""
        try:
            sets = [frozenset(map(int, stated.value.get(name, ()))) for name in ("voters", "outgoing", "learners")]
        except (AttributeError, TypeError, ValueError) as error:
            raise BadRecord(f"configuration at index {stated.index}: {error}") from error
        return cls(stated.index, stated.term, *sets)


@dataclass(frozen=True, slots=True)
class BlockRun:
    """Blocks of a log that can be read without a gap, and the entries of one group in them: (base_index, last_index].

    `from_block` is the first block of a segment. A whole log is one run; damage or a missing segment makes more of them.
    """

    from_block: int
    last_block: int
    base_index: int
    base_term: int
    base_checksum: int
    last_index: int
    last_term: int
    last_checksum: int
    base_commit: int | None = None  # known committed where the run begins: a base beyond it may be void; None: unknown
    last_commit: int | None = None  # the same where the run ends


@dataclass(frozen=True, slots=True)
class GroupEvidence:
    """One group, as far as one node's log shows. `runs` ascend; `last_index` is that of the log's own end."""

    group: int
    term: int
    commit: int  # entries up to here are known committed
    last_index: int
    last_term: int
    last_checksum: int
    last_txn: int
    configurations: tuple[StatedConfiguration, ...] = ()  # the newest known committed one and all later ones, ascending
    runs: tuple[BlockRun, ...] = ()
    partitions: int = 0  # stated by the cluster group's configuration
    vote: int | None = None  # whom the node voted for in `term`
    unseen: int = 0  # entries up to here may hold configurations that could not be read; 0: none may
    end_known: bool = True  # False: after `last_index` there were entries, or may have been, that cannot be read

    @classmethod
    def from_state(cls, group: int, state: GroupState) -> GroupEvidence:
        """What a log's fold states about the group. Raises: BadRecord of a malformed configuration."""
        return cls(
            group=group,
            term=state.term,
            commit=state.commit,
            last_index=state.last_index,
            last_term=state.last_term,
            last_checksum=state.last_checksum,
            last_txn=state.last_txn,
            configurations=tuple(StatedConfiguration.from_stated(stated) for stated in state.configurations),
        )


EMPTY: Final = GroupEvidence(group=0, term=0, commit=0, last_index=0, last_term=0, last_checksum=0, last_txn=0)
"""A group that a log knows nothing of."""


@dataclass(frozen=True, slots=True)
class SnapshotEvidence:
    """A snapshot folder that was found whole (by its manifest), or why it is not."""

    name: str
    partition: int
    index: int
    term: int = 0
    checksum: int = 0
    txn_id: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class DirectoryFault:
    """One thing that is wrong with a directory, with its place as far as it is known."""

    what: str
    path: str = ""
    offset: int | None = None
    block: int | None = None

    @classmethod
    def of(cls, error: WalError) -> DirectoryFault:
        """With the place that the error names."""
        return cls(error.what, error.path, error.offset, error.block) if isinstance(error, Corrupt) else cls(str(error))

    def __str__(self) -> str:
        place = f" in {self.path}" if self.path and self.path not in self.what else ""
        place += f" at offset {self.offset}" if self.offset is not None and "offset" not in self.what else ""
        return f"{self.what}{place}"


@dataclass(frozen=True, slots=True)
class KnownLife:
    """What a directory knows of one node's disk."""

    incarnation: str  # in hexadecimal; "" while another one is expected
    former: frozenset[str]  # lives that are over, for ever
    place: tuple[int, int]  # term and index of the MEMBER entry, PINNED without one


@dataclass(frozen=True, slots=True)
class KnownStart:
    """A start of a node's directory, as a book has it."""

    incarnation: str
    number: int
    process: str  # a random number, in hexadecimal; "" where a book of an older version does not say it
    earlier: tuple[str, ...] = field(default=(), compare=False)  # of the starts just before it, oldest first

    def is_older(self, met: KnownStart) -> bool:
        """Whether this last start of a directory shows that another directory of the same life was met.

        An old copy that was started again may have counted further than what was met: then the start of that number was another
        process's.
        """
        if self.incarnation != met.incarnation:
            return False
        back = self.number - met.number
        starts = (*self.earlier, self.process)
        return back < 0 or (back < len(starts) and starts[-1 - back] not in ("", met.process))


@dataclass(frozen=True, slots=True)
class PeersMet:
    """What a book of peers says."""

    lives: Mapping[int, KnownLife] = field(default_factory=dict)  # of the peers
    confirmed: frozenset[int] = frozenset()  # peers that have pinned the life of this directory
    start: KnownStart | None = None  # the last one of this directory, counted before anybody hears of it; None: unknown
    peers: Mapping[int, KnownStart] = field(default_factory=dict)  # the last start of each that was met


@dataclass(frozen=True, slots=True)
class NodeEvidence:
    """One directory. `refused` says why nothing of it may be used: it is foreign, of a newer format, or no node at all."""

    directory: str
    cluster_id: str
    node_id: int
    incarnation: str
    groups: Mapping[int, GroupEvidence] = field(default_factory=dict)
    faults: tuple[FaultRecord, ...] = ()  # this node's fault log, ascending; without gaps after its first one
    logged_faults: FaultSet | None = None  # the newest failure set in its log, which may not be in its fault log yet
    fault_problem: str = ""  # why the fault log cannot be relied on; "" when it can
    snapshots: tuple[SnapshotEvidence, ...] = ()
    damage: tuple[DirectoryFault, ...] = ()  # of the log: its entries end before it, or have a hole there
    refused: DirectoryFault | None = None
    earlier: tuple[str, ...] = ()  # incarnations whose files the directory took over
    lives: Mapping[int, KnownLife] = field(default_factory=dict)  # what it knows of the nodes' disks
    met: frozenset[int] = frozenset()  # nodes that have pinned this life of the disk
    start: KnownStart | None = None  # its last one; None: unknown
    peer_starts: Mapping[int, KnownStart] = field(default_factory=dict)  # the last one of each node that was met
    exit_code: int = 0  # the command line's code for `refused`: 10, 11 or 1
