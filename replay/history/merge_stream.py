"""The lanes of a merge: one per partition, with the entries that were read and not yet given out.

One rule: a lane's entries come in once each, in index order, void ones never; what is held is counted to the byte. A batch is
decoded when its calls are given out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from cmdlog.wal.format.batch import Batch, batch_span, decode_batch
from cmdlog.wal.format.control_record import schema_txn
from cmdlog.wal.format.record import BadRecord, Record, RecordKind, decode_commit_mark
from cmdlog.wal.group_state import GroupState
from cmdlog.wal.ids import Lsn
from cmdlog.wal.skips import Skips
from replay.log.log_fold import OPEN_END, Lowest, Place
from replay.log.scan import ScannedStream
from replay.log.split_calls import PartitionSpan

_BATCH: Final = RecordKind.BATCH
HELD_OVERHEAD_BYTES: Final = 400  # of a held record, in addition to its bytes: the objects around them

Held = tuple[Record, int, int, int]  # a batch that waits: its first and last TxnId, bytes


class Invocation(NamedTuple):
    """One call. (partition, entry, position) identifies it for ever; the TxnId of a call that enters every partition occurs in
    each of them."""

    txn_id: int
    partition: int
    entry: int  # its index
    position: int
    catalog: int
    procedure: int
    params: list[Any]
    key: bytes | None  # the call's name as `Batch.key_list` has it: 16 bytes of a key, 24 of session and number


@dataclass(frozen=True, slots=True)
class MergeStream:
    """A partition's entries in (after, upto] of a log; the rest comes from a first pass over it."""

    partition: int
    after: int
    upto: int
    skips: Mapping[int, Collection[int]] = field(default_factory=dict)  # index -> positions that are not run
    voids: Sequence[Place] = ()  # ascending: entries from the index on that come before the place are void
    untrue: Sequence[Place] = ()  # ascending: what marks before the place state is closed, is so up to the TxnId at most
    line: PartitionSpan = field(default_factory=PartitionSpan, compare=False)  # multi-partition calls in it

    @classmethod
    def of(cls, found: ScannedStream, partition: int, upto: int, *, skips: Skips | None = None) -> MergeStream:
        """What a pass over that log found of the partition. `skips` None: all that the log states."""
        skipped = found.skips if skips is None else skips
        line = found.line(upto)
        return cls(partition, found.counted_from, upto, skipped, tuple(found.voids), tuple(found.untrue), line)


class MergeLane:
    """One partition's stream while it is merged. Invariant: `held` ascends, and holds nothing that was given out."""

    __slots__ = (
        "_after", "_given", "_head_first", "_last_txn", "_untrue", "_upto", "_voids",
        "closed_txn", "ended", "held", "held_bytes", "next_index", "stream",
    )  # fmt: skip

    def __init__(self, stream: MergeStream) -> None:
        self.stream = stream
        self.held: deque[Held] = deque()
        self._given = self._head_first = 0  # of the first held batch, calls that were given out, and TxnId of the next one
        self.held_bytes = 0
        self._after, self._upto = stream.after, stream.upto
        self.next_index = stream.after + 1
        self.closed_txn = 0  # no later entry has a TxnId up to here
        self._last_txn = 0  # of the entries so far
        self.ended = stream.upto <= stream.after
        self._voids = Lowest(stream.voids) if stream.voids else None
        self._untrue = Lowest(stream.untrue) if stream.untrue else None

    @property
    def first_txn(self) -> int:
        """First TxnId of what is held; above every TxnId when nothing is."""
        if not self.held:
            return OPEN_END + 1
        return self._head_first if self._given else self.held[0][1]

    def add_record(self, lsn: Lsn, record: Record) -> None:
        """Takes the next record of the partition.

        Raises: BadRecord when it is not the entry that must come next, or not what its kind says.
        """
        # Four cases: a mark, an entry that is void or beyond the range, a batch, an entry without calls.
        kind, index = record.kind, record.index
        if kind >= 16:
            self._note_closed(lsn, record)
            return
        if index > self._upto or (self._voids is not None and index >= self._voids.next_after(lsn)):
            return
        wanted = index > self._after
        if wanted and index != self.next_index:
            raise BadRecord(f"entry {index} where {self.next_index} is expected")
        if kind is _BATCH:
            first, last, _ = batch_span(record)
            if not self._last_txn < first <= last <= OPEN_END:
                raise BadRecord(f"entry {index} has transactions {first} to {last}, which are not after {self._last_txn}")
            self._last_txn = last
            self.closed_txn = max(self.closed_txn, last)
            if wanted:
                size = len(record.raw) + HELD_OVERHEAD_BYTES
                self.held.append((record, first, last, size))
                self.held_bytes += size
        elif kind is RecordKind.SCHEMA:
            self._last_txn = max(self._last_txn, schema_txn(record))
            self.closed_txn = max(self.closed_txn, self._last_txn)
        if wanted:
            self.next_index = index + 1
            self.ended = index == self._upto

    def _note_closed(self, lsn: Lsn, record: Record) -> None:
        if record.kind is RecordKind.COMMIT_MARK:
            closed = decode_commit_mark(record)
        elif record.kind is RecordKind.CHECKPOINT:
            closed = GroupState.from_checkpoint(record).closed_txn
        else:
            return
        if self._untrue is not None:
            closed = min(closed, self._untrue.next_after(lsn))
        self.closed_txn = max(self.closed_txn, closed)

    def give_out(self, bound: int) -> Iterator[Invocation]:
        """The calls with a TxnId up to `bound`, without those that are skipped.

        Raises: BadRecord; then the first held batch is the bad one.
        """
        while self.first_txn <= bound:
            record, _, last, size = self.held[0]
            batch, low = decode_batch(record), self._given
            high = batch.count if last <= bound else bisect_right(batch.txn_ids, bound)
            calls = _invocations(batch, range(low, high), self.stream.skips.get(record.index, ()))
            if high < batch.count:  # the rest stays held
                self._given, self._head_first = high, batch.txn_ids[high]
            else:
                self._given = 0
                self.held_bytes -= size
                self.held.popleft()
            yield from calls


def _invocations(batch: Batch, positions: range, skipped: Collection[int]) -> list[Invocation]:
    record, names, params = batch.record, batch.key_list(), batch.params()
    partition, index, catalog, txn_ids, numbers = record.partition, record.index, batch.catalog, batch.txn_ids, batch.procedures
    return [
        Invocation(txn_ids[at], partition, index, at, catalog, numbers[at], params[at], names[at] if names is not None else None)
        for at in positions
        if at not in skipped
    ]
