"""What a merge gives out: a run of invocations as columns, and the batches that they stand in.

One rule: no work per invocation here but numpy's. Parameters, keys and procedures stay where they are, in the decoded batches;
a row says which batch and which place in it. `Chunk.invocations` is the convenient way, and costs what a loop costs.

This module and `replay.merge` alone import numpy: import them where a merge is asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from cmdlog.wal.batch import Batch
from cmdlog.wal.ids import PARTITION_BITS
from cmdlog.wal.record import Record

TICK: Final = 1 << PARTITION_BITS  # between two calls of a batch that has no column of TxnIds

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Uint16s = npt.NDArray[np.uint16]


class Invocation(NamedTuple):
    """One call. (partition, entry, position) is its place for ever; the TxnId of a call that enters every partition occurs in
    each of them."""

    txn_id: int
    partition: int
    entry: int  # its index
    position: int
    catalog: int
    procedure: int
    params: list[Any]
    key: bytes | None


@dataclass(frozen=True, slots=True)
class Control:
    """An entry without calls. It stands before the chunk's row `at`, and behind all rows of its partition in front of that."""

    at: int
    record: Record


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Consecutive invocations of the merged order. All columns have one row per invocation."""

    txn_ids: Int64s  # ascending; equal only for the parts of one call that enters several partitions, by partition then
    partitions: Uint16s
    batch_numbers: Int32s  # of `batches`
    positions: Int32s  # in the batch
    batches: Sequence[Batch]
    controls: Sequence[Control] = ()

    def __len__(self) -> int:
        return len(self.txn_ids)

    def procedures(self) -> Uint16s:
        """Procedure number of each row, in the catalog version of its batch."""
        if not self.batches:
            return np.empty(0, dtype=np.uint16)
        columns = [np.frombuffer(batch.procedures, dtype=np.uint16) for batch in self.batches]
        starts = np.cumsum([0] + [len(column) for column in columns[:-1]])
        found: Uint16s = np.concatenate(columns)[starts[self.batch_numbers] + self.positions]
        return found

    def invocations(self) -> Iterator[Invocation]:
        """One by one, parsed.

        Raises: BadRecord when the parameters of a batch are no array of that many lists.
        """
        params = [batch.params() for batch in self.batches]
        keys = [batch.key_list() for batch in self.batches]
        columns = (self.txn_ids, self.partitions, self.batch_numbers, self.positions, self.procedures())
        for txn_id, partition, number, position, procedure in zip(*(column.tolist() for column in columns), strict=True):
            batch, of = self.batches[number], keys[number]
            key = of[position] if of is not None else None
            entry = batch.record.index
            yield Invocation(txn_id, partition, entry, position, batch.catalog, procedure, params[number][position], key)


@dataclass(slots=True, eq=False)
class Piece:
    """Calls [lo, hi) of a batch, but for those at `skipped`."""

    batch: Batch
    lo: int
    hi: int
    txn_ids: Int64s | None  # of the whole batch; None when each is a tick after the one before
    skipped: Collection[int]


def column_of(batch: Batch) -> Int64s | None:
    """The batch's TxnIds, if `first_txn` and `count` do not say all."""
    return None if isinstance(batch.txn_ids, range) else np.array(batch.txn_ids, dtype=np.int64)


def make_chunk(pieces: Sequence[Piece], controls: Sequence[tuple[int, Record]]) -> Chunk:
    """Sorts the calls of these pieces, which ascend within a partition and come partition by partition.

    `controls` are (TxnId that they stand behind, record), in the order of their partitions and indexes.
    """
    batches = tuple(piece.batch for piece in pieces)
    lows = np.array([piece.lo for piece in pieces], dtype=np.int64)
    counts = np.array([piece.hi for piece in pieces], dtype=np.int64) - lows
    starts = np.cumsum(counts) - counts
    numbers = np.repeat(np.arange(len(pieces), dtype=np.int32), counts)
    positions = np.arange(len(numbers), dtype=np.int32) - np.repeat((starts - lows).astype(np.int32), counts)
    firsts = np.array([batch.first_txn for batch in batches], dtype=np.int64)
    txn_ids = firsts[numbers] + positions.astype(np.int64) * TICK
    for piece, start in zip(pieces, starts.tolist(), strict=True):
        if piece.txn_ids is not None:
            txn_ids[start : start + piece.hi - piece.lo] = piece.txn_ids[piece.lo : piece.hi]
    kept = _kept(pieces, starts, len(numbers))
    if kept is not None:
        txn_ids, numbers, positions = txn_ids[kept], numbers[kept], positions[kept]
    if batches and batches[0].record.partition != batches[-1].record.partition:
        order = np.argsort(txn_ids, kind="stable")
        txn_ids, numbers, positions = txn_ids[order], numbers[order], positions[order]
    partitions = np.array([batch.record.partition for batch in batches], dtype=np.uint16)[numbers]
    return Chunk(txn_ids, partitions, numbers, positions, batches, _placed(txn_ids, controls))


def _kept(pieces: Sequence[Piece], starts: Int64s, rows: int) -> npt.NDArray[np.bool_] | None:
    """Which rows are not taken out; None for all."""
    gone = [
        start + position - piece.lo
        for piece, start in zip(pieces, starts.tolist(), strict=True)
        for position in piece.skipped
        if piece.lo <= position < piece.hi
    ]
    if not gone:
        return None
    kept = np.ones(rows, dtype=np.bool_)
    kept[gone] = False
    return kept


def _placed(txn_ids: Int64s, controls: Sequence[tuple[int, Record]]) -> tuple[Control, ...]:
    if not controls:
        return ()
    ordered = sorted(controls, key=lambda control: control[0])  # stable: a partition's keep their order
    places = np.searchsorted(txn_ids, [behind for behind, _ in ordered], side="right").tolist()
    return tuple(Control(at, record) for at, (_, record) in zip(places, ordered, strict=True))
