"""The fold over a log's records: where each partition's stream ends, what is void in it, and which calls are skipped.

One rule: it follows from the records alone, in log order, and every pass over a log keeps these facts this way. A pass gives each
record to `StreamFold.fold` and then takes what else it looks for; what it keeps per record is its own affair.

None of it can be known on the way through a log. A void suffix is known to be void only where its replacement lies, and a SKIP
may lie anywhere after the batch that it concerns. So entries are applied or listed in a second pass.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from cmdlog.wal.format.batch import multi_txn, places_of
from cmdlog.wal.format.call_places import CallPlaces, TermTable
from cmdlog.wal.format.control_record import Skip
from cmdlog.wal.format.record import Record, RecordKind
from cmdlog.wal.group_state import GroupState
from cmdlog.wal.ids import BlockNumber, Lsn
from cmdlog.wal.skips import SkipSet

_BATCH: Final = RecordKind.BATCH
_CHECKPOINT: Final = RecordKind.CHECKPOINT
_SKIP: Final = RecordKind.SKIP  # looked up once: in Python 3.11 that costs more than the comparison
_DIGEST: Final = RecordKind.DIGEST
_TRUNCATION: Final = RecordKind.TRUNCATION

OPEN_END: Final = (1 << 63) - 1  # above every TxnId
Place = tuple[int, int, int]  # (block, offset, number): what a record there says about those before it


class Lowest:
    """The lowest of the numbers at later places of a log."""

    def __init__(self, places: Sequence[Place]) -> None:
        self._places = [Lsn(BlockNumber(block), offset) for block, offset, _ in places]
        self._lowest = list(accumulate((number for _, _, number in reversed(places)), min))[::-1]

    def next_after(self, lsn: Lsn) -> int:
        """OPEN_END when there is none."""
        at = bisect_right(self._places, lsn)
        return self._lowest[at] if at < len(self._lowest) else OPEN_END


def is_void(voids: Iterable[Place], lsn: Lsn, index: int) -> bool:
    """Whether a later record of the log made this entry void."""
    return any(index >= first and lsn < (block, offset) for block, offset, first in voids)


@dataclass(frozen=True, slots=True)
class MultiCall:
    """A multi-partition call's entry in one stream."""

    index: int
    places: CallPlaces  # () of nodes that vote alone


@dataclass(slots=True, kw_only=True)
class StreamFold:
    """One partition's stream, as far as its records have got.

    Invariant: `skipped`, `multi`, `term_table` and `ran` hold nothing of a void entry.
    """

    last_index: int = 0
    executed: int = 0  # the last batch whose digest was met: the live run had executed it, so no skip of it can follow
    voids: list[Place] = field(default_factory=list)  # entries from that index on, before there, are void
    skipped: SkipSet = field(default_factory=SkipSet)
    multi: dict[int, MultiCall] = field(default_factory=dict)  # by TxnId
    ran: set[int] = field(default_factory=set)  # TxnIds of those that have a digest: they had an outcome here
    term_table: TermTable = field(default_factory=TermTable)
    _multi_at: dict[int, int] = field(default_factory=dict)  # index -> TxnId

    def fold(self, lsn: Lsn, record: Record) -> int:
        """Takes the stream's next record. Returns the index from which on it makes the entries before it void, 0 for none.

        Raises: BadRecord when a payload is not what its kind says.
        """
        # An entry at or before the last index replaces what was there from it on. Kinds from 16 on are notes of this node.
        kind, voided = record.kind, 0
        if kind < 16:
            if record.index <= self.last_index:
                voided = self._cut(lsn, record.index)
            self.last_index = record.index
            self.term_table.add(record.index, record.term)
            if kind is _BATCH:
                if txn := multi_txn(record):
                    self.multi[txn] = MultiCall(record.index, places_of(record))
                    self._multi_at[record.index] = txn
            elif kind is _SKIP:
                self.skipped.add(Skip.from_record(record))
        elif kind is _DIGEST:
            self.executed = max(self.executed, record.index)
            if txn := self._multi_at.get(record.index, 0):
                self.ran.add(txn)
        elif kind is _TRUNCATION:
            voided = self._cut(lsn, record.index)
        elif kind is _CHECKPOINT and not self.term_table.rows:
            self.term_table = GroupState.from_checkpoint(record).terms
        return voided

    def forget_before(self) -> None:
        """What precedes the next record is lost: nothing is known of calls and terms there."""
        self.multi, self.ran, self.term_table, self._multi_at = {}, set(), TermTable(), {}

    def _cut(self, lsn: Lsn, index: int) -> int:
        self.voids.append((int(lsn.block), lsn.offset, index))
        self.last_index, self.executed = index - 1, min(self.executed, index - 1)
        self.skipped.cut(index)
        self.term_table.cut(index)
        if self._multi_at and max(self._multi_at) >= index:
            self._multi_at = {at: txn for at, txn in self._multi_at.items() if at < index}
            self.multi = {txn: self.multi[txn] for txn in self._multi_at.values()}
            self.ran &= self.multi.keys()
        return index
