"""Executed marks: a follower executes nothing that its leader has not executed, and compares what both did.

One rule: only a leader decides that a call cannot be run (SKIP), and it decides before the call is executed anywhere. So a
follower runs an entry when the leader says that it did, and knows by then every entry that the leader knew committed: the SKIP
among them.

The leader sends a row per batch: group, its term, index, what was committed, and a digest of what the batch did. Rows may be
lost; the newest of every group is sent again. A batch whose digest differs on the two nodes was not the same computation: the
follower stops to apply that partition, and says which batch it was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import google_crc32c
import structlog

from cmdlog.raft.configuration import NodeId
from cmdlog.raft.messages import NO_TERM, Executed
from cmdlog.raft.multi_raft import GroupId, Parcel
from cmdlog.raft.wire.layout import NO_GROUP

ROWS_MAX: Final = 512  # of one message
KEPT_MAX: Final = 4096  # digests of a partition that wait for the other node's
REPEAT_TICKS: Final = 5  # until the newest mark of every group is sent again

log = structlog.get_logger("cmdlog.cluster")

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
    theirs: dict[int, int] = field(default_factory=dict)
    diverged: int = 0  # index of the batch; 0: none


class ExecutedMarks:
    """Under the driver's lock."""

    def __init__(self, partitions: Iterable[int], *, diverged: Callable[[int, int], None]) -> None:
        """`diverged` gets partition and index of a batch that was another computation on the leader."""
        self._partitions = {partition: _Followed() for partition in partitions}
        self._diverged = diverged
        self._rows: list[Row] = []  # of this node as the leader, to be sent
        self._newest: dict[int, Row] = {}
        self._ticks = 0
        self.free = False  # this node leads: it executes what is committed

    # -- the leader ------------------------------------------------------------------------------------------------------

    def lead(self) -> None:
        """This node leads: nothing waits for another one's marks."""
        self.free = True

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
            self._compare(partition, of, index)

    def due(self, node: NodeId, peers: Callable[[], Iterable[NodeId]]) -> list[Parcel]:
        """What is sent with this tick."""
        self._ticks += 1
        rows, self._rows = self._rows, []
        if self._ticks % REPEAT_TICKS == 0:
            rows += [row for row in self._newest.values() if row not in rows[-len(self._newest) :]]
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
        """What a leader says; rows of a node that does not lead the group in that term mean nothing. Partitions with news."""
        touched = set()
        for group, term, index, commit, digest in zip(
            message.groups, message.terms, message.indexes, message.commits, message.digests, strict=True
        ):
            of = self._partitions.get(group)
            if of is None or leaders.get(group) != (term, message.sender):
                continue
            if index > of.upto and (not of.marks or index > of.marks[-1][0]):
                of.marks.append((index, commit))
                touched.add(int(group))
            if digest:
                _keep_digest(of.theirs, index, digest)
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

    def divergences(self) -> dict[int, int]:
        """Partition -> index of the batch that was another computation on the leader."""
        return {partition: of.diverged for partition, of in self._partitions.items() if of.diverged}

    def _compare(self, partition: int, of: _Followed, index: int) -> None:
        if index not in of.ours or index not in of.theirs:
            return
        if differ(of.ours.pop(index), of.theirs.pop(index)) and not of.diverged:
            of.diverged = index
            self._diverged(partition, index)


def _keep_digest(digests: dict[int, int], index: int, digest: int) -> None:
    digests[index] = digest
    if len(digests) > KEPT_MAX:
        del digests[next(iter(digests))]
