"""Entries of consensus and records of the log: the same bytes everywhere, and each at the place that it states."""

from __future__ import annotations

import random

import pytest

from cmdlog.cluster.entry_records import (
    LAST_ENTRY_KIND,
    EntryBlocks,
    check_entries,
    describe_batch,
    entry_of,
    place_of,
    records_of,
)
from cmdlog.raft import Configuration
from cmdlog.raft.configuration import nodes
from cmdlog.raft.entries import EntryLog
from cmdlog.raft.messages import KIND_CONFIGURATION, KIND_EMPTY, KIND_NORMAL, SnapshotDescriptor
from cmdlog.wal.format.batch import decode_batch
from cmdlog.wal.format.record import (
    ZSTD_FROM_BYTES,
    BadRecord,
    RecordKind,
    decode_record,
    encode_commit_mark,
    encode_digest,
    encode_empty,
    encode_json,
    encode_record,
)
from tests.cluster.entrykit import batch, batches, column

GROUP = 5
MEMBERS = Configuration(voters=nodes((1, 2, 3))).to_bytes()
MIXED = column(
    7,
    (2, KIND_EMPTY, b""),
    (2, KIND_NORMAL, batch(8, term=2, group=GROUP)),
    (2, KIND_CONFIGURATION, MEMBERS),
    (3, KIND_EMPTY, b""),
)


def test_batches_are_their_own_records() -> None:
    """A payload is the whole record: what the leader encoded is what every disk gets."""
    entries = batches(4, 1, 1, 2, group=GROUP)
    assert records_of(GROUP, entries) == entries.payloads


def test_every_record_states_the_place_of_its_entry() -> None:
    """Kind, group, term and index, also of what consensus makes itself."""
    places = [place_of(record) for record in records_of(GROUP, MIXED)]
    assert places == [
        (RecordKind.EMPTY, GROUP, 2, 7),
        (RecordKind.BATCH, GROUP, 2, 8),
        (RecordKind.CONFIGURATION, GROUP, 2, 9),
        (RecordKind.EMPTY, GROUP, 3, 10),
    ]


def test_entries_come_back_from_their_records() -> None:
    """A restart gives consensus the kinds and payloads that were written; the records are valid."""
    found = [entry_of(decode_record(record)) for record in records_of(GROUP, MIXED)]
    assert found == list(zip(MIXED.kinds, MIXED.payloads, strict=True))


def test_records_of_consensus_have_the_same_bytes_on_every_disk() -> None:
    """They follow from the place and the members alone, and these bytes are for ever: the nodes of a cluster may run different
    builds."""
    empty, _, configuration, _ = records_of(GROUP, MIXED)
    assert empty.hex() == "2000000007000500020000000000000007000000000000005436ea2700000000"
    assert configuration == encode_record(RecordKind.CONFIGURATION, MEMBERS, partition=GROUP, term=2, index=9)
    assert configuration[32:] == MEMBERS


def test_a_large_configuration_is_not_compressed() -> None:
    """Another build of the compressor would give other bytes."""
    members = Configuration(voters=nodes(range(10**17, 10**17 + 60))).to_bytes()
    assert len(members) > ZSTD_FROM_BYTES
    (record,) = records_of(GROUP, column(1, (1, KIND_CONFIGURATION, members)))
    assert (decode_record(record).flags, decode_record(record).payload) == (0, members)
    assert entry_of(decode_record(record)) == (KIND_CONFIGURATION, members)


def test_an_entry_that_closes_transaction_ids_is_a_proposal() -> None:
    """Only the empty entry without a payload is the one that begins a term; the other one must keep what it states."""
    record = encode_empty(partition=GROUP, term=1, index=1, closed_txn=1024)
    assert entry_of(decode_record(record)) == (KIND_NORMAL, record)


def test_a_place_needs_a_whole_header() -> None:
    """Fewer bytes than a header state nothing."""
    record = batch(3, term=2, group=GROUP)
    assert place_of(record[:32]) == (RecordKind.BATCH, GROUP, 2, 3)
    with pytest.raises(BadRecord, match="shorter than a record header"):
        place_of(record[:31])


