"""A state says by itself which of its columns hold exact numbers."""

from __future__ import annotations

from decimal import Decimal

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Column, Integer, Numeric

from procedures import Database
from procedures.numeric.marks import marked_numerics, numeric_digits, stored_integer


def test_marks_are_read_from_the_schema() -> None:
    """Any name, also one with quotes and blanks."""
    db = Database("marks")
    db.table(
        "t", Column("id", Integer, primary_key=True), Column("a", Numeric(12, 2)), Column('b "c" 5', Numeric(18, 0)),
        Column("order", Numeric(4, 4)), partition_by="id",
    )  # fmt: skip
    connection = apsw.Connection(":memory:")
    connection.execute(";".join(db.schema_statements()))
    assert marked_numerics(connection, "t") == {"a": (12, 2), 'b "c" 5': (18, 0), "order": (4, 4)}
    assert marked_numerics(connection, "nothing") == {}


def test_a_mark_of_more_digits_than_a_numeric_has_is_none() -> None:
    """A state from elsewhere may claim any; each value would be written with as many zeros."""
    connection = apsw.Connection(":memory:")
    connection.execute('CREATE TABLE t (a INTEGER CONSTRAINT "numeric(18,999999999) a" CHECK (1))')
    assert marked_numerics(connection, "t") == {}


@given(st.integers(-(10**18), 10**18), st.integers(0, 18))
def test_digits_are_the_number(units: int, scale: int) -> None:
    """With all decimals, and back."""
    digits = numeric_digits(units, scale)
    assert Decimal(digits) * 10**scale == units or abs(units) >= 10**18
    assert stored_integer(digits) == units
    assert len(digits.partition(".")[2]) == scale


@pytest.mark.parametrize("value", [None, "12", 1.5, b"x"])
def test_what_is_no_integer_stays_as_it_is(value: object) -> None:
    """NULL, and what a damaged state may hold."""
    assert numeric_digits(value, 2) == value
