"""Sums of a log's entries: equal for equal entries, wherever a log begins and whatever was replaced in between."""

from __future__ import annotations

import random

import pytest

from cmdlog.node.scrub.entry_sums import RANGE_ENTRIES, EntrySums, range_end
from cmdlog.wal.errors import Corrupt
from cmdlog.wal.format.block import BlockFlag, BlockHeader, aligned
from cmdlog.wal.format.record import Record, RecordKind, decode_record, encode_record
from cmdlog.wal.ids import CLUSTER_GROUP, BlockNumber
from cmdlog.wal.reader import ReadBlock

Entry = tuple[int, int, bytes]  # index, term, payload
Sums = dict[tuple[int, int], int]


HEADER_OF_ANY = BlockHeader(BlockFlag(0), 1, BlockNumber(9), 0, 0, BlockNumber(0), 0, 1, 0, 0)


def entry(index: int, *, term: int = 1, payload: bytes = b"x", group: int = 0) -> Record:
    """An entry as a log holds it."""
    return decode_record(encode_record(RecordKind.BATCH, payload, partition=group, term=term, index=index))


def sums_of(records: list[Record]) -> Sums:
    """What is left at the end of a reading."""
    sums, found = EntrySums(), Sums()
    for record in records:
        sums.observe_block(block_of(record))
        for group, number, value in sums.take_changes():
            found.pop((group, number), None)
            if value is not None:
                found[group, number] = value
    return found


def block_of(*records: Record) -> ReadBlock:
    """As the reader gives it."""
    body = b"".join(record.raw + bytes(aligned(len(record.raw)) - len(record.raw)) for record in records)
    return ReadBlock(HEADER_OF_ANY, "/log/seg", 4096, body)


def run(first: int, last: int, *, term: int = 1) -> list[Record]:
    """Consecutive entries."""
    return [entry(index, term=term) for index in range(first, last + 1)]


def test_only_whole_ranges_have_a_sum() -> None:
    """Range 0 begins with entry 1; one whose begin was not read has none, nor one that has not ended."""
    assert set(sums_of(run(1, range_end(0)))) == {(0, 0)}
    assert sums_of(run(1, range_end(0) - 1)) == {}
    assert sums_of(run(2, range_end(0))) == {}
    assert set(sums_of(run(500, range_end(2) + 10))) == {(0, 1), (0, 2)}


def test_logs_that_begin_elsewhere_have_the_same_sums() -> None:
    """A range is the same whatever was read before it."""
    whole, later = sums_of(run(1, range_end(3))), sums_of(run(RANGE_ENTRIES, range_end(3)))
    assert later == {place: value for place, value in whole.items() if place[1] > 0}


def test_a_sum_is_of_index_term_and_bytes() -> None:
    """Any of the three that differs in any entry makes another sum."""
    base = run(1, range_end(0))
    for other in (entry(7, term=2), entry(7, payload=b"y")):
        changed = [other if record.index == 7 else record for record in base]
        assert sums_of(changed) != sums_of(base)


def test_replaced_entries_count_as_they_are_in_force() -> None:
    """A log with entries of a leader that lost has the sums of one without them, also over the border of ranges."""
    for cut in (5, range_end(0) - 3, range_end(0), range_end(0) + 1, range_end(0) + 9):
        lost = run(1, range_end(0) + 9)
        kept = [*run(1, cut - 1), *run(cut, range_end(1), term=2)]
        assert sums_of([*lost, *kept[cut - 1 :]]) == sums_of(kept), cut


def test_a_truncation_takes_sums_away() -> None:
    """What is void has no sum until it is written again."""
    void = decode_record(encode_record(RecordKind.TRUNCATION, b"{}", partition=0, term=2, index=20))
    assert sums_of([*run(1, range_end(0)), void]) == {}
    assert sums_of([*run(1, range_end(0)), void, *run(20, range_end(0), term=2)]) == sums_of(
        [*run(1, 19), *run(20, range_end(0), term=2)]
    )


def test_what_was_replaced_far_back_has_no_sum() -> None:
    """Entries are kept for two ranges; further back the sums of the ranges are taken away, and later ones come again."""
    records = [*run(1, range_end(4)), *run(7, range_end(5), term=2)]
    kept = [*run(1, 6), *run(7, range_end(5), term=2)]
    assert sums_of(records) == {place: value for place, value in sums_of(kept).items() if place[1] > 0}


def test_groups_and_notes_do_not_mix() -> None:
    """Each group has its own sums; records of this node alone are in none."""
    note = decode_record(encode_record(RecordKind.DIGEST, b"", partition=0, term=1, index=3))
    mixed: list[Record] = []
    for index in range(1, range_end(0) + 1):
        mixed += [entry(index), note, entry(index, group=int(CLUSTER_GROUP))]
    assert sums_of(mixed) == {(0, 0): sums_of(run(1, range_end(0)))[0, 0]} | {
        (int(CLUSTER_GROUP), 0): sums_of([entry(i, group=int(CLUSTER_GROUP)) for i in range(1, range_end(0) + 1)])[
            int(CLUSTER_GROUP), 0
        ]
    }


@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 100), marks=pytest.mark.fuzz)], ids=["few", "many"])
def test_random_replacements_give_the_sums_of_what_is_in_force(seeds: range) -> None:
    """Seeded: however often and far a log was cut, within what may be cut, its sums are those of the entries in force."""
    for seed in seeds:
        rng, term, records, kept, highest = random.Random(seed), 1, list[Record](), list[Record](), 0
        while len(kept) < range_end(3):
            more = run(len(kept) + 1, len(kept) + rng.randrange(1, 400), term=term)
            records, kept, highest = records + more, kept + more, max(highest, len(kept) + len(more))
            if rng.random() < 0.5:
                kept = kept[: max(0, highest - RANGE_ENTRIES, len(kept) - rng.randrange(1, RANGE_ENTRIES))]
                term += 1
        records += run(len(kept) + 1, len(kept) + 1, term=term)
        kept += records[-1:]
        assert sums_of(records) == sums_of(kept), seed


def test_a_record_that_no_log_writes_is_damage() -> None:
    """The block's checksum holds, so its writer was at fault: a length that leads nowhere."""
    for body in (bytes(40), b"\x01" * 16):
        with pytest.raises(Corrupt, match="bad record at offset 0"):
            EntrySums().observe_block(ReadBlock(HEADER_OF_ANY, "/log/seg", 4096, body))


def test_several_records_of_a_block_are_all_seen() -> None:
    """With padding between them."""
    records = [entry(index, payload=b"x" * (index % 9)) for index in range(1, range_end(0) + 1)]
    one, many = EntrySums(), EntrySums()
    one.observe_block(block_of(*records))
    for record in records:
        many.observe_block(block_of(record))
    assert one.take_changes() == many.take_changes() != []
