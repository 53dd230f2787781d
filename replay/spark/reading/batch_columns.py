"""The columns of many batches at once: headers, procedures and sessions, checked as `decode_batch` checks those of one.

One rule: no work per invocation but numpy's. Parameters and keys stay where they are, in the records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from cmdlog.wal.format.batch import (
    BATCH,
    CALLS_MAX,
    FLAG_KEYS,
    FLAG_REQUESTS,
    FLAG_SESSIONS,
    FLAG_TXN_COLUMN,
    FLAG_ZSTD,
    FLAGS_KNOWN,
    decode_batch,
    deltas_begin,
)
from cmdlog.wal.format.record import RECORD, RECORD_BYTES_MAX, BadRecord, Record
from cmdlog.wal.ids import PARTITION_BITS
from replay.spark.reading.batch_sessions import BatchSessions

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
Uint16s = npt.NDArray[np.uint16]


class BadBatch(BadRecord):
    """A batch whose columns differ from its header."""

    def __init__(self, record: Record) -> None:
        self.record = record
        try:
            decode_batch(record)
            why = "batch columns"
        except BadRecord as bad:
            why = str(bad)
        super().__init__(f"entry {record.index}: {why}")


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
    """The headers of some batches, checked; one value per batch."""

    firsts: Int64s  # TxnId of the first call
    counts: Int64s
    flags: Uint16s
    sessions: BatchSessions | None  # None: no batch has any


def check_batches(records: Sequence[Record]) -> Columns:
    """Checks what `decode_batch` checks, except compressed texts and columns of TxnIds, and also that ids have 63 bits.

    Raises: BadBatch.
    """
    raws = [record.raw for record in records]
    lengths = np.array([len(raw) for raw in raws], dtype=np.int64)
    if raws and lengths.min() < _COLUMNS_AT:
        raise BadBatch(records[int(lengths.argmin())])
    heads = np.frombuffer(b"".join([raw[_HEADER_AT:_COLUMNS_AT] for raw in raws]), _HEADER)
    flags, counts, text_bytes = heads["flags"], heads["count"].astype(np.int64), heads["json_bytes"].astype(np.int64)
    good = (counts > 0) & (counts <= CALLS_MAX) & (text_bytes <= RECORD_BYTES_MAX) & (heads["first_txn"] < 1 << 63)
    good &= (flags <= FLAGS_KNOWN) & (heads["reserved"] == b"")
    begin = _COLUMNS_AT + counts * (16 * ((flags & FLAG_KEYS) != 0) + 8 * ((flags & FLAG_REQUESTS) != 0))
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
    return Columns(heads["first_txn"].astype(np.int64), counts, flags, sessions)


def _offset(words: Uint16s, at: Int64s) -> Int64s:
    found: Int64s = words[at] + (words[at + 1].astype(np.int64) << 16)
    return found
