"""CREATE statements taken apart, as we write them and as SQLite leaves them."""

from __future__ import annotations

import contextlib

import apsw
import pytest

from procedures.declaration.create_text import parse_table, text_key
from procedures.errors import StateRefused

TABLE = (
    "CREATE TABLE t ( id INTEGER NOT NULL, \"order\" TEXT DEFAULT 'a, (b' NOT NULL, "
    'sum INTEGER CONSTRAINT "numeric(8,2) sum" CHECK (sum BETWEEN -1 AND 1), twice INTEGER GENERATED ALWAYS AS (id * 2) STORED, '
    'PRIMARY KEY (id), CONSTRAINT u UNIQUE ("order", sum), CHECK (id > 0) ) STRICT'
)


def test_columns_and_constraints_are_told_apart() -> None:
    """Commas and parentheses inside texts and expressions end nothing."""
    table = parse_table(TABLE)
    assert (table.name, table.column_names, table.options) == ("t", ["id", "order", "sum", "twice"], "STRICT")
    assert (table.primary_key, len(table.constraints)) == (["id"], 3)
    facts = [(column.type, column.not_null, column.default, column.generated) for column in table.columns]
    assert facts == [
        ("INTEGER", True, "", False),
        ("TEXT", True, "'a, (b'", False),
        ("INTEGER", False, "", False),
        ("INTEGER", False, "", True),
    ]
    assert text_key(table.create("t")) == text_key(TABLE)


def test_text_that_sqlite_edited_says_the_same() -> None:
    """Quotes that RENAME adds and white space that DROP COLUMN leaves make no difference; names that need quotes keep them."""
    former = TABLE
    for now, then in (
        ("TABLE t", "TABLE other"),
        ("id * 2", "old * 2"),
        (" id I", " old I"),
        ("(id)", "(old)"),
        ("id >", "old >"),
    ):
        former = former.replace(now, then)
    with contextlib.closing(apsw.Connection(":memory:")) as connection:
        connection.execute(former)
        connection.execute("ALTER TABLE other RENAME TO t")
        for change in ("RENAME COLUMN old TO id", "ADD COLUMN gone TEXT", "DROP COLUMN gone"):
            connection.execute(f"ALTER TABLE t {change}")
        found = str(connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").get)
    assert found != TABLE
    assert text_key(found) == text_key(TABLE)
    assert text_key('CREATE TABLE "a b" (c)') != text_key("CREATE TABLE a b (c)")


def test_what_is_no_table_is_refused() -> None:
    """It is shown."""
    with pytest.raises(StateRefused, match="is no CREATE TABLE"):
        parse_table("CREATE INDEX i ON t (a)")
