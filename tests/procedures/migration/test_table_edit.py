"""The statements of an edited table: in place where SQLite can, one rewrite where it cannot."""

from __future__ import annotations

import pytest

from procedures.declaration.create_text import ColumnText
from procedures.errors import DefinitionError
from procedures.migration.table_edit import TableEdit

COLUMNS = "id INTEGER NOT NULL, a TEXT, b TEXT, g TEXT GENERATED ALWAYS AS (b) STORED"
CREATE = f"CREATE TABLE t ( {COLUMNS}, PRIMARY KEY (id), CONSTRAINT ab UNIQUE (a, b) ) STRICT"
SCHEMA = {"t": CREATE, "ix": "CREATE INDEX ix ON t (a)", "other": "CREATE INDEX other ON u (a)"}


def _edit() -> TableEdit:
    return TableEdit(CREATE, SCHEMA)


def test_addition_is_in_place() -> None:
    """One statement; nothing at all where nothing changes."""
    edit = _edit()
    assert edit.statements() == []
    edit.add_column(ColumnText("c", "c TEXT"), [])
    assert edit.statements() == ['ALTER TABLE "t" ADD COLUMN c TEXT']


def test_rewrite_copies_what_is_not_generated() -> None:
    """All edits in one rewrite, with the table's own indexes after it."""
    edit = _edit()
    edit.add_column(ColumnText("c", "c TEXT"), [])
    edit.drop_constraint("ab")
    assert edit.statements() == [
        f"CREATE TABLE _cmdlog_new_t ( {COLUMNS}, c TEXT, PRIMARY KEY (id) ) STRICT",
        'INSERT INTO "_cmdlog_new_t" ("id", "a", "b") SELECT "id", "a", "b" FROM "t"',
        'DROP TABLE "t"',
        'ALTER TABLE "_cmdlog_new_t" RENAME TO "t"',
        "CREATE INDEX ix ON t (a)",
    ]


@pytest.mark.parametrize(
    ("name", "why"), [("id", "belongs to the primary key"), ("a", "used in <CONSTRAINT ab"), ("b", "used in")]
)
def test_column_that_others_need_is_not_dropped(name: str, why: str) -> None:
    """What needs it is named."""
    with pytest.raises(DefinitionError, match=why):
        _edit().drop_column(name)


def test_column_of_a_generated_one_is_not_dropped() -> None:
    """Nor is one that is there already added."""
    edit = _edit()
    edit.drop_constraint("ab")
    with pytest.raises(DefinitionError, match="is used by column <g TEXT"):
        edit.drop_column("b")
    with pytest.raises(DefinitionError, match="has a column 'a' already"):
        edit.add_column(ColumnText("a", "a TEXT"), [])
    edit.change_column(ColumnText("a", "a INTEGER"), "1")
    with pytest.raises(DefinitionError, match="two changes of its type"):
        edit.change_column(ColumnText("a", "a TEXT"), "2")