def test_entries_at_their_place_are_accepted() -> None:
    """Whatever kinds a leader sends."""
    check_entries(GROUP, MIXED)
    check_entries(GROUP, batches(1, 1, 2, 2, group=GROUP))


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (batch(8, term=2, group=GROUP + 1), "BATCH of group 6, term 2, index 8"),
        (batch(8, term=1, group=GROUP), "BATCH of group 5, term 1, index 8"),
        (batch(9, term=2, group=GROUP), "BATCH of group 5, term 2, index 9"),
        (batch(7, term=2, group=GROUP), "BATCH of group 5, term 2, index 7"),
    ],
    ids=["group", "term", "later index", "earlier index"],
)
def test_an_entry_that_names_another_place_is_refused(payload: bytes, said: str) -> None:
    """It is written and executed as it is: at a place that is not its own it would be found there by nobody."""
    good = batch(7, term=2, group=GROUP)
    with pytest.raises(BadRecord, match=f"{said} sent as the entry of group 5, term 2, index 8"):
        check_entries(GROUP, column(7, (2, KIND_NORMAL, good), (2, KIND_NORMAL, payload)))


@pytest.mark.parametrize(
    "note",
    [
        encode_commit_mark(partition=GROUP, term=2, commit=8, closed_txn=0),
        encode_digest(partition=GROUP, term=2, index=8, rows_digest=1, catalog=1, result_hashes=b""),
        encode_json(RecordKind.HARD_STATE, {"vote": 2}, partition=GROUP, term=2, index=8),
    ],
    ids=["commit mark", "digest", "hard state"],
)
def test_a_note_is_no_entry(note: bytes) -> None:
    """A peer cannot make this node vote, or call something committed, by an entry."""
    assert place_of(note)[0] > LAST_ENTRY_KIND
    with pytest.raises(BadRecord, match="sent as the entry"):
        check_entries(GROUP, column(8, (2, KIND_NORMAL, note)))


@pytest.mark.parametrize(
    "record",
    [
        encode_record(RecordKind.CONFIGURATION, MEMBERS, partition=GROUP, term=2, index=8),
        encode_empty(partition=GROUP, term=2, index=8),
    ],
    ids=["configuration", "empty"],
)
def test_a_record_that_only_consensus_makes_is_no_proposal(record: bytes) -> None:
    """Consensus would take it for a proposal now, and after a restart for new members or the beginning of a term."""
    with pytest.raises(BadRecord, match="sent as the entry"):
        check_entries(GROUP, column(8, (2, KIND_NORMAL, record)))


def test_damaged_bytes_are_refused() -> None:
    """The record's own checksum travels with it."""
    payload = bytearray(batch(8, term=2, group=GROUP))
    payload[-1] ^= 1
    with pytest.raises(BadRecord, match="record crc"):
        check_entries(GROUP, column(8, (2, KIND_NORMAL, bytes(payload))))
    with pytest.raises(BadRecord, match="shorter"):
        check_entries(GROUP, column(8, (2, KIND_NORMAL, b"")))


def test_an_empty_entry_has_no_payload() -> None:
    """Its record follows from its place, so bytes that were sent with it would be lost."""
    with pytest.raises(BadRecord, match="an empty entry of 3 bytes"):
        check_entries(GROUP, column(1, (1, KIND_EMPTY, b"abc")))


@pytest.mark.parametrize("kind", list(RecordKind))
def test_entries_are_the_kinds_below_16(kind: RecordKind) -> None:
    """`LAST_ENTRY_KIND` says of bytes what `Record.is_entry` says of the decoded record."""
    record = encode_record(kind, b"", partition=GROUP, term=1, index=1)
    assert (place_of(record)[0] <= LAST_ENTRY_KIND) == decode_record(record).is_entry == (kind < 16)


def test_a_batch_is_described_with_its_calls() -> None:
    """As long as it is in memory; anything else by its index alone."""
    log = EntryLog(SnapshotDescriptor())
    log.append(column(1, (1, KIND_EMPTY, b""), (1, KIND_NORMAL, batch(2, term=1, group=GROUP))), [])
    txn_id = decode_batch(decode_record(log.payloads[1])).txn_ids[0]
    assert describe_batch(log, 2, ["put"]) == f"entry 2 (transactions {txn_id} to {txn_id}, calls of put)"
    assert describe_batch(log, 1, ["put"]) == "entry 1"
    assert describe_batch(log, 3, ["put"]) == "entry 3"


BLOCK_GROUP = 2


def blocks_of(*added: tuple[int, int]) -> EntryBlocks:
    """Entries (block, index) of one group, in the order of the log."""
    blocks = EntryBlocks()
    for block, index in added:
        blocks.add(block, BLOCK_GROUP, index)
    return blocks


def asked(blocks: EntryBlocks, *indexes: int) -> list[int | None]:
    """The block of each."""
    return [blocks.block_of(BLOCK_GROUP, index) for index in indexes]


