"""What a merge returns: a run of invocations as columns, and the batches that contain them.

One rule: no work per invocation but numpy's. Parameters, keys and procedures stay where they are, in the batches; a row says
which batch and which place in it. `Chunk.invocations` is the convenient way, and costs what a loop costs.

Batches are checked here as `decode_batch` checks them, all of a chunk at once: a `Batch` is made only on request.

This module and `replay.history.merge` alone import numpy: import them where a merge is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from cmdlog.wal.format.batch import (
    BATCH,
    CALLS_MAX,
    FLAG_KEYS,
    FLAG_SENT,
    FLAG_SENT_COLUMN,
    FLAG_SESSIONS,
    FLAG_TXN_COLUMN,
    FLAG_ZSTD,
    FLAGS_KNOWN,
    Batch,
    decode_batch,
    deltas_begin,
)
from cmdlog.wal.format.record import RECORD, RECORD_BYTES_MAX, BadRecord, Record
from cmdlog.wal.ids import PARTITION_BITS
from replay.history.batch_sessions import BatchSessions

TICK: Final = 1 << PARTITION_BITS  # between two calls of a batch that has no column of TxnIds
_HEADER_AT: Final = RECORD.bytes
_COLUMNS_AT: Final = RECORD.bytes + BATCH.bytes
_HEADER: Final = np.dtype(
    {
        "names": [field.name for field in BATCH.fields],
        "formats": ["<u8", "<u4", "<u4", "<u2", "S2", "<u4", "<u4", "<u4"],
        "offsets": [field.offset for field in BATCH.fields],
        "itemsize": BATCH.bytes,
    }
)

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Uint16s = npt.NDArray[np.uint16]


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
class Control:
    """An entry without calls. It comes before the chunk's row `at`, and after all earlier rows of its partition."""

    at: int
    record: Record


class BadBatch(BadRecord):
    """A batch whose columns are not what its header says."""

    def __init__(self, record: Record) -> None:
        self.record = record
        try:
            decode_batch(record)
            why = "batch columns"
        except BadRecord as bad:
            why = str(bad)
        super().__init__(f"entry {record.index}: {why}")


