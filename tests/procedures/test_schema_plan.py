"""From a state's tables to the declared ones: what is added, what is dropped, and what rows do not allow."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import apsw
import pytest
from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Column,
    Computed,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    Numeric,
    Text,
    UniqueConstraint,
)

from procedures import Database
from procedures.errors import SchemaConflict

Made = Sequence[Any]


def key() -> Column[int]:
    """Of every table here."""
    return Column("id", Integer, primary_key=True)


def declared(*items: Any, name: str = "t") -> Database:
    """An application with one table."""
    db = Database("shop")
    db.table(name, *items, replicated=True)
    return db


class Held:
    """Tables as SQLite has them."""

    def __init__(self, db: Database) -> None:
        self.connection = apsw.Connection(":memory:")
        self.run(db.schema_statements())

    def run(self, statements: Sequence[str]) -> None:
        for statement in statements:
            self.connection.execute(statement)

    def schema(self) -> dict[str, str]:
        """As `PartitionState.schema`."""
        rows = self.connection.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL")
        return {str(name): str(sql) for name, sql in rows}

    def become(self, db: Database) -> list[str]:
        """The statements that led to the application's tables; afterwards there are none."""
        plan = db.plan_schema(self.schema())
        self.run(plan)
        assert db.plan_schema(self.schema()) == []
        return plan


def column_of(kind: int, name: str) -> Column[Any]:
    """One of the columns that rows allow to add."""
    makes = (
        lambda: Column(name, Text),
        lambda: Column(name, Integer, nullable=False, server_default="7"),
        lambda: Column(name, Numeric(9, 3)),
        lambda: Column(name, Numeric(9, 3), nullable=False, server_default="0.125"),
        lambda: Column(name, Boolean, nullable=False, server_default="0"),
        lambda: Column(name, DateTime),
        lambda: Column(name, LargeBinary),
    )
    return makes[kind % len(makes)]()


@pytest.mark.parametrize("seed", range(20))
def test_columns_are_added_wherever_they_are_declared(seed: int) -> None:
    """In several steps, in any order, beside constraints; each step leads to the declared tables, and rows keep their values."""
    rng = random.Random(seed)
    columns = [(rng.randrange(7), f"c{n}") for n in range(rng.randint(2, 7))]
    order = rng.sample(columns, len(columns))
    more = [CheckConstraint("id > 0")] if seed % 2 else []
    held = Held(declared(key(), *more))
    held.run(["INSERT INTO t (id) VALUES (1)"])
    for count in range(1, len(order) + 1):
        present = [column for column in columns if column in order[:count]]
        rng.shuffle(columns)
        added = held.become(declared(key(), *(column_of(*column) for column in present), *more))
        assert [statement.split()[:5] for statement in added] == [["ALTER", "TABLE", "t", "ADD", "COLUMN"]]
    ((first, *_),) = held.connection.execute("SELECT * FROM t").fetchall()
    assert first == 1


def test_names_that_need_quotes_are_quoted() -> None:
    """Of tables, columns and indexes."""
    held = Held(declared(key(), name="order"))
    statements = held.become(declared(key(), Column("group", Text), Index("select", "group"), name="order"))
    assert statements[0] == 'ALTER TABLE "order" ADD COLUMN "group" TEXT'
    assert held.become(declared(key(), Column("group", Text), name="order")) == ['DROP INDEX "select"']


def test_indexes_follow_the_declaration() -> None:
    """New ones are made, other ones replaced, those of a declared table that are declared no more dropped."""

    def indexed(*indexes: Index) -> Database:
        return declared(key(), Column("a", Integer), Column("b", Integer), *indexes)

    held = Held(indexed(Index("i", "a")))
    assert held.become(indexed(Index("i", "b"))) == ["DROP INDEX i", "CREATE INDEX i ON t (b)"]
    assert held.become(indexed()) == ["DROP INDEX i"]


def test_tables_that_are_declared_no_more_stay_with_their_indexes() -> None:
    """Their rows may be wanted back."""
    held = Held(declared(key(), Column("a", Integer), Index("i", "a"), name="old"))
    assert [statement.split()[2] for statement in held.become(declared(key(), name="new"))] == ["new"]
    assert "i" in held.schema()


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ([Column("a", Text, nullable=False)], [], "column 'a' is gone"),
        ([Column("a", Text)], [Column("a", Integer)], "column 'a' is another one"),
        ([Column("a", Text)], [Column("a", Text, nullable=False)], "column 'a' is another one"),
        ([Column("a", Text, nullable=False)], [Column("b", Text)], "column 'a' is gone"),
        ([Column("a", Integer)], [Column("a", Integer), CheckConstraint("a > 3")], "its constraints are others"),
        ([Column("a", Integer)], [Column("a", Integer), UniqueConstraint("a")], "its constraints are others"),
        ([], [Column("a", Integer, nullable=False)], "'a' cannot be added .* NOT NULL and has no server_default"),
        ([], [Column("a", Integer), CheckConstraint("a > 3")], "its constraints are others"),
        ([], [Column("a", Integer, unique=True)], "its constraints are others"),
        ([], [Column("a", Integer, ForeignKey("t.id"))], "its constraints are others"),
        ([], [Column("a", Integer, Computed("id + 1", persisted=True))], "generated and stored"),
        ([Column("a", Text)], [Column("b", Text), Column("a", Integer)], "column 'a' is another one"),
        ([Column("a", Text)], [CheckConstraint("id > 3")], "differs from the state's: its constraints are others"),
    ],
)
def test_what_rows_do_not_allow_is_refused(before: Made, after: Made, why: str) -> None:
    """By name, with what differs and what to do."""
    held = Held(declared(key(), *(column._copy() for column in before)))
    with pytest.raises(SchemaConflict, match=rf"table 't'.*{why}"):
        declared(key(), *after).plan_schema(held.schema())


@pytest.mark.parametrize(
    ("items", "name", "added"),
    [([], "t", "CREATE TABLE t"), ([Column("a", Integer)], "renamed", "ALTER TABLE renamed ADD COLUMN a")],
)
def test_an_older_program_adds_nothing(items: Made, name: str, added: str) -> None:
    """A rollback after a migration that renamed a table would serve an empty one, and split the rows between both."""
    held = Held(declared(key(), name="renamed"))
    older = declared(key(), *(column._copy() for column in items), name=name)
    older.migration("0001")(lambda tx, op: None)
    assert older.plan_change(held.schema(), ["0001"]).statements
    with pytest.raises(SchemaConflict, match=f"migration '0002', which this program does not have.*{added}"):
        older.plan_change(held.schema(), ["0001", "0002"])


def test_an_older_program_runs_on_the_tables_that_it_knows() -> None:
    """Columns and tables of a newer one stay, and indexes follow the declaration."""
    held = Held(declared(key(), Column("a", Integer), Column("new", Integer), Index("i", "new")))
    assert declared(key(), Column("a", Integer)).plan_change(held.schema(), ["0001"]).statements == ("DROP INDEX i",)
