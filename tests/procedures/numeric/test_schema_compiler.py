"""CREATE statements of exact numbers."""

from __future__ import annotations

from sqlalchemy import Column, Computed, Integer, Numeric, column

from procedures import Database


def test_a_column_is_an_integer_with_a_range() -> None:
    """The range is that of its digits, and its name is the mark; a generated column is in units."""
    db = Database("schema")
    db.table(
        "t", Column("id", Integer, primary_key=True), Column("a", Numeric(4, 2), nullable=False, server_default="0.5"),
        Column("double", Numeric(10, 4), Computed(column("a") * 2, persisted=True)), partition_by="id",
    )  # fmt: skip
    (statement,) = db.schema_statements()
    assert 'a INTEGER DEFAULT 50 NOT NULL CONSTRAINT "numeric(4,2) a" CHECK (a BETWEEN -9999 AND 9999)' in statement
    assert "AS (((a * 2) * 100)) STORED" in statement
    assert statement.endswith("STRICT")