class Batches(Sequence[Batch]):
    """The batches of a chunk, decoded on first access, and then kept."""

    __slots__ = ("_made", "records")

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        self._made: dict[int, Batch] = {}

    def __len__(self) -> int:
        return len(self.records)

    @overload
    def __getitem__(self, at: int) -> Batch: ...
    @overload
    def __getitem__(self, at: slice) -> list[Batch]: ...
    def __getitem__(self, at: int | slice) -> Batch | list[Batch]:
        if isinstance(at, slice):
            return [self[number] for number in range(*at.indices(len(self)))]
        made = self._made.get(at)
        if made is None:
            made = self._made[at] = decode_batch(self.records[at])
        return made


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Consecutive invocations of the merged order. All columns have one row per invocation."""

    txn_ids: Int64s  # ascending; equal only for the parts of one call that enters several partitions, by partition then
    partitions: Uint16s
    batch_numbers: Int32s  # of `batches`
    positions: Int32s  # in the batch
    batches: Batches
    controls: Sequence[Control]
    _columns: Columns

    def __len__(self) -> int:
        return len(self.txn_ids)

    def procedures(self) -> Uint16s:
        """Procedure number of each row, in the catalog version of its batch."""
        if not self.batches:
            return np.empty(0, dtype=np.uint16)
        found: Uint16s = self._columns.words[self._columns.procedures_at[self.batch_numbers] + self.positions]
        return found

    def invocations(self) -> Iterator[Invocation]:
        """One by one, parsed.

        Raises: BadRecord when the parameters of a batch are not an array of that many lists.
        """
        params = [batch.params() for batch in self.batches]
        keys = [batch.key_list() for batch in self.batches]
        columns = (self.txn_ids, self.partitions, self.batch_numbers, self.positions, self.procedures())
        for txn_id, partition, number, position, procedure in zip(*(column.tolist() for column in columns), strict=True):
            batch, of = self.batches[number], keys[number]
            key = of[position] if of is not None else None
            yield Invocation(
                txn_id, partition, batch.record.index, position, batch.catalog, procedure, params[number][position], key
            )


@dataclass(slots=True, eq=False)
class Gathered:
    """Batches that a chunk is made of. They ascend within a partition, and come partition by partition."""

    records: list[Record] = field(default_factory=list)
    parts: list[tuple[int, int, int]] = field(default_factory=list)  # (batch number, low, high): only calls [low, high) of it
    gone: list[tuple[int, int]] = field(default_factory=list)  # (batch number, position) of calls that were skipped
    controls: list[tuple[int, Record]] = field(default_factory=list)  # (TxnId that it comes after, record)


def column_of(record: Record) -> Int64s | None:
    """The TxnIds of a batch that has a column of them. Raises: BadBatch when they do not ascend."""
    first, count, _, flags, *_ = BATCH.unpack_from(record.raw, _HEADER_AT)
    if not flags & FLAG_TXN_COLUMN:
        return None
    deltas = np.frombuffer(record.raw, np.uint32, count, deltas_begin(record.raw, flags, count))
    if deltas[0] or (deltas[1:] <= deltas[:-1]).any():
        raise BadBatch(record)
    column: Int64s = first + (deltas.astype(np.int64) << PARTITION_BITS)
    return column


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """What the headers of some batches say, checked; one value per batch."""

    firsts: Int64s  # TxnId of the first call
    counts: Int64s
    flags: Uint16s
    procedures_at: Int64s  # of its first call, in `words`
    words: Uint16s  # the columns of offsets and procedures of all batches, consecutive
    sessions: BatchSessions | None  # None: no batch has any


def check_batches(records: Sequence[Record]) -> Columns:
    """Checks what `decode_batch` checks, but for texts that are compressed and for columns of TxnIds; that ids have 63 bits, too.

    Raises: BadBatch.
    """
    raws = [record.raw for record in records]
    lengths = np.array([len(raw) for raw in raws], dtype=np.int64)
    if raws and lengths.min() < _COLUMNS_AT:
        raise BadBatch(records[int(lengths.argmin())])
    heads = np.frombuffer(b"".join([raw[_HEADER_AT:_COLUMNS_AT] for raw in raws]), _HEADER)
    flags, counts, text_bytes = heads["flags"], heads["count"].astype(np.int64), heads["json_bytes"].astype(np.int64)
    good = (counts > 0) & (counts <= CALLS_MAX) & (text_bytes <= RECORD_BYTES_MAX) & (heads["first_txn"] < 1 << 63)
    good &= (flags <= FLAGS_KNOWN) & (flags & (FLAG_SENT | FLAG_SENT_COLUMN) != FLAG_SENT_COLUMN) & (heads["reserved"] == b"")
    begin = _COLUMNS_AT + counts * (16 * ((flags & FLAG_KEYS) != 0) + 8 * ((flags & FLAG_SENT_COLUMN) != 0))
    sessions = None
    if (flags & FLAG_SESSIONS).any():
        sessions = BatchSessions(raws, begin, counts, (flags & FLAG_SESSIONS) != 0)
        begin = begin + sessions.sizes
        good &= sessions.fits
    begin = begin + 4 * counts * ((flags & FLAG_TXN_COLUMN) != 0)
    end = begin + 6 * counts + 4  # one offset more than calls, 4 bytes each; a procedure number of 2 bytes per call
    good &= end + heads["stored_bytes"].astype(np.int64) + heads["places_bytes"] == lengths
    good &= ((flags & FLAG_ZSTD) != 0) | (heads["stored_bytes"] == text_bytes)
    if not good.all():
        raise BadBatch(records[int(good.argmin())])
    parts = [raw[low:high] for raw, low, high in zip(raws, begin.tolist(), end.tolist(), strict=True)]
    words = np.frombuffer(b"".join(parts), np.uint16)
    at = np.cumsum(3 * counts + 2) - (3 * counts + 2)
    good = (_offset(words, at) == 1) & (_offset(words, at + 2 * counts) == text_bytes)
    if not good.all():
        raise BadBatch(records[int(good.argmin())])
    if sessions is not None and (bad := sessions.first_bad()) is not None:
        raise BadBatch(records[bad])
    return Columns(heads["first_txn"].astype(np.int64), counts, flags, at + 2 * counts + 2, words, sessions)


def _offset(words: Uint16s, at: Int64s) -> Int64s:
    found: Int64s = words[at] + (words[at + 1].astype(np.int64) << 16)
    return found


def make_chunk(gathered: Gathered) -> Chunk:
    """Checks and sorts. Every step is one numpy call over all batches, or over all calls. Raises: BadBatch."""
    records, columns = gathered.records, check_batches(gathered.records)
    lows, highs = np.zeros(len(records), dtype=np.int64), columns.counts.copy()
    for number, low, high in gathered.parts:
        lows[number], highs[number] = low, high
    counts = highs - lows
    zeros = np.cumsum(counts) - highs  # the row of a batch's first call, even if that is skipped
    rows = int(counts.sum())
    numbers = np.repeat(np.arange(len(records), dtype=np.int32), counts)
    txn_ids = np.repeat(columns.firsts - zeros * TICK, counts) + np.arange(0, rows * TICK, TICK, dtype=np.int64)
    for number in np.flatnonzero(columns.flags & FLAG_TXN_COLUMN).tolist():
        low, high, zero, column = int(lows[number]), int(highs[number]), int(zeros[number]), column_of(records[number])
        assert column is not None
        txn_ids[zero + low : zero + high] = column[low:high]
    order = _order(gathered, txn_ids, zeros)
    txn_ids, numbers = txn_ids[order], numbers[order]
    positions = (order - zeros[numbers]).astype(np.int32)
    partitions = np.array([record.partition for record in records], dtype=np.uint16)[numbers]
    batches, controls = _decoded(records, columns), _placed(txn_ids, gathered.controls)
    return Chunk(txn_ids, partitions, numbers, positions, batches, controls, columns)


def _decoded(records: Sequence[Record], columns: Columns) -> Batches:
    """Those whose text is compressed at once: whether it is one shows only then. Raises: BadBatch."""
    batches = Batches(records)
    for number in np.flatnonzero(columns.flags & FLAG_ZSTD).tolist():
        try:
            _ = batches[number]
        except BadRecord as bad:
            raise BadBatch(records[number]) from bad
    return batches


def _order(gathered: Gathered, txn_ids: Int64s, zeros: Int64s) -> Int64s:
    """Rows in the order of their TxnIds, without those that were skipped.

    The sort must be stable: the parts of one call that enters several partitions share its TxnId. It also meets runs that ascend,
    which such a sort only has to interleave.
    """
    order: Int64s = np.argsort(txn_ids, kind="stable")
    if not gathered.gone:
        return order
    kept = np.ones(len(txn_ids), dtype=np.bool_)
    kept[[int(zeros[number]) + position for number, position in gathered.gone]] = False
    return order[kept[order]]


def _placed(txn_ids: Int64s, controls: Sequence[tuple[int, Record]]) -> tuple[Control, ...]:
    if not controls:
        return ()
    ordered = sorted(controls, key=lambda control: control[0])  # stable: a partition's keep their order
    places = np.searchsorted(txn_ids, [behind for behind, _ in ordered], side="right").tolist()
    return tuple(Control(at, record) for at, (_, record) in zip(places, ordered, strict=True))