def test_an_entry_lies_in_the_block_that_has_it() -> None:
    """Also one between the first and the last of its block."""
    blocks = blocks_of((4, 7), (4, 8), (4, 9), (6, 10), (9, 11), (9, 12))
    assert asked(blocks, 7, 8, 9, 10, 11, 12) == [4, 4, 4, 6, 9, 9]


def test_an_entry_that_is_not_written_lies_nowhere() -> None:
    """Beyond the last one, and in a group that has none."""
    blocks = blocks_of((4, 7))
    assert asked(blocks, 8) == [None]
    assert blocks.block_of(BLOCK_GROUP + 1, 7) is None


def test_an_entry_before_the_first_one_is_held_by_its_block() -> None:
    """All that is after it lies there or later."""
    assert asked(blocks_of((4, 7), (5, 8)), 1, 6) == [4, 4]


def test_a_replaced_entry_lies_where_its_replacement_does() -> None:
    """What was replaced, and what was after it, is void; what is before it stays."""
    blocks = blocks_of((4, 7), (4, 8), (5, 9), (5, 10), (6, 11), (8, 8))
    assert asked(blocks, 7, 8, 9, 11) == [4, 8, None, None]
    blocks.add(8, BLOCK_GROUP, 9)
    blocks.add(9, BLOCK_GROUP, 10)
    assert asked(blocks, 7, 8, 9, 10, 11) == [4, 8, 8, 9, None]


def test_a_replacement_of_everything() -> None:
    """From the first one that is known, or from before it."""
    assert asked(blocks_of((4, 7), (5, 8), (6, 7)), 6, 7, 8) == [6, 6, None]
    assert asked(blocks_of((4, 7), (5, 8), (6, 6)), 5, 6, 7) == [6, 6, None]


def test_a_replacement_in_the_same_block() -> None:
    """A block may hold an entry and what replaces it."""
    assert asked(blocks_of((4, 7), (4, 8), (4, 7), (5, 8)), 7, 8) == [4, 5]


def test_groups_do_not_see_each_other() -> None:
    """Every group has its own indexes."""
    blocks = blocks_of((4, 7), (5, 8))
    blocks.add(6, BLOCK_GROUP + 1, 7)
    assert asked(blocks, 7, 8) == [4, 5]
    assert blocks.block_of(BLOCK_GROUP + 1, 7) == 6
    blocks.forget(BLOCK_GROUP + 1, 7)
    assert asked(blocks, 7, 8) == [4, 5]


def test_the_entries_of_a_block_are_found_among_its_records() -> None:
    """Notes are no entries, though they have an index too."""
    blocks = EntryBlocks()
    mark = encode_commit_mark(partition=BLOCK_GROUP, term=1, commit=9, closed_txn=0)
    blocks.add_block(3, [batch(7, group=BLOCK_GROUP), mark, batch(1, group=4)])
    blocks.add_block(4, [mark])
    assert asked(blocks, 9) == [None]
    blocks.add_block(5, [batch(8, group=BLOCK_GROUP)])
    assert asked(blocks, 7, 8, 9) == [3, 5, None]
    assert blocks.block_of(4, 1) == 3


def test_what_is_forgotten_holds_no_block() -> None:
    """What comes after it is still known, each in its own block."""
    blocks = blocks_of((4, 7), (5, 8), (5, 9), (6, 10))
    blocks.forget(BLOCK_GROUP, 8)
    assert asked(blocks, 1, 7, 8, 9, 10, 11) == [5, 5, 5, 5, 6, None]
    blocks.forget(BLOCK_GROUP, 10)
    assert asked(blocks, 9, 10, 11) == [6, 6, None]
    blocks.forget(BLOCK_GROUP + 1, 3)


def test_a_replacement_after_forgetting() -> None:
    """Nothing that was forgotten comes back."""
    blocks = blocks_of((4, 7), (5, 8), (6, 9))
    blocks.forget(BLOCK_GROUP, 8)
    blocks.add(7, BLOCK_GROUP, 9)
    assert asked(blocks, 8, 9, 10) == [5, 7, None]


def test_random_histories_agree_with_a_list() -> None:
    """The lists by halves say what a dictionary of all entries says, replacements included."""
    rng = random.Random(20)
    blocks, model, last = EntryBlocks(), dict[int, int](), 0
    for block in range(1, 300):
        if rng.random() < 0.15:
            last = rng.randint(max(0, last - 12), last)
        for _ in range(rng.randint(0, 4)):
            last += 1
            model = {index: at for index, at in model.items() if index < last} | {last: block}
            blocks.add(block, BLOCK_GROUP, last)
        for index in range(1, max(model, default=0) + 3):
            assert blocks.block_of(BLOCK_GROUP, index) == model.get(index)
