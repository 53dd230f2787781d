"""A first pass over a log for a merge: which entries are void, which calls are skipped, which marks promised too much.

One rule: it looks at every record up to the log's end, and keeps three numbers for each of those, two for each multi-partition
call, and nothing else. A recovery knows the first two from its plan (`replay.log.scan`); this look is for a reader that has only
the log.

A SKIP is an entry of its own. It comes before its batch's digest when the node that executed the batch wrote it, and after the
digest when another node's leader could not execute what this one could. What is *not* made void by any later record is either
below a commit mark or belongs to the end of the log, where the chosen log counts up to its given last index: so nothing in the
second pass has to wait for a mark to be sure of an entry.

Marks also say up to which TxnId a stream is closed, and that word is only as good as who gave it: a leader that was deposed
without knowing it promised for itself, while its successor's clock may have been slow. Where an entry of the log contradicts
what was stated before it, the entry is right.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from cmdlog.wal.format.batch import batch_span
from cmdlog.wal.format.record import Record, RecordKind, decode_commit_mark
from cmdlog.wal.group_state import GroupState
from cmdlog.wal.ids import Lsn
from replay.log.log_fold import Place, StreamFold
from replay.log.split_calls import PartitionSpan

_BATCH: Final = RecordKind.BATCH
_COMMIT_MARK: Final = RecordKind.COMMIT_MARK
_CHECKPOINT: Final = RecordKind.CHECKPOINT


@dataclass(slots=True, kw_only=True)
class Look(StreamFold):
    """The void and skipped parts of one partition's stream."""

    claimed_txn: int = 0  # the highest that was said to be closed, and that nothing has contradicted yet
    untrue: list[Place] = field(default_factory=list)  # of what was said before there, only that TxnId is closed
    start_txn: int = 0  # what lies before the first entry holds every call up to here

    def line(self, *, upto: int) -> PartitionSpan:
        """Its entries up to there, for `replay.log.split_calls`."""
        calls = {txn: call for txn, call in self.multi.items() if call.index <= upto}
        skips = self.skipped.by_batch(upto=upto) if calls else {}
        skipped = {call.index for call in calls.values() if call.index in skips}
        return PartitionSpan(self.start_txn, calls, skipped, set(self.ran), self.executed, self.term_table.upto(upto))

    def observe(self, lsn: Lsn, record: Record) -> None:
        """Takes the stream's next record."""
        self.fold(lsn, record)
        kind = record.kind
        if kind is _BATCH:
            self._note_batch(lsn, record)
        elif kind is _COMMIT_MARK:
            self.claimed_txn = max(self.claimed_txn, decode_commit_mark(record))
        elif kind is _CHECKPOINT:
            self._note_head(GroupState.from_checkpoint(record))

    def _note_batch(self, lsn: Lsn, record: Record) -> None:
        first_txn = batch_span(record)[0]
        if first_txn <= self.claimed_txn:
            self.claimed_txn = first_txn - 1
            self.untrue.append((int(lsn.block), lsn.offset, first_txn - 1))

    def _note_head(self, state: GroupState) -> None:
        if not self.last_index:
            self.start_txn = state.last_txn
        self.last_index = max(self.last_index, state.last_index)
        self.claimed_txn = max(self.claimed_txn, state.closed_txn)


def read_voids_and_skips(records: Iterable[tuple[Lsn, Record]], partitions: Collection[int]) -> dict[int, Look]:
    """Reads to the end.

    Raises: BadRecord when a SKIP or CHECKPOINT does not hold what its kind says; what `records` raises.
    """
    streams = {partition: Look() for partition in partitions}
    for lsn, record in records:
        stream = streams.get(record.partition)
        if stream is not None:
            stream.observe(lsn, record)
    return streams
