"""Parts of statements that SQLAlchemy drops without an error are found wherever they are in the statement."""

from __future__ import annotations

from sqlalchemy import Column, Integer, LargeBinary, column, insert, literal, select, table, update

from procedures import Database
from procedures.checks.statement_effects import find_silent_parts

NUMBERS = table("numbers", column("a"), column("b"))


def test_what_is_dropped_is_found_inside_as_well() -> None:
    """In a subquery; a statement of which nothing is dropped has no finding."""
    inner = select(NUMBERS.c.a.bitwise_xor(1).label("x")).subquery()
    (found,) = find_silent_parts(select(inner.c.x))
    assert "bitwise_or(b) - a.bitwise_and(b)" in found
    assert find_silent_parts(select(NUMBERS.c.a.bitwise_or(1) - NUMBERS.c.b).distinct()) == []


def test_options_of_sqlite_are_not_reported() -> None:
    """Only those of another database."""
    (found,) = find_silent_parts(update(NUMBERS).values(a=1).with_dialect_options(mysql_limit=3))
    assert found.startswith("mysql_limit")


def test_bytes_are_no_numbers_in_an_application_without_any() -> None:
    """Its bundle has no rule for bytes, so they are found; a column of them brings the rule."""
    db = Database("found")
    db.table("plain", Column("id", Integer, primary_key=True), partition_by="id")
    joined = literal(b"a") + b"b"
    for statement in (select(joined), select(joined + b"c"), insert(NUMBERS).from_select(["a"], select(joined))):
        (found, *_) = find_silent_parts(statement, db.dialect)
        assert "SQLite takes bytes for numbers" in found
    db.table("binary", Column("id", Integer, primary_key=True), Column("data", LargeBinary), partition_by="id")
    assert find_silent_parts(select(joined), db.dialect) == []
