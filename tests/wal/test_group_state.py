"""The fold: what records say about every group, and that a checkpoint says the same."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest

from cmdlog.wal.format.batch import encode_batch
from cmdlog.wal.format.block import aligned
from cmdlog.wal.format.record import (
    BadRecord,
    RecordKind,
    decode_record,
    encode_commit_mark,
    encode_digest,
    encode_json,
    encode_record,
)
from cmdlog.wal.group_state import CATALOGS_KEPT_MIN, GroupStates
from cmdlog.wal.ids import CLUSTER_GROUP, BlockNumber, Lsn, make_txn_id
from tests.wal.logkit import hard_state


def fold(records: list[bytes], groups: GroupStates | None = None, first_block: int = 1) -> GroupStates:
    """One record per block."""
    folded = groups or GroupStates()
    for number, data in enumerate(records, first_block):
        folded.observe(Lsn(BlockNumber(number), 0), decode_record(data))
    return folded


def entry(kind: RecordKind, value: Mapping[str, object], *, index: int, term: int = 1, partition: int = 0) -> bytes:
    """A JSON record, term 1 of group 0 unless told otherwise."""
    return encode_json(kind, value, partition=partition, term=term, index=index)


def batch(index: int, *, term: int = 1, catalog: int = 1, partition: int = 0, txn_ids: Sequence[int] | None = None) -> bytes:
    """Two calls."""
    txn = make_txn_id(millis=1000 + index, counter=0, partition=partition)
    return encode_batch(
        partition=partition,
        term=term,
        index=index,
        catalog=catalog,
        txn_ids=txn_ids or range(txn, txn + 2048, 1024),
        procedures=[0, 0],
        params=[b"[]", b"[]"],
    )


def test_entries_move_the_last_index_and_the_highest_transaction() -> None:
    """Index, term, checksum of the last entry; the highest TxnId ever, which never goes back."""
    groups = fold([hard_state(3, 7), batch(1, term=3), batch(2, term=3)])
    state = groups.by_partition[0]
    assert (state.last_index, state.last_term, state.term, state.vote) == (2, 3, 3, 7)
    assert state.last_checksum == decode_record(batch(2, term=3)).checksum
    assert groups.txn_id_max == make_txn_id(millis=1002, counter=1, partition=0)
    assert fold([batch(1, term=4)], groups).txn_id_max == groups.txn_id_max


def test_what_was_encoded_here_folds_as_what_was_read() -> None:
    """`observe_block` reads heads alone where it can: group by group it says what `observe` says of the decoded records."""
    chance = random.Random(7)
    for _ in range(300):
        written, read = GroupStates(), GroupStates()
        for groups in (written, read):
            groups.observe_block(
                0, [hard_state(1, 7, partition=group) for group in (0, 1)]
            )  # a digest alone makes no group known
        ends, term = {0: 0, 1: 0}, 1
        for number in range(1, 12):
            records = [entry(RecordKind.CATALOG, {"version": number}, index=number, term=term, partition=CLUSTER_GROUP)]
            for _ in range(chance.randrange(6)):
                group = chance.randrange(2)
                term += chance.random() < 0.1
                ends[group] = max(ends[group] + chance.choice([1, 1, 1, 1, 0, -1, 2]), 1)
                skipped = [5 << 30, 6 << 30] if chance.random() < 0.2 else None  # transaction ids that are no range
                records.append(
                    chance.choice(
                        [
                            batch(ends[group], term=term, catalog=chance.randrange(1, 15), partition=group, txn_ids=skipped),
                            batch(ends[group], term=term, catalog=chance.randrange(1, 15), partition=group),
                            encode_commit_mark(
                                partition=group, term=term, commit=chance.randrange(9), closed_txn=chance.randrange(9 << 32)
                            ),
                            encode_digest(partition=group, term=term, index=1, rows_digest=1, catalog=1, result_hashes=b"hash"),
                            hard_state(term, 7, partition=group),
                        ]
                    )
                )
            written.observe_block(number, records)
            offset = 0
            for data in records:
                read.observe(Lsn(BlockNumber(number), offset), decode_record(data))
                offset += aligned(len(data))
            assert vars(written) == vars(read)


def test_an_overwritten_suffix_takes_what_it_established_with_it() -> None:
    """Configuration, schema, environment and catalogs of void entries are undone (Raft, section 3.5)."""
    old = {"voters": [1]}
    groups = fold([
        entry(RecordKind.CONFIGURATION, old, index=1, partition=CLUSTER_GROUP),
        entry(RecordKind.CATALOG, {"version": 1}, index=2, partition=CLUSTER_GROUP),
        entry(RecordKind.CONFIGURATION, {"voters": [1, 2]}, index=3, partition=CLUSTER_GROUP),
        entry(RecordKind.CATALOG, {"version": 2}, index=4, partition=CLUSTER_GROUP),
        entry(RecordKind.ENVIRONMENT, {"python": "3.12"}, index=5, partition=CLUSTER_GROUP),
        entry(RecordKind.SCHEMA, {"statements": []}, index=6, partition=CLUSTER_GROUP),
        entry(RecordKind.CATALOG, {"version": 9}, index=3, term=2, partition=CLUSTER_GROUP),
    ])  # fmt: skip
    state = groups.by_partition[CLUSTER_GROUP]
    assert state.configuration == old
    assert sorted(state.catalogs) == [1, 9]
    assert (state.environment, state.schema) == (None, None)
    assert (state.last_index, state.last_term) == (3, 2)


def test_a_truncation_record_voids_a_suffix() -> None:
    """The entry before the void ones is the last one again."""
    groups = fold([batch(1), batch(2), batch(3), entry(RecordKind.TRUNCATION, {"checksum": 99}, index=2)])
    state = groups.by_partition[0]
    assert (state.last_index, state.last_term, state.last_checksum) == (1, 1, 99)


def test_a_committed_configuration_replaces_all_before_it() -> None:
    """Only what may still be overwritten is kept beside the newest committed one."""
    config = [entry(RecordKind.CONFIGURATION, {"n": n}, index=n) for n in (1, 2, 3, 4)]
    groups = fold([*config, encode_commit_mark(partition=0, term=1, commit=3, closed_txn=5)])
    assert [stated.value["n"] for stated in groups.by_partition[0].configurations] == [3, 4]


def test_a_higher_term_forgets_the_vote_and_a_lower_one_nothing() -> None:
    """An entry of a newer term implies that term; hard state never goes back."""
    groups = fold([hard_state(2, 7), batch(1, term=5)])
    assert groups.votes == {0: (5, None)}
    assert groups.hard_state_changed
    assert fold([hard_state(4, 9)], groups).votes == {0: (5, None)}


def test_merging_the_hard_state_file_keeps_the_higher_term_and_every_vote() -> None:
    """The file may be ahead of the log by a crash, never in contradiction."""
    groups = fold([hard_state(2, None)])
    groups.merge_vote(0, 1, 3)
    assert groups.votes == {0: (2, None)}
    groups.merge_vote(0, 2, 7)
    assert groups.votes == {0: (2, 7)}
    with pytest.raises(ValueError, match="vote 7"):
        groups.merge_vote(0, 2, 8)
    groups.merge_vote(0, 3, None)
    assert groups.votes == {0: (3, None)}


def test_catalogs_are_kept_while_a_retained_batch_may_use_them() -> None:
    """Old versions go when no retained block has a batch of them; the newest few always stay."""
    count = CATALOGS_KEPT_MIN + 3
    records = [entry(RecordKind.CATALOG, {"version": v}, index=v, partition=CLUSTER_GROUP) for v in range(1, count + 1)]
    groups = fold([*records, batch(1, catalog=2)])
    groups.checkpoints(oldest_block=1)
    assert sorted(groups.by_partition[CLUSTER_GROUP].catalogs) == list(range(1, count + 1))
    groups.checkpoints(oldest_block=len(records) + 1)
    assert sorted(groups.by_partition[CLUSTER_GROUP].catalogs) == [2, *range(4, count + 1)]
    groups.checkpoints(oldest_block=len(records) + 2)
    assert sorted(groups.by_partition[CLUSTER_GROUP].catalogs) == list(range(4, count + 1))


def test_the_two_newest_snapshot_marks_are_kept() -> None:
    """The log is cut up to the second-newest snapshot, so a restart must know both."""
    marks = [entry(RecordKind.SNAPSHOT_MARK, {"name": n}, index=n) for n in range(4)]
    assert fold(marks).by_partition[0].snapshots == [{"name": 2}, {"name": 3}]


@pytest.mark.parametrize("seed", range(20))
def test_a_checkpoint_and_what_follows_equal_the_whole(seed: int) -> None:
    """Folding checkpoint + later records gives the same state as folding everything, wherever the cut is."""
    rng = random.Random(seed)
    records = [random_record(rng) for _ in range(80)]
    cut = rng.randrange(len(records))
    whole, head = fold(records), fold(records[:cut])
    resumed = fold(head.checkpoints(oldest_block=1), first_block=cut + 1)
    fold(records[cut:], resumed, first_block=cut + 1)
    assert whole.checkpoints(oldest_block=1) == resumed.checkpoints(oldest_block=1)
    assert whole.txn_id_max == resumed.txn_id_max


def random_record(rng: random.Random) -> bytes:
    """Any kind, over few indexes and terms, so that suffixes are replaced often."""
    partition = rng.choice([0, 1, CLUSTER_GROUP])
    index, term = rng.randrange(1, 12), rng.randrange(1, 4)
    of_batches = [RecordKind.BATCH, RecordKind.CATALOG, RecordKind.SCHEMA, RecordKind.ENVIRONMENT, RecordKind.SKIP]
    of_groups = [RecordKind.CONFIGURATION, RecordKind.HARD_STATE, RecordKind.COMMIT_MARK, RecordKind.TRUNCATION]
    kind = rng.choice([*of_batches, *of_groups, RecordKind.SNAPSHOT_MARK])
    if kind is RecordKind.BATCH:
        return batch(index, term=term, catalog=rng.randrange(1, 6), partition=partition)
    if kind is RecordKind.COMMIT_MARK:
        return encode_commit_mark(partition=partition, term=term, commit=index, closed_txn=rng.randrange(1 << 40))
    if kind is RecordKind.TRUNCATION:
        return encode_record(kind, b"", partition=partition, term=term, index=index)
    value = {"version": rng.randrange(1, 6), "vote": rng.choice([None, 1]), "n": rng.randrange(100)}
    return encode_json(kind, value, partition=partition, term=term, index=index)


@pytest.mark.parametrize(
    ("kind", "payload"), [(RecordKind.CATALOG, b"{}"), (RecordKind.CHECKPOINT, b'{"term":1}'), (RecordKind.COMMIT_MARK, b"short")]
)
def test_payloads_that_are_not_what_their_kind_says_are_refused(kind: RecordKind, payload: bytes) -> None:
    """A forged or mistaken record is an error, not a half-filled state."""
    with pytest.raises(BadRecord):
        fold([encode_record(kind, payload, partition=0, term=1, index=1)])
