"""The first pass over a log: what is void, and what takes calls out."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from cmdlog.wal.format.batch import encode_batch
from cmdlog.wal.format.record import Record, RecordKind, decode_record, encode_json
from cmdlog.wal.ids import BlockNumber, Lsn, make_txn_id
from replay.log.scan import scan


def batch(index: int, *, term: int, calls: int = 2) -> Record:
    """A batch of partition 0."""
    txn_ids = [make_txn_id(millis=1000 * index + n, counter=0, partition=0) for n in range(calls)]
    params, procedures = [b"[]"] * calls, [0] * calls
    return decode_record(
        encode_batch(partition=0, term=term, index=index, catalog=1, txn_ids=txn_ids, procedures=procedures, params=params)
    )


def skip(index: int, *, term: int, of: int, position: int) -> Record:
    """The entry that takes one call of the batch `of` out."""
    return decode_record(encode_json(RecordKind.SKIP, {"index": of, "position": position}, partition=0, term=term, index=index))


def source(*records: Record) -> Any:
    """A log of these records, one in each block."""

    def read(*, from_block: int) -> Iterator[tuple[Lsn, Record]]:
        for number, record in enumerate(records, start=from_block):
            yield Lsn(BlockNumber(number), 0), record

    return SimpleNamespace(read_with_gaps=read, last_block=len(records), txn_id_max=0)


def test_skip_in_a_void_suffix_takes_nothing_out() -> None:
    """A later leader replaced the SKIP; the batch that it spoke of stays, and every call of it ran."""
    log = source(batch(1, term=1), skip(2, term=1, of=1, position=0), batch(2, term=2))
    assert scan(log, {0: 0}, {}, from_block=1).streams[0].skips == {}
    log = source(batch(1, term=1), skip(2, term=1, of=1, position=0), batch(3, term=2))
    assert scan(log, {0: 0}, {}, from_block=1).streams[0].skips == {1: (0,)}
