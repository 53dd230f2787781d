"""Control records as values: read once, and named when they are malformed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from cmdlog.wal.format.control_record import (
    CatalogVersion,
    GroupConfiguration,
    SchemaChange,
    Skip,
    SnapshotMark,
    checksum_before,
    schema_txn,
    vote_of,
)
from cmdlog.wal.format.record import BadRecord, Record, RecordKind, decode_record, encode_json, encode_record
from cmdlog.wal.group_state import GroupState, GroupStates


def record(kind: RecordKind, value: object) -> Record:
    """Entry 17 of partition 3, or a note at that index."""
    assert isinstance(value, Mapping | list)
    return decode_record(encode_json(kind, value, partition=3, term=1, index=17))  # type: ignore[arg-type] # lists: malformed


def test_each_kind_is_read_into_its_value() -> None:
    """The fields are those of the payload; an entry's own index comes from its header."""
    assert Skip.from_record(record(RecordKind.SKIP, {"index": 5, "position": 2, "reason": "died"})) == Skip(17, 5, 2)
    assert SchemaChange.from_record(record(RecordKind.SCHEMA, {"statements": ["x"], "txn_id": 9})) == SchemaChange(
        9, {"statements": ["x"]}
    )
    assert CatalogVersion.from_record(record(RecordKind.CATALOG, {"version": 4})) == CatalogVersion(4, {"version": 4})
    mark = {"checksum": 7, "log_block": 8, "name": "s"}
    assert SnapshotMark.from_record(record(RecordKind.SNAPSHOT_MARK, mark)) == SnapshotMark(7, 8, mark)
    stated = GroupConfiguration.from_record(record(RecordKind.CONFIGURATION, {"partitions": 2, "key_policy": {"ttl": 1}}))
    assert (stated.partitions, stated.epoch, stated.slots, stated.key_policy) == (2, 0, (), {"ttl": 1})
    assert vote_of(record(RecordKind.HARD_STATE, {"vote": None})) is None
    assert checksum_before(record(RecordKind.TRUNCATION, {"checksum": 6})) == 6


def test_what_early_records_do_not_say_has_a_stated_value() -> None:
    """A SCHEMA without a transaction, a TRUNCATION without a payload, a configuration without key policy."""
    assert schema_txn(record(RecordKind.SCHEMA, {"statements": ["x"]})) == 0
    assert checksum_before(decode_record(encode_record(RecordKind.TRUNCATION, b"", partition=3, term=1, index=17))) == 0
    assert GroupConfiguration.from_json({"key_policy": None}).key_policy == {}


@pytest.mark.parametrize(
    ("kind", "value", "read"),
    [
        (RecordKind.SKIP, {"index": 5}, Skip.from_record),
        (RecordKind.SKIP, {"index": "five", "position": 1}, Skip.from_record),
        (RecordKind.SCHEMA, {"statements": ["x"]}, SchemaChange.from_record),
        (RecordKind.SCHEMA, {"statements": ["x"], "txn_id": None}, schema_txn),
        (RecordKind.CATALOG, {"version": "4"}, CatalogVersion.from_record),
        (RecordKind.CONFIGURATION, {"partitions": None}, GroupConfiguration.from_record),
        (RecordKind.TRUNCATION, {"checksum": []}, checksum_before),
        (RecordKind.CHECKPOINT, {"term": 1}, GroupState.from_checkpoint),
        (RecordKind.HARD_STATE, [], vote_of),
    ],
)
def test_malformed_value_is_named_with_its_place(kind: RecordKind, value: object, read: Callable[[Record], object]) -> None:
    """The error says which record of which partition it is, so that an operator finds it in a dump."""
    with pytest.raises(BadRecord, match=f"{kind.name} of partition 3 at index 17: ."):
        read(record(kind, value))


def test_checkpoint_is_read_as_the_state_that_wrote_it() -> None:
    """The positional lists of a checkpoint become the same group state again."""
    groups = GroupStates()
    state = groups.state(3)
    state.term, state.vote, state.commit, state.last_index, state.last_term, state.last_checksum = 5, 2, 6, 7, 4, 8
    state.terms.add(7, 4)
    assert GroupState.from_checkpoint(decode_record(*groups.checkpoints(oldest_block=1))) == state
