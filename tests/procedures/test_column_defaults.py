"""Values of columns that a statement leaves out: constants, functions of the transaction, expressions, numbers."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pytest
from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    DateTime,
    Identity,
    Integer,
    Interval,
    Numeric,
    Uuid,
    column,
    false,
    func,
    insert,
    select,
    update,
)

from procedures import Database, DefinitionError
from tests.procedures.sites import START_MS, Call, Site


def test_column_that_routes_has_no_default() -> None:
    """A value that a row is partitioned by comes from the caller, or the row would belong elsewhere."""
    for routing in (Column("id", Integer, primary_key=True, default=5), Column("id", Integer, Identity(), primary_key=True)):
        with pytest.raises(DefinitionError, match="the caller gives its value"):
            Database("routes").table("t", routing, partition_by="id")


def orders() -> Database:
    """A table with a default of every kind."""
    db = Database("orders")
    table = db.table(
        "orders",
        Column("number", Integer, Identity(), primary_key=True),
        Column("customer", Integer),
        Column("ident", Uuid, default=lambda tx: tx.uuid()),
        Column("made", DateTime, default=lambda tx: tx.now),
        Column("changed", DateTime, default=lambda tx: tx.now, onupdate=lambda tx: tx.now),
        Column("version", Integer, default=1, onupdate=column("version", Integer) + 1),
        Column("price", Numeric(12, 2), default=Decimal("9.5")),
        Column("open", Boolean, default=True, onupdate=False),
        Column("tags", JSON, default=lambda tx: ["new"]),
        Column("wait", Interval, default=timedelta(seconds=2)),
        Column("size", Integer, default=func.abs(-7)),
        Column("paid", Boolean, server_default=false()),
        partition_by="customer",
    )

    @db.procedure(partition_by="customer")
    def order(tx: Any, customer: int) -> None:
        tx.execute(insert(table).values(customer=customer))

    @db.procedure(partition_by="customer")
    def order_two(tx: Any, customer: int) -> None:
        tx.execute(insert(table).values([{"customer": customer}, {"customer": customer}]))

    @db.procedure(partition_by="customer")
    def order_own(tx: Any, customer: int) -> None:
        tx.execute(insert(table).values(customer=customer, version=7, made=None, tags=[]))

    @db.procedure(partition_by="customer")
    def reprice(tx: Any, customer: int, numbers: list[int]) -> None:
        tx.execute(update(table).where(table.c.number.in_(numbers)).values(price=Decimal(1)))

    @db.procedure(partition_by="customer")
    def order_some(tx: Any, customer: int) -> None:
        tx.execute(insert(table), {"customer": customer})
        tx.execute(insert(table), [{"customer": customer, "version": 5}, {"customer": customer, "version": 6}])

    @db.procedure(partition_by="customer")
    def repeat(tx: Any, customer: int) -> None:
        tx.execute(insert(table).from_select(["customer"], select(table.c.customer)))

    @db.procedure(partition_by="customer", read_only=True)
    def show(tx: Any, customer: int) -> list[Any]:
        found = tx.execute(select(table).order_by(table.c.number)).all()
        return [[str(value) for value in row] for row in found]

    return db


def shown(site: Site) -> list[Any]:
    """All orders by number, each value as text."""
    _, bodies = site.executor.read([(site.numbers["show"], [1])], catalog=1)
    rows: list[Any] = orjson.loads(bodies[0][1])
    return rows


def test_left_out_columns_get_their_defaults(tmp_path: Path) -> None:
    """Constants, functions of the transaction and expressions, each as its type stores it; given values are kept."""
    site = Site(tmp_path / "s", orders())
    assert site.call("order", customer=1)[0] == 0
    assert site.call("order_own", customer=1)[0] == 0
    first, own = shown(site)
    now = str(datetime.fromtimestamp((START_MS + 1) / 1000, UTC))
    assert first[:2] == ["1", "1"]
    assert uuid.UUID(first[2]).version == 4
    assert first[3:] == [now, now, "1", "9.50", "True", "['new']", "0:00:02", "7", "False"]
    assert (own[3], own[5], own[8]) == ("None", "7", "[]")
    site.close()


def test_rows_given_as_parameters_get_defaults(tmp_path: Path) -> None:
    """Each row of an execution with several has its own values of the functions."""
    site = Site(tmp_path / "s", orders())
    assert site.call("order_some", customer=1) == (0, None)
    rows = shown(site)
    assert [(row[0], row[5], row[9]) for row in rows] == [("1", "1", "0:00:02"), ("2", "5", "0:00:02"), ("3", "6", "0:00:02")]
    assert len({row[2] for row in rows}) == 3
    site.close()


def test_update_sets_what_it_leaves_out(tmp_path: Path) -> None:
    """`onupdate` of every kind, also where the length of a list makes the text anew."""
    site = Site(tmp_path / "s", orders())
    site.apply(("order", {"customer": 1}), ("order", {"customer": 1}))
    site.call("reprice", customer=1, numbers=[1, 2])
    site.call("reprice", customer=1, numbers=[2])
    first, second = shown(site)
    assert (first[5], second[5]) == ("2", "3")
    assert first[4] < second[4]
    assert first[3] == second[3] < first[4]
    assert (first[6], first[7]) == ("1.00", "False")
    site.close()


def test_function_is_called_for_each_row_that_is_given(tmp_path: Path) -> None:
    """Several rows of one INSERT get values of their own; an INSERT … SELECT calls it once, as SQLAlchemy does."""
    site = Site(tmp_path / "s", orders())
    assert site.call("order_two", customer=1)[0] == 0
    assert len({row[2] for row in shown(site)}) == 2
    assert site.call("repeat", customer=1)[0] == 0
    assert [row[0] for row in shown(site)] == ["1", "2", "3", "4"]
    assert len({row[2] for row in shown(site)}) == 3
    site.close()


def test_defaults_repeat_in_every_run(tmp_path: Path) -> None:
    """Another site that runs the same batches, with or without savepoints, has the same rows and digests."""
    calls: list[Call] = [
        ("order", {"customer": 1}),
        ("order_two", {"customer": 1}),
        ("reprice", {"customer": 1, "numbers": [1, 3]}),
    ]
    sites = [Site(tmp_path / name, orders()) for name in ("a", "b")]
    applied = [sites[0].apply(*calls), sites[1].apply(*calls, keys=[b"k" * 16, b"l" * 16, b"m" * 16])]
    assert applied[0].statuses == applied[1].statuses == bytearray(3)
    assert shown(sites[0]) == shown(sites[1])
    for site in sites:
        site.close()
