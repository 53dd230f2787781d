"""What a cluster begins with: the same bytes on every node, and another digest for anything that differs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cmdlog.cluster.genesis import GENESIS_TERM, Genesis
from cmdlog.wal.format.record import ZSTD_FROM_BYTES, Record, RecordKind, decode_commit_mark, decode_record
from cmdlog.wal.group_state import GroupStates
from cmdlog.wal.ids import CLUSTER_GROUP, BlockNumber, Lsn

SHAPE = {"partitions": 3, "slots": [[0, 4095, 0]], "key_policy": {"window_s": 60, "keys_max": 1000}}
GENESIS = Genesis(
    (1, 2, 3),
    SHAPE,
    {"version": 1, "hash": "c0de", "procedures": ["buy", "sell"]},
    {"python": "3.11.9", "sqlite": "3.45.1"},
    {"statements": ["CREATE TABLE goods (id INTEGER PRIMARY KEY)", "CREATE INDEX by_id ON goods (id)"]},
)
STATEMENTS = GENESIS.tables["statements"]


def decoded(genesis: Genesis) -> list[Record]:
    """Its records, each checked."""
    return [decode_record(record) for record in genesis.records()]


def fold(genesis: Genesis) -> GroupStates:
    """What a log says that begins so."""
    return GroupStates.fold((Lsn(BlockNumber(1), at), record) for at, record in enumerate(decoded(genesis)))


def test_the_digest_is_this_one() -> None:
    """For ever: nodes compare what different builds of the program make of the same cluster file."""
    assert GENESIS.digest() == "276574c71e92bb124310c5bb31e8a8ff"


@pytest.mark.parametrize(
    "change",
    [
        {"voters": (1, 2)},
        {"voters": (1, 2, 4)},
        {"shape": {**SHAPE, "partitions": 4}},
        {"shape": {**SHAPE, "slots": [[0, 4095, 1]]}},
        {"shape": {**SHAPE, "key_policy": {"window_s": 61, "keys_max": 1000}}},
        {"catalog": {**GENESIS.catalog, "hash": "c0df"}},
        {"catalog": {**GENESIS.catalog, "procedures": ["sell", "buy"]}},
        {"environment": {**GENESIS.environment, "sqlite": "3.45.2"}},
        {"environment": {}},
        {"tables": {"statements": STATEMENTS[:1]}},
        {"tables": {"statements": STATEMENTS[::-1]}},
        {"tables": {"statements": []}},
        {"tables": {"statements": STATEMENTS, "marked": ["0001_first"]}},
    ],
    ids=str,
)
def test_whatever_differs_changes_the_digest(change: dict[str, Any]) -> None:
    """Members, shape, code, environment and tables: two nodes that differ in any of them must not begin together."""
    assert replace(GENESIS, **change).digest() != GENESIS.digest()


def test_the_order_of_names_and_members_does_not_matter() -> None:
    """Both come from files and dictionaries that nodes make one by one."""
    same = Genesis(
        [3, 1, 2],
        dict(reversed(list(SHAPE.items()))),
        dict(reversed(list(GENESIS.catalog.items()))),
        dict(reversed(list(GENESIS.environment.items()))),
        {"statements": tuple(STATEMENTS)},
    )
    assert same.records() == GENESIS.records()


def test_nothing_is_compressed() -> None:
    """Another build of the compressor makes other bytes of the same code."""
    large = replace(
        GENESIS,
        shape={**SHAPE, "slots": [[0, 4095, 0]] * ZSTD_FROM_BYTES},
        catalog={**GENESIS.catalog, "notes": "x" * ZSTD_FROM_BYTES},
        environment={"packages": "x" * ZSTD_FROM_BYTES},
        tables={"statements": ["x" * ZSTD_FROM_BYTES]},
    )
    assert {record.flags for record in decoded(large)} == {0}
    assert len(b"".join(large.records())) > 4 * ZSTD_FROM_BYTES


def test_every_group_begins_with_its_members_and_nothing_else_before_them() -> None:
    """The cluster group and every partition: entries without a hole from index 1 on, all of the first term."""
    entries: dict[int, list[int]] = {}
    for record in decoded(GENESIS):
        assert record.term == GENESIS_TERM
        if record.is_entry:
            entries.setdefault(record.partition, []).append(record.index)
            if record.index == 1:
                assert record.kind is RecordKind.CONFIGURATION
                assert record.json()["voters"] == [1, 2, 3]
    assert entries == {CLUSTER_GROUP: [1, 2, 3, 4], 0: [1, 2], 1: [1, 2], 2: [1, 2]}


def test_nobody_has_voted_and_all_of_it_is_committed() -> None:
    """A first leader needs a vote in a later term, and nobody can overwrite what the cluster begins with."""
    for state in fold(GENESIS).by_partition.values():
        assert (state.term, state.vote) == (GENESIS_TERM, None)
        assert (state.commit, state.commit_term) == (state.last_index, GENESIS_TERM)


def test_marks_close_no_transaction_id() -> None:
    """No call was made yet."""
    marks = [record for record in decoded(GENESIS) if record.kind is RecordKind.COMMIT_MARK]
    assert [(mark.partition, decode_commit_mark(mark)) for mark in marks] == [(CLUSTER_GROUP, 0), (0, 0), (1, 0), (2, 0)]
    assert fold(GENESIS).txn_id_max == 0


def test_a_log_that_begins_so_states_the_cluster() -> None:
    """Shape and members, code, environment and tables, as a start reads them."""
    groups = fold(GENESIS).by_partition
    cluster = groups[CLUSTER_GROUP]
    assert cluster.configuration is not None
    assert {**cluster.configuration, **SHAPE} == cluster.configuration
    assert cluster.catalogs[1].value == GENESIS.catalog
    assert cluster.environment is not None
    assert cluster.environment.value == GENESIS.environment
    for partition in range(3):
        schema = groups[partition].schema
        assert schema is not None
        assert schema.value == {"statements": STATEMENTS, "txn_id": 0}
