"""Options without effect that TYPES.md does not spell out; those of the page are held by `test_types_page`."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import DDL, Boolean, Column, Enum, Integer, Numeric, PrimaryKeyConstraint, String, event, types

from procedures import Database, DefinitionError


class Chosen(types.TypeDecorator[str]):
    """Another type for SQLite than it says, which would lose the length."""

    impl = types.String(3)
    cache_ok = True

    def load_dialect_impl(self, dialect: Any) -> Any:
        return dialect.type_descriptor(types.Text())


class SameChoice(types.TypeDecorator[str]):
    """As the documentation of SQLAlchemy has it: another type for another database alone."""

    impl = types.String(3)
    cache_ok = True

    def load_dialect_impl(self, dialect: Any) -> Any:
        return dialect.type_descriptor(types.Uuid() if dialect.name == "postgresql" else types.String(3))


class Letter(types.TypeDecorator[str]):
    """A TypeDecorator over an Enum."""

    impl = types.Enum("a", "b")
    cache_ok = True


def declared(*items: Any) -> Database:
    """A database with one table."""
    db = Database("effects")
    db.table("t", *items, partition_by="id")
    return db


def key() -> Column[Any]:
    """The usual first column."""
    return Column("id", Integer, primary_key=True)


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ((key(), Column("x", Chosen)), "load_dialect_impl chooses Text"),
        ((key(), Column("x", Enum("a", name="e", quote=True))), "leave quote out"),
        ((key(), Column("x", String(True))), "a whole number"),
        ((Column("id", Integer, primary_key=True, sqlite_on_conflict_not_null="FAIL"),), "would not look at it"),
        ((Column("id", Integer), Column("b", Integer), PrimaryKeyConstraint("id", "b", sqlite_on_conflict="X")), "one of ABORT"),
        ((key(), Column("b", Integer, autoincrement="ignore_fk")), "only a single Integer key"),
    ],
)
def test_option_without_effect_is_refused(items: tuple[Any, ...], words: str) -> None:
    """With a sentence that names it."""
    with pytest.raises(DefinitionError, match=words):
        declared(*items)


def test_options_that_say_what_holds_are_accepted() -> None:
    """A choice for another database, a conflict clause of a key, an Enum that a decorator wraps."""
    db = declared(
        Column("id", Integer, primary_key=True, sqlite_on_conflict_primary_key="IGNORE"),
        Column("a", SameChoice),
        Column("b", Letter),
        Column("c", Boolean, index=True),
        Column("d", Numeric(5, 2)),
    )
    assert "PRIMARY KEY (id) ON CONFLICT IGNORE" in db.schema_statements()[0]
    kind: Any = db.tables["t"].table.c.b.type
    assert kind.impl_instance.validate_strings


def test_ddl_that_waits_for_an_event_is_found() -> None:
    """Nothing of a state is made through SQLAlchemy, so it would never run."""
    db = declared(key(), Column("x", Enum("a", "b")))
    assert db.schema_statements()
    make: Any = DDL  # it has no annotations
    event.listen(db.tables["t"].table, "after_create", make("CREATE TRIGGER x"))
    with pytest.raises(DefinitionError, match="DDL at after_create"):
        db.schema_statements()
