"""No text of an error that the framework makes shows a value of a row; code bundles of before keep their texts."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from itertools import product
from typing import Any, Final
from uuid import UUID

import pytest
from sqlalchemy import (
    JSON,
    Boolean,
    CheckConstraint,
    Column,
    Computed,
    Date,
    DateTime,
    Enum,
    Float,
    ForeignKey,
    Index,
    Integer,
    Interval,
    LargeBinary,
    Numeric,
    SmallInteger,
    String,
    Time,
    UniqueConstraint,
    Uuid,
    bindparam,
    cast,
    func,
    insert,
    literal,
    select,
    text,
    type_coerce,
    update,
)

from procedures import Database, Transaction
from procedures.execution.failure_trace import FailureTracer
from procedures.statements.raised import IntegrityError
from tests.procedures.statements.statement_bench import MakeSite

MARK: Final = "7341"  # in every value, and in nothing else


class Colour(enum.Enum):
    RED = "red"


def types_of_columns() -> dict[str, Any]:
    """One of each type."""
    return {
        "whole": Integer(), "small": SmallInteger(), "word": String(3), "colour": Enum(Colour), "flag": Boolean(),
        "number": Float(), "data": LargeBinary(3), "at": DateTime(), "day": Date(), "clock": Time(), "span": Interval(),
        "ident": Uuid(), "doc": JSON(), "due": Numeric(6, 2),
    }  # fmt: skip


VALUES: Final = (
    f"mark{MARK}", 73417341, -(1 << 70) - 7341, Decimal("7341.7341"), Decimal("73417341"), Decimal("sNaN7341"),
    7341.7341, b"mark7341", datetime(2026, 7, 3, 4, 1, tzinfo=UTC),
    datetime.fromisoformat("7341-01-01"), date(7341, 1, 1), time(7, 34, 1, 734100),
    timedelta(microseconds=7341), UUID(int=0x7341 << 64), ["mark7341"], {"mark7341": object()}, memoryview(b"mark7341"),
)  # fmt: skip
Body = Callable[[Transaction], Any]


def tables(db: Database) -> tuple[Any, Any]:
    """A column of each type, and a constraint of each kind."""
    marked = db.table(
        "marked",
        Column("id", Integer, primary_key=True),
        *(Column(name, type_) for name, type_ in types_of_columns().items()),
        partition_by="id",
    )
    ruled = db.table(
        "ruled",
        Column("id", Integer, primary_key=True),
        Column("owner", String, nullable=False, unique=True),
        Column("lower", String, Computed("lower(owner)", persisted=True)),
        Column("age", Integer, CheckConstraint("age < 200", name="age is plausible")),
        Column("due", Numeric(6, 2)),
        UniqueConstraint("age", "due", name="one of an age"),
        Index("by_name", func.lower(text("owner")), unique=True),
        CheckConstraint("owner != 'nobody'"),
        partition_by="id",
    )
    db.table("parts", Column("n", Integer, primary_key=True), Column("of", ForeignKey("ruled.id")), partition_by="of")
    return marked, ruled


def run_text(tx: Transaction, sql: str, value: Any) -> None:
    """A statement in SQL."""
    tx.execute(text(sql), {"value": value})


WAYS: Final[tuple[Callable[..., Any], ...]] = (
    lambda tx, table, name, value: tx.execute(insert(table), {"id": 1, name: value}),
    lambda tx, table, name, value: tx.execute(insert(table).values(**{"id": 1, name: value})),
    lambda tx, table, name, value: tx.execute(select(table.c.id).where(table.c[name] == value)).all(),
    lambda tx, table, name, value: tx.execute(select(table.c.id).where(table.c[name].in_([value]))).all(),
    lambda tx, table, name, value: tx.execute(select(type_coerce(literal(value), table.c[name].type))).all(),
    lambda tx, table, name, value: tx.execute(select(cast(literal(value), table.c[name].type))).all(),
    lambda tx, table, name, value: tx.execute(select(table.c[name] + value)).all(),
)


def add_two(tx: Transaction, table: Any, first: dict[str, Any], second: dict[str, Any]) -> None:
    """The second one may be refused beside the first."""
    tx.execute(insert(table), first)
    tx.execute(insert(table), second)


def change_one(tx: Transaction, table: Any, row: dict[str, Any], change: dict[str, Any]) -> None:
    """The change may be refused."""
    tx.execute(insert(table), row)
    tx.execute(update(table), change)


def statements(marked: Any, ruled: Any) -> Iterator[Body]:
    """What may fail on a value: each type with each value, written, compared, read and computed with; each constraint."""
    for name, way, value in product(types_of_columns(), WAYS, VALUES):
        yield partial(way, table=marked, name=name, value=value)
    row = {"id": 73417341, "owner": f"Mark{MARK}", "age": 7, "due": Decimal("9999.99")}
    for change in (
        {"id": 73417341}, {"owner": f"Mark{MARK}"}, {"owner": f"mark{MARK}"}, {"owner": None}, {"owner": b"mark7341"},
        {"age": 73417341}, {"age": f"mark{MARK}"}, {"due": Decimal("7341.7341")}, {"due": Decimal(73417341)},
    ):  # fmt: skip
        yield partial(add_two, table=ruled, first=row, second=row | {"id": 2, "owner": "x"} | change)
        yield partial(change_one, table=ruled, row=row, change=change)
    yield partial(add_two, table=ruled, first=row, second=row)
    more = update(ruled).values(due=ruled.c.due + bindparam("more"))
    yield lambda tx: (tx.execute(insert(ruled), row), tx.execute(more, more=7341))
    yield lambda tx: tx.execute(select(ruled.c.due / 0 + 73417341)).all()
    yield lambda tx: tx.execute(select(ruled.c.id).where(ruled.c.id == 73417341)).all()
    yield lambda tx: tx.execute(update(ruled).where(ruled.c.id == bindparam("who")).values(age=1), who=73417341)
    for sql in (
        "SELECT json_extract('{}', :value)", "SELECT json_extract(:value, '$')", "SELECT json_object(:value, 1, 2)",
        "SELECT numeric_add(:value, 1)", "SELECT numeric_cast(:value, 2, 10)", "SELECT numeric_avg(:value)", "SELECT abs(:value)",
        "SELECT 'x' LIKE 'y' ESCAPE :value", "SELECT unistr(:value)", "SELECT json_each.key FROM json_each('{}', :value)",
        "SELECT sum(column1) FROM (VALUES (9223372036854775807), (:value))", "SELECT ntile(:value) OVER ()",
        "SELECT printf(:value, 1, 2)", "SELECT zeroblob(:value * 1000)", "INSERT INTO marked (id, flag) VALUES (1, :value)",
        "INSERT INTO parts VALUES (1, :value)",
    ):  # fmt: skip
        for value in (f"mark{MARK}", f"\\mark{MARK}", f"${MARK}[", 73417341, 7341.7341, b"mark7341"):
            yield partial(run_text, sql=sql, value=value)


def failures(make_site: MakeSite, *, partition: int = 0, partitions: int | None = None) -> list[str]:
    """Texts of all that fails: as its caller gets it, as a procedure that catches it does, and as the node's log has it."""
    db = Database("marks")
    marked, ruled = tables(db)
    running: list[Body] = []
    caught: list[str] = []

    @db.procedure(partition_by="n")
    def run(tx: Transaction, n: int) -> None:
        try:
            running[0](tx)
        except Exception as error:
            caught.extend((str(error), repr(error)))
            raise
        tx.abort("done", "nothing failed")

    site = make_site(db, partition=partition, partitions=partitions)
    site.executor._tracer = FailureTracer(now=iter(range(1 << 20)).__next__)
    texts = []
    for body in statements(marked, ruled):
        running[:] = [body]
        _, answer = site.call("run", n=1)
        if answer.get("code") != "done":
            texts.append(f"{answer['type']}: {answer['message']}")
            texts += [trace.text for trace in site.executor._tracer.take_traces()]
    return [*texts, *caught]


@pytest.mark.slow
@pytest.mark.parametrize("partition", [0, 1])
def test_no_text_of_an_error_shows_a_value(make_site: MakeSite, partition: int) -> None:
    """Whatever a statement fails on: neither the outcome, nor the exception, nor the trace."""
    texts = failures(make_site, partition=partition, partitions=2)
    assert len(texts) > 1000
    assert [text for text in texts if MARK in text] == []


def test_values_are_in_the_exception(make_site: MakeSite) -> None:
    """A procedure that catches it finds there what the text leaves out."""
    db = Database("kept")
    _, ruled = tables(db)
    found: list[Any] = []

    @db.procedure(partition_by="n")
    def run(tx: Transaction, n: int) -> None:
        for owner in ("ann", None):
            try:
                tx.execute(insert(ruled), id=n, owner=owner, age=None, due=None)
            except IntegrityError as error:
                params: Any = error.params
                found.append((error.constraint, error.table, error.columns, params["owner"]))

    make_site(db).call("run", n=1)
    assert found == [("NOT NULL", "ruled", ("owner",), None)]
