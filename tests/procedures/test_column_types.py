"""Stored forms of column types; which types there are and what they keep is in TYPES.md (`test_types_page.py`)."""

from __future__ import annotations

import enum
import uuid
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import Column, Integer, func, select, types

from procedures import Database
from procedures.declaration.dialect import DIALECT, bind_processor_of, result_processor_of
from procedures.errors import StatementRefused
from procedures.statements.compiled import compile_statement


class Colour(enum.Enum):
    """A Python enum, as columns have them."""

    RED = "r"
    BLUE = "b"


NOON = datetime(2026, 5, 1, 12, 0, 0, 5, tzinfo=UTC)
UUID = uuid.UUID(int=7)

STORED: dict[str, tuple[Any, Any, Any]] = {
    "Enum of Python": (types.Enum(Colour), Colour.RED, "RED"),
    "Enum by value": (types.Enum(Colour, values_callable=lambda e: [m.value for m in e]), Colour.BLUE, "b"),
    "Boolean": (types.Boolean(), True, 1),
    "Numeric": (types.Numeric(12, 2), Decimal("1.20"), 120),
    "DateTime": (types.DateTime(), NOON, "2026-05-01T12:00:00.000005Z"),
    "Date": (types.Date(), date(2026, 5, 1), "2026-05-01"),
    "Time": (types.Time(), time(9, 30), "09:30:00.000000"),
    "Interval": (types.Interval(), timedelta(days=-1, microseconds=1), -86_399_999_999),
    "Uuid": (types.Uuid(), UUID, str(UUID)),
    "JSON": (types.JSON(), {"b": [1, 0.5, None], "a": "ä"}, '{"a":"ä","b":[1,0.5,null]}'),
}
"""Types whose values lie in SQLite as another one."""


def declared(type_: Any) -> Database:
    """A database with one table that has a column of the type."""
    db = Database("kinds")
    db.table("t", Column("id", Integer, primary_key=True), Column("x", type_), partition_by="id")
    return db


@pytest.mark.parametrize("name", STORED)
def test_value_is_stored_in_one_form(name: str) -> None:
    """As text or a whole number; it comes back as it was given, and so does NULL."""
    type_, value, stored = STORED[name]
    column = declared(type_).tables["t"].table.c.x
    to_sqlite, to_python = bind_processor_of(column.type), result_processor_of(column.type)
    bound = value if to_sqlite is None else to_sqlite(value)
    assert (bound, type(bound)) == (stored, type(stored)) or (bound is True and stored == 1)
    assert to_python is not None
    assert to_python(stored) == value
    assert to_python(None) is None


def test_what_would_compute_with_stored_forms_is_refused() -> None:
    """Times are text and intervals whole numbers: what SQLite would make of them otherwise is a sentence."""
    db = Database("kinds")
    table = db.table(
        "t",
        Column("id", Integer, primary_key=True),
        Column("at", types.DateTime),
        Column("day", types.Date),
        Column("spent", types.Interval),
        partition_by="id",
    )
    c = table.c
    for wrong in (
        c.at - c.at, c.at + c.spent, c.day + 1, func.sum(c.at), func.avg(c.spent), func.lag(c.at), func.round(c.spent),
    ):  # fmt: skip
        with pytest.raises(StatementRefused, match=r"in Python|needs a type"):
            compile_statement(select(wrong))
    right = select(func.sum(c.spent), c.spent + timedelta(1), func.max(c.at), func.lag(c.at, type_=types.DateTime))
    assert len(compile_statement(right.where(c.at > NOON, c.spent <= timedelta(1))).results) == 4
    assert DIALECT.name == "sqlite"
