"""Parts of statements that SQLAlchemy drops without an error are found wherever they are in the statement."""

from __future__ import annotations

from sqlalchemy import column, select, table, update

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
