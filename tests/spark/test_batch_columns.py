"""The columns of many batches are checked together as each batch is checked alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from cmdlog.wal.format.batch import FLAG_ZSTD, decode_batch
from cmdlog.wal.format.record import RECORD, BadRecord, Record, decode_record, peek_record
from cmdlog.wal.ids import PARTITION_BITS
from replay.spark.reading.batch_columns import check_batches, column_of
from tests.replay.streamkit import NAMES, Names, batch, ticks


@pytest.mark.parametrize("form", ["plain", "column", "packed", "keys", "session", "mixed", "wide", "ends"])
def test_batches_are_checked_as_one_by_one(form: str) -> None:
    """Whatever byte of header, columns or packed text is changed: many batches refuse together what `decode_batch` refuses."""
    ids = [t << PARTITION_BITS for t in (3, 5, 6)] if form == "column" else ticks(3, 3, 0)
    index = 7 if form == "wide" else 2  # numbers of a session in 8 bytes
    names: Names = "mixed" if form == "wide" else form if form in NAMES else "none"  # type: ignore[assignment]
    raw = batch(0, index, ids, names=names, filler=30, packed=form == "packed")
    good = decode_record(batch(0, 20, ticks(50, 3, 0), names="mixed"))
    refused = 0
    for at in range(RECORD.bytes, len(raw)):
        for flip in (1, 0x80, 0xFF):
            changed = bytearray(raw)
            changed[at] ^= flip
            record = peek_record(bytes(changed))
            why = _refusal(decode_batch, record) or ("63 bits" if changed[RECORD.bytes + 7] & 0x80 else None)
            together = _refusal(lambda one: _check([one, good]), record)
            assert (why is None) == (together is None), (at, flip, why, together)
            refused += why is not None
    assert refused > 50


def _refusal(check: Callable[[Record], object], record: Record) -> str | None:
    try:
        check(record)
    except BadRecord as bad:
        return str(bad)
    return None


def _check(records: Sequence[Record]) -> None:
    """As the rows of a task are made."""
    columns = check_batches(records)
    for record, flags in zip(records, columns.flags.tolist(), strict=True):
        column_of(record)
        if flags & FLAG_ZSTD:
            decode_batch(record)
