"""What is to be written for the rounds of consensus, and the blocks of the log that have it.

One rule: plain data of the driver (`cmdlog.cluster.replication`), under its lock.

Commit marks state what every group has committed, as notes of the log. A mark states what was handed out to be run, and closes no
transaction id beyond the last one in there, since a leader does not know what another leader's clock has promised. They cost no
block of their own while entries bring blocks, and a busy group gets one every `MARK_TICKS`: a restart hears from its leader what
it lacks. An idle node gets a block of them, so that a reader of its directory alone sees how far it is.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from cmdlog.cluster.entry_records import records_of
from cmdlog.raft.messages import Entries
from cmdlog.raft.multi_raft import Round
from cmdlog.wal.format.batch import batch_last_txn
from cmdlog.wal.format.block import RECORD_ALIGN
from cmdlog.wal.format.record import KIND_OFFSET, RecordKind, encode_commit_mark, encode_json, peek_record

IDLE_TICKS: Final = 3  # without a block, until marks get one
MARK_TICKS: Final = 3  # between two marks of a group whose entries bring blocks
_BATCH: Final = bytes([RecordKind.BATCH])
_KIND: Final = slice(KIND_OFFSET, KIND_OFFSET + 1)


@dataclass(slots=True)
class _Mark:
    index: int = 0
    term: int = 0
    batch: bytes = b""  # the last one handed out
    written: int = 0  # index that the last mark in the log states
    written_at: int = -MARK_TICKS  # the tick in which it was made

    def closed_txn(self) -> int:
        """The highest transaction id that was handed out; 0: none."""
        return batch_last_txn(peek_record(self.batch)) if self.batch else 0


class CommitMarks:
    """Under the driver's lock."""

    def __init__(self) -> None:
        self._marks: dict[int, _Mark] = {}
        self._ticks = self._idle_ticks = 0
        self.new: dict[int, int] = {}  # what the marks say that no round has taken yet: group -> index

    def committed(self, group: int, entries: Entries) -> None:
        """These entries are handed out."""
        mark = self._marks.get(group)
        if mark is None:
            mark = self._marks[group] = _Mark()
        last = entries.first + len(entries.terms) - 1
        for payload in reversed(entries.payloads):
            if payload[_KIND] == _BATCH:
                mark.batch = payload if last >= mark.index else mark.batch  # after a restart they come again
                break
        mark.index, mark.term = last, entries.terms[-1]

    @property
    def last_txn(self) -> int:
        """The highest transaction id that was handed out."""
        return max((mark.closed_txn() for mark in self._marks.values()), default=0)

    def due(self, group: int) -> list[bytes]:
        """The mark of a group that has a block anyway; [] when the last one says as much, or is not old enough."""
        self._idle_ticks = 0
        mark = self._marks.get(group)
        if mark is None or mark.written >= mark.index or self._ticks - mark.written_at < MARK_TICKS:
            return []
        return [self._write(group, mark)]

    def pass_tick(self, *, idle: bool) -> list[bytes]:
        """A tick has passed; the marks that are missing in the log, once it was `idle` for long enough: nothing is to be
        written."""
        self._ticks += 1
        self._idle_ticks += idle
        if not idle or self._idle_ticks < IDLE_TICKS:
            return []
        return [self._write(group, mark) for group, mark in sorted(self._marks.items()) if mark.written < mark.index]

    def _write(self, group: int, mark: _Mark) -> bytes:
        mark.written = self.new[group] = mark.index
        mark.written_at = self._ticks
        return encode_commit_mark(partition=group, term=mark.term, commit=mark.index, closed_txn=mark.closed_txn())


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


class RoundQueue:
    """Rounds that the log has not wholly taken."""

    def __init__(self) -> None:
        self.rounds: deque[WaitingRound] = deque()
        self.bytes = 0  # of their records, on disk

    def add(self, waiting: WaitingRound) -> None:
        """The newest round."""
        self.bytes += sum(map(len, waiting.records)) + RECORD_ALIGN * len(waiting.records)
        self.rounds.append(waiting)

    def take_block(self, bytes_max: int) -> BlockOfRounds:
        """The next records that fit, at least one where there is one; with the rounds that end with them."""
        block, left = BlockOfRounds(), bytes_max
        while self.rounds:
            records = self.rounds[0].records
            while records and (len(records[0]) + RECORD_ALIGN <= left or not block.records):
                block.records.append(records.popleft())
                left -= len(block.records[-1]) + RECORD_ALIGN
            if records:
                break
            block.rounds.append(self.rounds.popleft())
        self.bytes -= bytes_max - left
        return block


def size_on_disk(record: bytes) -> int:
    return len(record) + RECORD_ALIGN


def records_of_round(round_: Round, votes: dict[int, tuple[int, int | None]], marks: CommitMarks) -> list[bytes]:
    """Hard states of all groups, then their entries, then commit marks: a block's order. `votes`: group -> term and vote that
    were written last."""
    heads: list[bytes] = []
    entries: list[bytes] = []
    due: list[bytes] = []
    for group, _, ready in round_.taken:
        if ready.completion is None:
            continue
        hard = ready.hard_state
        if hard is not None and votes.get(group) != (hard.term, hard.vote):
            votes[group] = hard.term, hard.vote
            value = {"vote": hard.vote}
            heads.append(encode_json(RecordKind.HARD_STATE, value, partition=group, term=hard.term, index=0))
        if ready.entries is not None:
            entries += records_of(group, ready.entries)
        due += marks.due(group)
    return heads + entries + due
