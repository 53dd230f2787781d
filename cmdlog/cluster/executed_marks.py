"""Executed marks: a follower executes nothing that its leader has not executed, and compares what both did.

One rule: only a leader decides that a call cannot be run (SKIP), and it decides before the call is executed anywhere. So a
follower runs an entry when the leader says that it did, and knows by then every entry that the leader knew committed: the SKIP
among them.

The leader sends a row per batch: group, its term, index, what was committed, and a digest of what the batch did. Rows may be
lost; the newest of every group is sent again. A batch whose digest differs on the two nodes was not the same computation: the
follower stops to apply that partition, and sends all peers its own row of that batch.

Rows are facts about their sender, also of one that does not lead. So each node counts the same votes: a follower whose digest
a majority has was right, and applies on; a leader against which a majority has one other digest was wrong, and is the one that
diverged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

import google_crc32c
import structlog

from cmdlog.raft import RaftCore
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.messages import NO_TERM, Executed
from cmdlog.raft.multi_raft import GroupId, Parcel
from cmdlog.raft.wire.layout import NO_GROUP
from cmdlog.wal.ids import CLUSTER_GROUP, PartitionId

ROWS_MAX: Final = 512  # of one message
KEPT_MAX: Final = 4096  # digests of a partition that wait for the other node's
REPEAT_TICKS: Final = 5  # until the newest mark of every group is sent again
DISPUTES_MAX: Final = 64  # batches of a partition whose digests at other nodes are kept

log = structlog.get_logger("cmdlog.cluster")

T = TypeVar("T")

Row = tuple[int, int, int, int, int]  # group, term, index, commit, digest


def digest_of(rows_digest: int, result_hashes: bytes) -> int:
    """64 bits of what a batch did: of its results, and of the rows that it changed, 0 in the low half where none was taken."""
    rows = (rows_digest ^ rows_digest >> 32) & 0xFFFFFFFF
    return int(google_crc32c.value(result_hashes)) << 32 | (rows or 1 if rows_digest else 0)


def differ(one: int, other: int) -> bool:
    """Whether two digests are of different computations."""
    return one >> 32 != other >> 32 or (one & 0xFFFFFFFF and other & 0xFFFFFFFF and one != other) is True


@dataclass(slots=True)
class _Followed:
    """One partition, as a follower has it."""

    waiting: deque[tuple[int, bytes]] = field(default_factory=deque)  # (index, record), committed
    known: int = 0  # committed entries that are known here, waiting or not
    marks: deque[tuple[int, int]] = field(default_factory=deque)  # (index, commit), ascending: not usable yet
    upto: int = 0  # the leader has executed so far
    ours: dict[int, int] = field(default_factory=dict)  # index -> digest
    theirs: dict[int, tuple[int, int, NodeId]] = field(default_factory=dict)  # with term and leader
    diverged: int = 0  # index of the batch; 0: none
    dispute: Row | None = None  # our row of that batch, which the peers are to know
    others: dict[int, dict[NodeId, int]] = field(default_factory=dict)  # index -> node -> digest, of nodes that do not lead
    accused: tuple[int, NodeId] | None = None  # term and leader whose digest of that batch is another one
    distrusted: tuple[int, NodeId] | None = None  # those whom a majority has found wrong


class ExecutedMarks:
    """Under the driver's lock."""

    def __init__(
        self,
        partitions: Iterable[int],
        *,
        diverged: Callable[[int, int], None],
        agreed: Callable[[int, int], None] = lambda partition, index: None,
        contradicted: Callable[[int, int], None] = lambda partition, index: None,
        voters: int = 3,
    ) -> None:
        """`diverged` gets partition and index of a batch that was another computation on the leader, or on a majority; `agreed`
        the same when a majority turns out to agree with this node; `contradicted` those of a committed entry that the leader
        has not."""
        self._partitions = {partition: _Followed() for partition in partitions}
        self._diverged, self._agreed, self._majority = diverged, agreed, voters // 2 + 1
        self._on_contradiction, self._contradicted = contradicted, set[PartitionId]()
        self._rows: list[Row] = []  # of this node as the leader, to be sent
        self._newest: dict[int, Row] = {}
        self._ticks = 0
        self.free = False  # this node leads: it executes what is committed

    def set_voters(self, voters: int) -> None:
        """So many nodes vote now: what a majority is follows from it."""
        self._majority = voters // 2 + 1

    # -- the leader ------------------------------------------------------------------------------------------------------

    def lead(self) -> None:
        """This node leads: nothing waits for another one's marks."""
        self.free = True
        for of in self._partitions.values():
            if not of.diverged:
                of.dispute = of.distrusted = None

    def follow(self) -> None:
        """Another node leads, or none."""
        self.free = False
        self._rows.clear()
        self._newest.clear()

    def executed(self, partition: int, *, term: int, index: int, commit: int, digest: int) -> None:
        """A site of this node has executed the entry."""
        if self.free:
            row = (partition, term, index, commit, digest)
            self._rows.append(row)
            self._newest[partition] = row
        of = self._partitions[partition]
        if digest:
            _keep_digest(of.ours, index, digest)
            if index in of.theirs:
                self._compare(partition, of, index)
            if of.others or of.dispute is not None:
                self._count_digests(partition, of, index)

    def due(self, node: NodeId, peers: Callable[[], Iterable[NodeId]]) -> list[Parcel]:
        """What is sent with this tick."""
        self._ticks += 1
        rows, self._rows = self._rows, []
        if self._ticks % REPEAT_TICKS == 0:
            rows += [row for row in self._newest.values() if row not in rows[-len(self._newest) :]]
            rows += [of.dispute for of in self._partitions.values() if of.dispute is not None]
        if not rows:
            return []
        parts = [sorted(rows[at : at + ROWS_MAX]) for at in range(0, len(rows), ROWS_MAX)]
        return [
            Parcel(
                peer, [(GroupId(NO_GROUP), Executed(node, peer, NO_TERM, *map(list, zip(*part, strict=True)))) for part in parts]
            )
            for peer in peers()
        ]

    # -- a follower ------------------------------------------------------------------------------------------------------

    def add(self, partition: int, entries: Iterable[tuple[int, bytes]], known: int) -> list[tuple[int, bytes]]:
        """The partition's next entries that may be executed as far as this node goes; those of them that may be now. `known`:
        the last committed entry that this node knows."""
        of = self._partitions[partition]
        of.waiting.extend(entries)
        of.known = max(of.known, known)
        return self.release(partition)

    def take_marks(self, message: Executed, leaders: Mapping[int, tuple[int, NodeId | None]]) -> list[int]:
        """What a leader says, or a peer of a batch in dispute. Partitions of which more may be run."""
        touched = set()
        for group, term, index, commit, digest in zip(
            message.groups, message.terms, message.indexes, message.commits, message.digests, strict=True
        ):
            of = self._partitions.get(group)
            if of is None:
                continue
            # From a peer that does not lead here: its digest counts as a vote in a dispute, its marks do not.
            if leaders.get(group) != (term, message.sender):
                if digest:
                    of.others.setdefault(int(index), {})[message.sender] = digest
                    if len(of.others) > DISPUTES_MAX:
                        del of.others[next(iter(of.others))]
                    if self._count_digests(int(group), of, int(index)):
                        touched.add(int(group))
                continue
            # From the leader: a mark that is new, the end of a dispute of former terms, and the digest to compare with.
            if index > of.upto and (not of.marks or index > of.marks[-1][0]):
                of.marks.append((index, commit))
                touched.add(int(group))
            if of.distrusted is not None and of.distrusted[0] < term:
                of.dispute = of.distrusted = None
            if digest and of.distrusted is None:
                _keep_digest(of.theirs, index, (digest, int(term), message.sender))
                if index in of.ours:
                    self._compare(int(group), of, index)
        return sorted(touched)

    def release(self, partition: int) -> list[tuple[int, bytes]]:
        """Removes and returns what the partition may execute now."""
        of = self._partitions[partition]
        while of.marks and of.marks[0][1] <= of.known:
            of.upto = of.marks.popleft()[0]
        released = []
        while of.waiting and not of.diverged and (self.free or of.waiting[0][0] <= of.upto):
            released.append(of.waiting.popleft())
        return released

    @property
    def waits(self) -> bool:
        """Whether anything waits for the leader."""
        return any(of.waiting for of in self._partitions.values())

    def leader_commit(self, partition: int) -> int:
        """The last entry that the leader is known to have committed, whether it is here or not."""
        of = self._partitions[partition]
        return max(of.known, of.marks[-1][1] if of.marks else 0)

    def set_diverged(self, partition: int, index: int) -> None:
        """Nothing of the partition is executed here: it diverged before this start."""
        self._partitions[partition].diverged = index

    def find_contradictions(self, cores: Mapping[PartitionId, RaftCore]) -> None:
        """Looks for groups whose leader has not what is committed here. Nothing more of their partitions is executed; of no
        partition where it is the cluster's own group."""
        for group in cores.keys() - self._contradicted:
            if not (index := cores[group].contradicted):
                continue
            self._contradicted.add(group)
            for partition in self._partitions if group == CLUSTER_GROUP else [group]:
                self.set_diverged(partition, index)
                self._on_contradiction(partition, index)

    def divergences(self) -> dict[int, int]:
        """Partition -> index of the batch that was another computation on the leader."""
        return {partition: of.diverged for partition, of in self._partitions.items() if of.diverged}

    def _compare(self, partition: int, of: _Followed, index: int) -> None:
        ours, (theirs, term, leader) = of.ours.pop(index), of.theirs.pop(index)
        if differ(ours, theirs) and not of.diverged:
            of.diverged, of.accused = index, (term, leader)
            of.dispute = partition, term, index, index, ours
            self._rows.append(of.dispute)
            self._diverged(partition, index)
            self._count_digests(partition, of, index)

    def _count_digests(self, partition: int, of: _Followed, index: int) -> bool:
        """What the digests of the others say of this batch; whether this node may go on after all."""
        others = list(of.others.get(index, {}).values())
        if of.dispute is not None and of.diverged == index:
            if 1 + _same(of.dispute[-1], others) < self._majority:
                return False
            of.diverged, of.distrusted = 0, of.accused  # its row is said until another one leads: the accused must learn of it
            self._agreed(partition, index)
            return True
        ours = of.ours.get(index)
        if self.free and not of.diverged and ours is not None:
            against = max([_same(digest, others) for digest in others if differ(ours, digest)], default=0)
            if against >= self._majority:
                of.diverged = index
                self._diverged(partition, index)
        return False


def _same(digest: int, others: Iterable[int]) -> int:
    """How many of the others are of the same computation."""
    return sum([not differ(digest, other) for other in others])


def _keep_digest(digests: dict[int, T], index: int, digest: T) -> None:
    digests[index] = digest
    if len(digests) > KEPT_MAX:
        del digests[next(iter(digests))]
