"""Foreign keys: which tables they join; what each option of a schema does is in TYPES.md (`test_types_page.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import (
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Integer,
    UniqueConstraint,
)
from sqlalchemy.schema import SchemaItem

from procedures import Database, DefinitionError

Items = Callable[[], tuple[SchemaItem, ...]]


def key() -> Column[Any]:
    """The usual first column."""
    return Column("id", Integer, primary_key=True)


def declared(items: Items) -> Database:
    """A database with a table of these items, and one that it may refer to."""
    db = Database("constructs")
    db.table("x", key(), replicated=True)
    db.table("t", *items(), replicated=True)
    return db


def refers(*items: Any, partition_by: str) -> None:
    """Declares a table with these items beside one of shops, which lie by town."""
    db = Database("towns")
    unique = UniqueConstraint("town", "id")
    db.table("shops", key(), Column("town", Integer, unique=True), Column("boss", Integer), unique, partition_by="town")
    db.table("t", key(), Column("town", Integer), Column("shop", Integer), *items, partition_by=partition_by)


def test_foreign_keys_join_partition_columns() -> None:
    """Alone or beside others; else the row that is referred to may lie on another partition, where it is not seen."""
    refers(ForeignKeyConstraint(["town"], ["shops.town"]), partition_by="town")
    refers(ForeignKeyConstraint(["shop", "town"], ["shops.id", "shops.town"]), partition_by="town")
    refers(ForeignKeyConstraint(["id", "town"], ["t.id", "t.town"]), partition_by="town")
    for columns, target, by in (
        (["shop"], ["id"], "town"),
        (["town", "shop"], ["id", "town"], "town"),
        (["town"], ["town"], "shop"),
    ):
        with pytest.raises(DefinitionError, match=r"refers to 'shops', which is partitioned by 'town': the row .* may live on"):
            refers(ForeignKeyConstraint(columns, [f"shops.{name}" for name in target]), partition_by=by)
    with pytest.raises(DefinitionError, match=r"\(shop → t.id\) refers to 't'"):
        refers(Column("up", Integer), ForeignKeyConstraint(["shop"], ["t.id"]), partition_by="town")


@pytest.mark.parametrize("replicated", [True, False])
def test_foreign_keys_join_tables_of_one_kind(replicated: bool) -> None:
    """Else a row would be removed, or added, on those partitions alone that hold no row, or one, of the other table."""
    one, other = ({"replicated": True}, {"partition_by": "id"}) if replicated else ({"partition_by": "id"}, {"replicated": True})
    db = Database("kinds")
    db.table("parents", key(), **one)
    db.table("brothers", Column("id", Integer, ForeignKey("parents.id"), primary_key=True), **one)
    late = db.table("late", key(), Column("n", Integer), **other)
    with pytest.raises(DefinitionError, match="on some partitions alone"):
        db.table("children", key(), Column("n", Integer, ForeignKey("parents.id")), **other)
    assert "children" not in db.tables
    late.append_constraint(ForeignKeyConstraint(["n"], ["parents.id"]))
    with pytest.raises(DefinitionError, match="on some partitions alone"):
        db.schema_statements()
