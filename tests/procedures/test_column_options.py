"""The table of schema constructs: each has an effect here, or is refused when it is declared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import apsw
import pytest
from sqlalchemy import (
    CheckConstraint,
    Column,
    Computed,
    FetchedValue,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Sequence,
    String,
    Table,
    UniqueConstraint,
    column,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ExcludeConstraint
from sqlalchemy.schema import SchemaItem

from procedures import Database, DefinitionError
from procedures.deployed_code import deployed_code

Items = Callable[[], tuple[SchemaItem, ...]]


def key() -> Column[Any]:
    """The usual first column."""
    return Column("id", Integer, primary_key=True)


# construct -> items, and what the DDL holds of it
WORKS: dict[str, tuple[Items, str]] = {
    "nullable": (lambda: (key(), Column("n", Integer, nullable=False)), "n INTEGER NOT NULL"),
    "unique column": (lambda: (key(), Column("n", Integer, unique=True)), "UNIQUE (n)"),
    "indexed column": (lambda: (key(), Column("n", Integer, index=True)), "CREATE INDEX ix_t_n ON t (n)"),
    "comment, doc and info": (lambda: (key(), Column("n", Integer, comment="c", doc="d", info={"i": 1})), "n INTEGER"),
    "quoted name": (lambda: (key(), Column("N m", Integer)), '"N m" INTEGER'),
    "primary key constraint": (
        lambda: (Column("a", Integer, nullable=False), Column("id", String, nullable=False), PrimaryKeyConstraint("a", "id")),
        "PRIMARY KEY (a, id)",
    ),
    "unique constraint": (
        lambda: (key(), Column("n", Integer), UniqueConstraint("n", "id", name="u")), "CONSTRAINT u UNIQUE (n, id)",
    ),
    "unique constraint that replaces": (
        lambda: (key(), Column("n", Integer), UniqueConstraint("n", sqlite_on_conflict="REPLACE")), "ON CONFLICT REPLACE",
    ),
    "check constraint": (lambda: (key(), Column("n", Integer), CheckConstraint("n > 0")), "CHECK (n > 0)"),
    "check of an expression": (lambda: (key(), Column("n", Integer), CheckConstraint(column("n") > 1)), "CHECK (n > 1)"),
    "foreign key": (lambda: (key(), Column("n", Integer, ForeignKey("x.id"))), "FOREIGN KEY(n) REFERENCES x (id)"),
    "foreign key without a type": (lambda: (key(), Column("n", ForeignKey("x.id"))), "n INTEGER"),
    "foreign key with actions": (
        lambda: (key(), Column("n", Integer, ForeignKey("x.id", ondelete="CASCADE", onupdate="SET NULL"))),
        "ON DELETE CASCADE ON UPDATE SET NULL",
    ),
    "foreign key to itself": (lambda: (key(), Column("n", Integer, ForeignKey("t.id"))), "REFERENCES t (id)"),
    "composite foreign key": (
        lambda: (key(), Column("n", Integer), ForeignKeyConstraint(["n"], ["x.id"])), "FOREIGN KEY(n) REFERENCES x (id)",
    ),
    "generated column": (
        lambda: (key(), Column("n", Integer, Computed("id + 1", persisted=True))), "GENERATED ALWAYS AS (id + 1) STORED",
    ),
    "identity": (lambda: (Column("k", Integer, Identity(), primary_key=True), Column("id", Integer)), "k INTEGER NOT NULL"),
    "numbered key": (
        lambda: (Column("k", Integer, primary_key=True, autoincrement=True), Column("id", Integer)), "PRIMARY KEY (k)",
    ),
    "composite key without numbers": (
        lambda: (Column("id", Integer, primary_key=True, autoincrement=False), Column("b", Integer, primary_key=True)),
        "PRIMARY KEY (id, b)",
    ),
    "index of an expression": (
        lambda: (key(), Column("n", String), Index("i", func.lower(column("n")))), "CREATE INDEX i ON t (lower(n))",
    ),
    "part index": (
        lambda: (key(), Column("n", Integer), Index("i", "n", sqlite_where=text("n > 0"))), "CREATE INDEX i ON t (n) WHERE n > 0",
    ),
    "unique index": (lambda: (key(), Column("n", Integer), Index("i", "n", unique=True)), "CREATE UNIQUE INDEX i"),
    "server default": (lambda: (key(), Column("n", Integer, server_default="5")), "DEFAULT '5'"),
}  # fmt: skip

IS_REFUSED: dict[str, tuple[Items, str]] = {
    "key of another name": (lambda: (key(), Column("n", Integer, key="m")), "one name"),
    "system column": (lambda: (key(), Column("n", Integer, system=True)), "system"),
    "numbers switched off": (lambda: (Column("id", Integer, primary_key=True, autoincrement=False),), "leave the argument out"),
    "numbers of another column": (
        lambda: (Column("id", Integer, primary_key=True, autoincrement=True), Column("b", Integer, primary_key=True)),
        "give the value",
    ),
    "server_onupdate": (lambda: (key(), Column("n", Integer, server_onupdate=FetchedValue())), "onupdate=lambda tx"),
    "fetched default": (lambda: (key(), Column("n", Integer, server_default=FetchedValue())), "constant"),
    "column option of another database": (lambda: (key(), Column("n", Integer, mssql_identity_start=1)), "another database"),
    "index option of another database": (
        lambda: (key(), Column("n", Integer), Index("i", "n", postgresql_using="gin")), "postgresql_using",
    ),
    "constraint of another database": (lambda: (key(), Column("n", Integer), ExcludeConstraint(("n", "="))), "in the procedure"),
    "deferrable foreign key": (lambda: (key(), Column("n", Integer, ForeignKey("x.id", deferrable=True))), "deferrable"),
    "foreign key checked later": (lambda: (key(), Column("n", Integer, ForeignKey("x.id", initially="DEFERRED"))), "deferrable"),
    "deferrable check": (lambda: (key(), CheckConstraint("id > 0", deferrable=True)), "deferrable"),
    "foreign key with MATCH": (lambda: (key(), Column("n", Integer, ForeignKey("x.id", match="FULL"))), "MATCH"),
    "foreign key to nothing": (lambda: (key(), Column("n", Integer, ForeignKey("y.id"))), "first"),
    "foreign key to another database": (
        lambda: (key(), Column("n", Integer, ForeignKey(Table("o", MetaData(), key()).c.id))), "another database",
    ),
    "virtual column": (lambda: (key(), Column("n", Integer, Computed("id + 1"))), "persisted=True"),
    "sequence": (lambda: (key(), Column("n", Integer, Sequence("s"))), "no sequences"),
}  # fmt: skip


def declared(items: Items) -> Database:
    """A database with a table of these items, and one that it may refer to."""
    db = Database("constructs")
    db.table("x", key(), replicated=True)
    db.table("t", *items(), replicated=True)
    return db


@pytest.mark.parametrize("name", WORKS)
def test_construct_has_its_effect(name: str) -> None:
    """It is part of the schema, and SQLite accepts it."""
    items, words = WORKS[name]
    statements = declared(items).schema_statements()
    assert words in " ; ".join(statements)
    connection = apsw.Connection(":memory:")
    for statement in statements:
        connection.execute(statement)


@pytest.mark.parametrize("name", IS_REFUSED)
def test_construct_without_effect_is_refused(name: str) -> None:
    """When it is declared, with a sentence; the table leaves no trace."""
    items, words = IS_REFUSED[name]
    with pytest.raises(DefinitionError, match=words):
        declared(items)


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
    with deployed_code():
        refers(ForeignKeyConstraint(["shop"], ["shops.id"]), partition_by="town")


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
