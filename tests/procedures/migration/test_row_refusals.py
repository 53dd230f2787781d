"""Rows that SQLite refuses while a change writes their table again are named, whatever rule it is."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import CheckConstraint, Column, Index, Integer, Numeric, Text, UniqueConstraint

from procedures import Database
from procedures.declaration.columns.held_values import values_shown
from procedures.errors import MigrationFailed, SchemaConflict
from tests.procedures.migration.people import ChangingSite, program

ROWS = "INSERT INTO t VALUES (1, 'one', 150), (2, 'two', 250), (3, 'three', 0), (4, 'one', NULL)"


def _refusal(path: Path, items: list[Any], run: Any = None, *, shown: bool, cents: Any = None) -> str:
    """Why the table cannot get these, by a migration or without."""

    def declare(db: Database, cents: Any, *more: Any) -> None:
        columns = Column("id", Integer, primary_key=True), Column("name", Text, nullable=False), cents
        db.table("t", *columns, *more, partition_by="id")

    site = ChangingSite(path, program(lambda db: declare(db, Column("cents", Numeric(8, 2)))))
    site.start()
    site.run_sql(ROWS)
    migrations = [("0001", lambda tx, op: run(op))] if run else []
    later = program(lambda db: declare(db, Column("cents", Numeric(8, 2)) if cents is None else cents, *items), *migrations)
    with values_shown() if shown else nullcontext(), pytest.raises(MigrationFailed if run else SchemaConflict) as refused:
        site.rehearse(later)
    site.close()
    return str(refused.value)


CHANGES: dict[str, tuple[list[Any], Any, Any, str]] = {
    "NOT NULL": (
        [],
        lambda op: op.alter_column("t", "cents", nullable=False),
        Column("cents", Numeric(8, 2), nullable=False),
        "t.cents: 1 row of t is refused; the first is id = 4, cents = None",
    ),
    "a check": (
        [CheckConstraint("id < 3", name="few")],
        lambda op: op.create_check_constraint("few", "t", "id < 3"),
        None,
        "few: 2 rows of t are refused; the first is id = 3",
    ),
    "a unique constraint": (
        [UniqueConstraint("name", name="names")],
        lambda op: op.create_unique_constraint("names", "t", ["name"]),
        None,
        "t.name: 1 row of t is refused; the first is id = 4, name = 'one'",
    ),
    "fewer digits": (
        [],
        lambda op: op.alter_column("t", "cents", type_=Numeric(2, 2)),
        Column("cents", Numeric(2, 2)),
        "2 rows of t are refused; the first is id = 1, cents = 150",
    ),
    "a unique index without a migration": (
        [Index("names", "name", unique=True)],
        None,
        None,
        "t.name: 1 row of t is refused; the first is id = 4, name = 'one'",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_rows_that_a_rule_refuses_are_named(tmp_path: Path, change: str) -> None:
    """By table, column, key, value and how many there are, where values are shown."""
    items, run, cents, why = CHANGES[change]
    assert why in _refusal(tmp_path / "a.db", items, run, cents=cents, shown=True)


def test_rows_that_are_refused_are_counted(tmp_path: Path) -> None:
    """A node says how many there are, and shows no value: its texts leave it."""
    why = _refusal(tmp_path / "a.db", [CheckConstraint("id < 3", name="few")], CHANGES["a check"][1], shown=False)
    assert "CHECK constraint failed: few: 2 rows of t are refused; nothing was changed" in why
