"""The row digest: what it depends on and what not."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import apsw
import pytest

from procedures.storage.row_digest import EMPTY, RowLog

SCHEMA = (
    "CREATE TABLE plain (id INTEGER NOT NULL PRIMARY KEY, name TEXT UNIQUE, amount REAL) STRICT",
    "CREATE TABLE keyed (a TEXT NOT NULL, b INTEGER NOT NULL, c BLOB, d ANY, PRIMARY KEY (a, b)) STRICT, WITHOUT ROWID",
)


def opened() -> tuple[apsw.Connection, RowLog]:
    """A connection with two tables, watched."""
    connection = apsw.Connection(":memory:")
    for statement in SCHEMA:
        connection.execute(statement)
    connection.execute("INSERT INTO plain VALUES (1, 'one', 1.5), (2, 'two', 2.5)")
    connection.execute("INSERT INTO keyed VALUES ('x', 1, x'00', 7), ('x', 2, NULL, 'seven')")
    return connection, RowLog(connection)


def digest_of(*statements: str) -> int:
    """Digest of these statements as one batch."""
    connection, rows = opened()
    rows.begin_batch()
    for statement in statements:
        connection.execute(statement)
    return rows.digest()


def test_digest_of_nothing_is_a_constant_that_is_not_zero() -> None:
    """Zero is kept for "switched off"."""
    assert digest_of() == EMPTY
    assert digest_of() != 0


ALL_CHANGES = [
    "UPDATE plain SET amount = 3.5 WHERE id = 1",
    "UPDATE plain SET amount = 4.5 WHERE id = 1",
    "UPDATE plain SET amount = 3.5 WHERE id = 2",
    "UPDATE plain SET id = 9 WHERE id = 1",
    "DELETE FROM plain WHERE id = 1",
    "DELETE FROM plain",
    "INSERT INTO plain VALUES (3, NULL, 1.0)",
    "INSERT OR REPLACE INTO plain VALUES (3, 'one', 1.0)",
    "UPDATE keyed SET c = x'0001' WHERE b = 1",
    "UPDATE keyed SET d = 7.5 WHERE b = 1",
    "UPDATE keyed SET d = '7' WHERE b = 1",
    "DELETE FROM keyed WHERE b = 2",
]


@pytest.mark.parametrize("statement", ALL_CHANGES)
def test_digest_tells_every_change_from_every_other(statement: str) -> None:
    """Each statement here leaves other rows than the rest, so each has a digest of its own."""
    others = [s for s in ALL_CHANGES if s != statement]
    assert digest_of(statement) not in {digest_of(other) for other in others} | {EMPTY}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["UPDATE plain SET amount = 9.0"], ["UPDATE plain SET amount = 9.0 WHERE id = 2", "UPDATE plain SET amount = 9.0"]),
        (["DELETE FROM plain WHERE id = 1", "INSERT INTO plain VALUES (1, 'one', 1.5)"], []),
        (
            ["UPDATE plain SET id = 5 WHERE id = 1"],
            ["DELETE FROM plain WHERE id = 1", "INSERT INTO plain VALUES (5, 'one', 1.5)"],
        ),
        (["UPDATE plain SET id = 5 WHERE id = 1", "UPDATE plain SET id = 1 WHERE id = 5"], []),
        (["INSERT INTO plain VALUES (7, 'x', 0.0)", "DELETE FROM plain WHERE id = 7"], []),
    ],
)
def test_digest_is_of_the_net_change(one: list[str], other: list[str]) -> None:
    """Different ways to the same rows have the same digest."""
    assert digest_of(*one) == digest_of(*other)


def test_digest_after_a_failed_statement_ignores_what_it_took_back() -> None:
    """SQLite tells the first row of an update that then fails on the second; the row is read again."""
    connection, rows = opened()
    rows.begin_batch()
    with pytest.raises(apsw.ConstraintError):
        connection.execute("UPDATE plain SET name = 'same'")
    connection.execute("UPDATE plain SET amount = 8.0 WHERE id = 2")
    rows.uncertain = True
    assert rows.digest() == digest_of("UPDATE plain SET amount = 8.0 WHERE id = 2")


def random_statements(chance: random.Random) -> list[str]:
    """Changes that meet each other's keys."""
    statements = []
    for _ in range(chance.randrange(1, 8)):
        key, value = chance.randrange(4), chance.randrange(100)
        statements.append(
            chance.choice([
                f"INSERT OR IGNORE INTO plain VALUES ({key}, 'n{value}', {value}.5)",  # noqa: S608
                f"INSERT OR REPLACE INTO plain VALUES ({key}, 'n{value}', {value}.5)",  # noqa: S608
                f"UPDATE plain SET amount = {value}.25 WHERE id = {key}",  # noqa: S608
                f"UPDATE OR IGNORE plain SET id = {key} WHERE id = {(key + 1) % 4}",  # noqa: S608
                f"DELETE FROM plain WHERE id = {key}",  # noqa: S608
                f"INSERT INTO keyed VALUES ('x', {key}, NULL, {value}) ON CONFLICT DO UPDATE SET d = excluded.d",  # noqa: S608
                f"DELETE FROM keyed WHERE b = {key}",  # noqa: S608
            ])
        )  # fmt: skip
    return statements


@pytest.mark.parametrize("seed", range(40))
def test_digest_with_rolled_back_calls_equals_the_digest_without_them(seed: int) -> None:
    """Savepoints that are rolled back in between leave no trace, whatever they touched."""
    chance = random.Random(seed)
    connection, rows = opened()
    rows.begin_batch()
    kept: list[str] = []
    connection.execute("BEGIN")
    for _ in range(6):
        statements = random_statements(chance)
        connection.execute("SAVEPOINT s")
        for statement in statements:
            connection.execute(statement)
        if chance.random() < 0.5:
            connection.execute("ROLLBACK TO s")
            rows.uncertain = True
        else:
            kept += statements
        connection.execute("RELEASE s")
    assert rows.digest() == digest_of(*kept)


def test_changed_rows_name_table_key_and_both_values() -> None:
    """A report of a divergence shows what was and what is."""
    connection, rows = opened()
    rows.begin_batch()
    connection.execute("UPDATE plain SET amount = 3.5 WHERE id = 1")
    connection.execute("DELETE FROM keyed WHERE b = 2")
    rows.digest()
    shown: list[Any] = [(row.table, row.key, row.old, row.new) for row in rows.changed_rows()]
    assert shown == [
        ("keyed", ("x", 2), ("x", 2, None, "seven"), None),
        ("plain", (1,), (1, "one", 1.5), (1, "one", 3.5)),
    ]


def test_changes_of_the_framework_are_no_part_of_it() -> None:
    """The position and the keys are written in the same transaction."""
    connection, rows = opened()
    connection.execute("CREATE TABLE _cmdlog_meta (id INTEGER PRIMARY KEY)")
    rows.begin_batch()
    connection.execute("INSERT INTO _cmdlog_meta VALUES (1)")
    assert rows.digest() == EMPTY


@pytest.mark.slow
def test_digest_is_the_same_under_every_hash_seed() -> None:
    """Python's salted hashes and set orders have no part in it."""
    code = "from tests.procedures.test_row_digest import *; print(digest_of(*ALL_CHANGES))"
    root = Path(__file__).parents[2]
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=root,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "42")
    }
    assert len(seen) == 1
