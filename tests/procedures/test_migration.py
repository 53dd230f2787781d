"""How migrations are declared and planned."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Column, Integer

from procedures import Database, DefinitionError
from procedures.declaration.schema_plan import SchemaPlan
from procedures.errors import SchemaConflict


def _nothing(tx: Any, op: Any) -> None:
    """Changes nothing."""


def _database(*names: str) -> Database:
    db = Database("moving")
    db.table("t", Column("id", Integer, primary_key=True), partition_by="id")
    for name in names:
        db.migration(name)(_nothing)
    return db


@pytest.mark.parametrize("name", ["", "0001-a", "0001 a", "x" * 64, "ä", _nothing])
def test_name_is_checked(name: Any) -> None:
    """A forgotten pair of brackets is a name as well."""
    with pytest.raises(DefinitionError, match="0001_what_it_does"):
        Database("moving").migration(name)


def test_function_takes_tx_and_op() -> None:
    """Others are refused with what to write, and so is a name that is taken."""
    db = _database("0001")
    with pytest.raises(DefinitionError, match="declared twice"):
        db.migration("0001")
    with pytest.raises(DefinitionError, match=r"write `def _database\(tx, op\):`"):
        db.migration("0002")(_database)

    async def later(tx: Any, op: Any) -> None:
        """Never runs."""

    with pytest.raises(DefinitionError, match="plain function"):
        db.migration("0002")(later)
    assert [migration.name for migration in db.migrations] == ["0001"]


def test_plan_lists_what_is_not_done_in_order() -> None:
    """A state without tables has them all; one that an older program reads may have more."""
    db = _database("0001", "0002", "0003")
    made = {"t": db.schema_statements()[0]}
    assert db.plan_change({}, None) == SchemaPlan(tuple(db.schema_statements()), marked=("0001", "0002", "0003"))
    assert db.plan_change(made, ["0001"]) == SchemaPlan(pending=("0002", "0003"))
    assert not db.plan_change(made, ["0001", "0002", "0003", "0004"])


def test_migration_that_is_declared_too_early_is_named() -> None:
    """It would run after one that follows it."""
    db = _database("0001", "0002")
    with pytest.raises(SchemaConflict, match=r"'0001' is declared before '0002', which the state has done"):
        db.plan_change({"t": db.schema_statements()[0]}, ["0002"])
