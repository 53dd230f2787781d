"""Declared tables in an empty database: what SQLite or its authorizer refuses is a sentence about the table."""

from __future__ import annotations

import pytest
from sqlalchemy import Column, ForeignKey, Index, Integer, Numeric, String, func, select, text

from procedures import Database, DefinitionError
from procedures.declaration.schema_trial import try_references, try_table


def tables() -> Database:
    """Two tables, one of which refers to the other by a key that is unique through an index alone."""
    db = Database("trial")
    one = db.table("one", Column("id", Integer, primary_key=True), Column("code", String), replicated=True)
    db.table("two", Column("id", Integer, primary_key=True), Column("code", String, ForeignKey("one.code")), replicated=True)
    Index("by_code", one.c.code, unique=True)
    return db


def test_a_reference_is_judged_when_all_is_declared() -> None:
    """The index that makes it unique may be declared after both tables."""
    db = tables()
    try_references(db.metadata.tables.values())
    assert len(db.schema_statements()) == 3
    db.tables["one"].table.indexes.clear()
    with pytest.raises(DefinitionError, match=r"table 'one': foreign key mismatch.*unique as a whole"):
        try_references(db.metadata.tables.values())


def test_a_default_may_ask_other_tables() -> None:
    """Its expression is compiled with them; a function of chance in it is refused, and what to use is said."""
    db = Database("trial")
    rates = db.table("rates", Column("id", Integer, primary_key=True), Column("rate", Integer), replicated=True)
    rate = select(func.max(rates.c.rate)).scalar_subquery()
    price = Column("price", Numeric(9, 2), default=lambda tx: 1)
    table = db.table("t", Column("id", Integer, primary_key=True), Column("n", Integer, default=rate), price, partition_by="id")
    try_table(table)
    with pytest.raises(DefinitionError, match=r"column u.n: onupdate: function random .* use tx\.random"):
        db.table("u", Column("id", Integer, primary_key=True), Column("n", Integer, onupdate=text("random()")), replicated=True)
    assert "u" not in db.metadata.tables


def test_a_refused_table_leaves_no_trace() -> None:
    """Also where SQLAlchemy itself refuses it: the name is free."""
    db = Database("trial")
    for wrong in (Column("", Integer), Column("n", Integer, ForeignKey("t.zz"))):
        with pytest.raises(DefinitionError):
            db.table("t", Column("id", Integer, primary_key=True), wrong, partition_by="id")
    db.table("t", Column("id", Integer, primary_key=True), partition_by="id")


def test_an_added_index_is_judged_with_the_tables() -> None:
    """It is not there when its table is declared."""
    db = tables()
    Index("late", func.random(), _table=db.tables["one"].table)
    with pytest.raises(DefinitionError, match="index 'late' of table 'one': function random"):
        db.check_tables()
