"""Statements in which two stored forms would meet are refused."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Date,
    DateTime,
    Integer,
    Interval,
    String,
    Time,
    Uuid,
    bindparam,
    case,
    cast,
    func,
    insert,
    literal,
    select,
    update,
)  # fmt: skip
from sqlalchemy.dialects import sqlite

from procedures import Database, StatementRefused
from procedures.declaration.stored_forms import form_of
from procedures.statements.compiled import sql_of
from tests.procedures.sites import Site

db = Database("forms")
t = db.table(
    "t", Column("id", Integer, primary_key=True), Column("day", Date), Column("at", DateTime), Column("clock", Time),
    Column("span", Interval), Column("name", String), Column("who", Uuid), Column("doc", JSON), Column("on", Boolean),
    partition_by="id",
)  # fmt: skip
c = t.c
MIDNIGHT: Final = datetime(2026, 1, 31, tzinfo=UTC)
MIXED: Final = {
    "DateTime with Date": select(c.id).where(c.at <= date(2026, 1, 31)),
    "Date with DateTime": select(c.id).where(c.day >= MIDNIGHT),
    "both columns": select(c.id).where(c.at == c.day),
    "IN": select(c.id).where(c.day.in_([MIDNIGHT])),
    "BETWEEN": select(c.id).where(c.day.between(date(2026, 1, 1), MIDNIGHT)),
    "a function": select(c.id).where(c.at > func.coalesce(c.day, c.day)),
    "IN columns": select(c.id).where(c.at.in_([c.at, c.day])),
    "DateTime with text": select(c.id).where(c.at == "2026-01-31T00:00:00Z"),
    "Time with text": select(c.id).where(c.clock > "10:00"),
    "Interval with a number": select(c.id).where(c.span > 5),
    "coalesce": select(func.coalesce(c.at, date(2026, 1, 31))),
    "CASE": select(case((c.id > 2, c.day), else_=c.at)),
    "cast": select(cast(c.day, DateTime)),
    "update DateTime": update(t).values(at=c.day),
    "update Date": update(t).values(day=c.at),
    "update Date by text": update(t).values(day=c.name),
    "update Uuid": update(t).ordered_values((c.who, c.name)),
    "update JSON": update(t).values(doc=c.name),
    "update Boolean": update(t).values(on=c.id),
    "update Interval": update(t).values(span=c.id),
    "update text by Interval": update(t).values(name=c.span),
    "insert": insert(t).values(id=1, at=literal(date(2026, 1, 31))),
    "insert rows": insert(t).values([{"id": 1, "at": literal(date(2026, 1, 31))}]),
    "insert select": insert(t).from_select(["id", "at"], select(c.id + 10, c.day)),
    "upsert": sqlite.insert(t).values(id=1).on_conflict_do_update(index_elements=["id"], set_={"at": c.day}),
}
FITTING: Final = (
    select(c.id).where(c.at > MIDNIGHT, c.day == date(2026, 1, 31), c.clock < time(1), c.span > timedelta(1)),
    select(c.id).where(c.day >= "2026-01-01", c.at == bindparam("x"), c.at.is_(None), c.at.in_(select(c.at))),
    select(c.id).group_by(c.id).having(c.id <= func.count(c.at)).where(c.at > func.coalesce(c.at, MIDNIGHT)),
    select(func.coalesce(c.at, MIDNIGHT), func.max(c.day), case((c.id > 1, c.at)), cast(c.at, String), c.doc["x"]),
    update(t).values(on=case((c.id > 1, 1), else_=0), doc=func.json_set(c.doc, "$.x", 1), at=func.max(c.at, MIDNIGHT)),
    update(t).values(day=cast(c.name, Date), name=c.day, span=c.span + timedelta(1), who=None),
)


@pytest.mark.parametrize("name", MIXED)
def test_mixed_forms_are_refused_by_name(name: str) -> None:
    """The sentence names both; wherever in a statement they meet."""
    with pytest.raises(StatementRefused, match=r"form|cannot be cast"):
        sql_of(MIXED[name])


@pytest.mark.parametrize("place", range(len(FITTING)))
def test_statements_of_one_form_are_compiled(place: int) -> None:
    """Conversions that are meant, and what has no form of its own, are left alone."""
    assert sql_of(FITTING[place])


def test_form_of_what_has_no_type_is_not_known() -> None:
    """Such an expression is left alone."""
    assert (form_of(func.json_set(c.doc, "$", 1)), form_of(c.at), form_of(5)) == (None, "DateTime", None)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A state with one row of a date alone."""
    found = Database("days")
    table = found.table(
        "days", Column("id", Integer, primary_key=True), Column("day", Date), Column("at", DateTime), partition_by="id"
    )

    @found.procedure(partition_by="row")
    def put(tx: Any, row: int) -> None:
        tx.execute(insert(table).values(id=row, day=date(2026, 1, 31)))

    @found.procedure(partition_by="row")
    def fill(tx: Any, row: int) -> None:
        tx.execute(update(table).values(at=table.c.day))

    with_state = Site(tmp_path / "s", found)
    with_state.call("put", row=1)
    yield with_state
    with_state.close()


def test_a_date_does_not_become_a_datetime_that_cannot_be_read(site: Site) -> None:
    """The call fails, and the row is as it was."""
    status, body = site.call("fill", row=1)
    assert (status, body["type"]) == (2, "StatementRefused")
    assert body["message"].startswith("column at is a DateTime, its new value a Date")
    assert site.rows("SELECT at FROM days") == [(None,)]
