"""Batches and migrations wait for the code that they name, and what is after them in their partition waits with them."""

from __future__ import annotations

from cmdlog.cluster.code_gate import CodeGate
from cmdlog.wal.format.batch import encode_batch
from cmdlog.wal.format.record import RecordKind, encode_json
from procedures.migration.stated_change import RunMigration, StatedChange


def a_batch(index: int, catalog: int) -> tuple[int, bytes]:
    """A logged call of this version."""
    return index, encode_batch(
        partition=0, term=1, index=index, catalog=catalog, txn_ids=range(1024, 2048, 1024), procedures=[0], params=[b"[]"]
    )


def a_change(index: int, change: StatedChange) -> tuple[int, bytes]:
    """A logged change of tables."""
    return index, encode_json(RecordKind.SCHEMA, change.to_json(), partition=0, term=1, index=index)


def a_migration(index: int, catalog: int) -> tuple[int, bytes]:
    """One that runs a migration of this version's code."""
    return a_change(index, StatedChange(migrations=(RunMigration("0001_double"),), catalog=catalog, at=1024))


def test_known_code_passes() -> None:
    """Also of versions before the newest, and entries that need no code."""
    gate = CodeGate()
    assert gate.learn(2) == {}
    tables = a_change(3, StatedChange(("CREATE TABLE more (id INTEGER)",)))
    entries = [a_batch(1, 1), a_batch(2, 2), tables, a_migration(4, 2)]
    assert gate.add(0, entries) == entries
    assert not gate.waits


def test_unknown_code_is_waited_for() -> None:
    """By what is after it, too; other partitions do not wait; each version lets its own through."""
    gate = CodeGate()
    gate.learn(1)
    first, second, third, fourth = a_batch(1, 1), a_batch(2, 2), a_batch(3, 1), a_batch(4, 3)
    assert gate.add(0, [first, second, third]) == [first]
    assert gate.add(0, [fourth]) == []
    assert gate.add(1, [a_batch(1, 1)]) == [a_batch(1, 1)]
    assert gate.waits
    assert gate.learn(2) == {0: [second, third]}
    assert gate.waits
    assert gate.learn(3) == {0: [fourth]}
    assert not gate.waits
    assert gate.learn(4) == {}


def test_migration_waits_for_its_code() -> None:
    """A follower may have it committed first: no site can run it before. What needs no code passes."""
    gate = CodeGate()
    gate.learn(1)
    tables, migration, batch = a_change(1, StatedChange(("CREATE TABLE more (id INTEGER)",))), a_migration(2, 2), a_batch(3, 1)
    assert gate.add(0, [tables, migration, batch]) == [tables]
    assert gate.waits
    assert gate.learn(2) == {0: [migration, batch]}
    assert not gate.waits
