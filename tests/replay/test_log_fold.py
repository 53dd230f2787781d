"""The fold over a log: ends, void entries, skips, gaps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

from cmdlog.wal.format.control_record import Skip
from cmdlog.wal.format.record import Record, RecordKind, decode_record, encode_digest, encode_json
from cmdlog.wal.ids import BlockNumber, Lsn
from replay.log.log_fold import StreamFold, is_void
from replay.log.source import LogSource


def skip(index: int, *, term: int, of: int) -> Record:
    """An entry of partition 0 that skips the first call of the batch `of`."""
    return decode_record(encode_json(RecordKind.SKIP, {"index": of, "position": 0}, partition=0, term=term, index=index))


def at(block: int) -> Lsn:
    """The first record of that block."""
    return Lsn(BlockNumber(block), 0)


def test_later_entry_voids_those_it_replaces_and_what_they_said() -> None:
    """End, digests and skips fall back to the entry before; the same index after that place is in force."""
    stream = StreamFold()
    digest = encode_digest(partition=0, term=1, index=3, rows_digest=0, catalog=1, result_hashes=b"")
    records = [skip(1, term=1, of=7), skip(2, term=1, of=8), skip(3, term=1, of=9), decode_record(digest), skip(2, term=2, of=5)]
    for block, record in enumerate(records, 1):
        stream.fold(at(block), record)
    assert (stream.last_index, stream.executed, stream.voids) == (2, 1, [(5, 0, 2)])
    assert list(stream.skipped) == [Skip(1, 7, 0), Skip(2, 5, 0)]
    assert [is_void(stream.voids, at(block), index) for block, index in [(1, 1), (2, 2), (3, 3), (5, 2)]] == [
        False, True, True, False,
    ]  # fmt: skip


def test_truncation_ends_the_stream_before_its_index() -> None:
    """No entry has to follow."""
    stream = StreamFold(last_index=8, executed=8)
    stream.fold(at(4), decode_record(encode_json(RecordKind.TRUNCATION, {}, partition=0, term=2, index=6)))
    assert (stream.last_index, stream.executed, stream.voids) == (5, 5, [(4, 0, 6)])


@dataclass
class Patched:
    """A log with a gap after its first record, and another one at its end."""

    met: int = 0

    def read(self, *, from_block: int) -> Iterator[tuple[Lsn, Record]]:
        """Two records."""
        yield at(from_block), skip(1, term=1, of=7)
        self.met = 1
        yield at(from_block + 2), skip(2, term=1, of=8)
        self.met = 2


def test_gaps_are_met_between_the_records_around_them() -> None:
    """Also a gap at the log's end."""
    patched = Patched()
    records = LogSource.read_with_gaps(cast("Any", SimpleNamespace(read=patched.read, patchwork=patched)), from_block=1)
    assert [found and found[1].index for found in records] == [1, None, 2, None]
