"""What is to be written for the rounds of consensus, and the blocks of the log that have it.

One rule: plain data of the driver (`cmdlog.cluster.replication`), under its lock.

Commit marks state what every group has committed, as notes of the log. A mark states what was handed out to be run, and closes no
transaction id beyond the last one in there, since a leader does not know what another leader's clock has promised. They cost no
block of their own while entries bring blocks; an idle node gets one, so that a reader of its directory alone sees how far it is.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from cmdlog.cluster.entry_records import records_of
from cmdlog.raft.messages import KIND_CONFIGURATION, Entries
from cmdlog.raft.multi_raft import Round
from cmdlog.wal.format.batch import batch_last_txn
from cmdlog.wal.format.block import RECORD_ALIGN
from cmdlog.wal.format.record import RecordKind, encode_commit_mark, encode_json, peek_record

IDLE_TICKS: Final = 3  # without a block, until marks get one
_BATCH: Final = int(RecordKind.BATCH)


@dataclass(slots=True)
class _Mark:
    index: int = 0
    term: int = 0
    closed_txn: int = 0
    written: int = 0  # index that the last mark in the log states


class CommitMarks:
    """Under the driver's lock."""

    def __init__(self) -> None:
        self._marks: dict[int, _Mark] = {}
        self._idle_ticks = 0
        self._new: dict[int, int] = {}

    def take_new(self) -> dict[int, int]:
        """What the marks say that were made since this was called last: group -> index."""
        new, self._new = self._new, {}
        return new

    def committed(self, group: int, entries: Entries) -> None:
        """These entries are handed out."""
        mark = self._marks.setdefault(group, _Mark())
        mark.index, mark.term = entries.last, entries.terms[-1]
        for payload in reversed(entries.payloads):
            if payload[4:5] == bytes([_BATCH]):
                mark.closed_txn = max(mark.closed_txn, batch_last_txn(peek_record(payload)))
                break

    @property
    def last_txn(self) -> int:
        """The highest transaction id that was handed out."""
        return max((mark.closed_txn for mark in self._marks.values()), default=0)

    def due(self, group: int) -> list[bytes]:
        """The mark of a group that has a block anyway; [] when the last one says as much."""
        self._idle_ticks = 0
        mark = self._marks.get(group)
        if mark is None or mark.written >= mark.index:
            return []
        mark.written = self._new[group] = mark.index
        return [encode_commit_mark(partition=group, term=mark.term, commit=mark.index, closed_txn=mark.closed_txn)]

    def idle(self) -> list[bytes]:
        """A tick has passed without anything to write: the marks that are missing in the log, once it was long enough."""
        self._idle_ticks += 1
        if self._idle_ticks < IDLE_TICKS or all(mark.written >= mark.index for mark in self._marks.values()):
            return []
        return [record for group in sorted(self._marks) for record in self.due(group)]


@dataclass(slots=True)
class WaitingRound:
    """What is to be written for one round, and what follows when it is durable."""

    number: int  # of the newest round that is durable with it
    records: deque[bytes]
    from_machine: bool = False  # it has what the machine gave: it is reported to it
    marks: dict[int, int] = field(default_factory=dict)  # group -> commit that its marks state


@dataclass(slots=True)
class BlockOfRounds:
    """A block that the log has taken."""

    rounds: list[WaitingRound] = field(default_factory=list)  # whose last record is in it
    records: list[bytes] = field(default_factory=list)  # until it is written


def taken_places(round_: Round) -> dict[int, int]:
    """Groups that got configurations in this round: where their next entry goes. Consensus placed them, not the machine."""
    written = ((record.group, record.entries) for record in round_.records)
    return {group: of.last + 1 for group, of in written if of is not None and KIND_CONFIGURATION in of.kinds}


def size_on_disk(record: bytes) -> int:
    return len(record) + RECORD_ALIGN


def records_of_round(round_: Round, votes: dict[int, tuple[int, int | None]], marks: CommitMarks) -> list[bytes]:
    """Hard states of all groups, then their entries, then commit marks: a block's order. `votes`: group -> term and vote that
    were written last."""
    heads: list[bytes] = []
    entries: list[bytes] = []
    due: list[bytes] = []
    for record in round_.records:
        hard = record.hard_state
        if hard is not None and votes.get(record.group) != (hard.term, hard.vote):
            votes[record.group] = hard.term, hard.vote
            value = {"vote": hard.vote}
            heads.append(encode_json(RecordKind.HARD_STATE, value, partition=record.group, term=hard.term, index=0))
        if record.entries is not None:
            entries += records_of(record.group, record.entries)
        due += marks.due(record.group)
    return heads + entries + due
