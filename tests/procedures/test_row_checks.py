"""What is held for every row that is written: limits of types, and a value that belongs to the partition."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, timedelta
from typing import Any
from uuid import UUID

import apsw
import pytest
import sqlalchemy
from sqlalchemy import Column, Integer, String, bindparam, insert, select, types
from sqlalchemy.dialects import sqlite

from procedures import Database, slot_of
from procedures.declaration.hash_slots import partition_by_slot
from procedures.errors import RowRefused
from tests.procedures.sites import Site


class Upper(types.TypeDecorator[str]):
    """A type of an application's own."""

    impl = types.String(3)
    cache_ok = True


# type, one without its limit, a value that fits, one that does not
LIMITED: dict[str, tuple[Any, Any, Any, Any]] = {
    "String(3)": (String(3), String(), "äöü", "abcd"),
    "LargeBinary(2)": (types.LargeBinary(2), types.LargeBinary(), b"ab", b"abc"),
    "SmallInteger": (types.SmallInteger(), Integer(), -32768, 32768),
    "decorated": (Upper(), String(), "abc", "abcd"),
}


@pytest.mark.parametrize("digest_rows", [True, False])
@pytest.mark.parametrize("name", LIMITED)
def test_stated_limit_holds_however_a_row_is_written(name: str, digest_rows: bool, tmp_path: Any) -> None:
    """Bound, copied from another table, as SQL text or by an upsert; the call fails even if it catches the error."""
    type_, wide_type, fits, over = LIMITED[name]
    db = Database("kinds")
    table = db.table("t", Column("id", Integer, primary_key=True), Column("x", type_), partition_by="id")
    wide = db.table("w", Column("id", Integer, primary_key=True), Column("x", wide_type), partition_by="id")
    wrong: Any = bindparam("w", type_=table.c.x.type)
    statements: dict[str, tuple[Any, dict[str, Any]]] = {
        "insert": (insert(table).values(id=bindparam("k"), x=bindparam("v")), {"k": 5, "v": over}),
        "update": (table.update().values(x=bindparam("v")).where(table.c.id == 1), {"v": over}),
        "copy": (insert(table).from_select(["id", "x"], select(wide.c.id, wide.c.x)), {}),
        "text": (sqlalchemy.text("INSERT INTO t SELECT id, x FROM w"), {}),
        "upsert": (
            sqlite.insert(table).values(id=1, x=bindparam("v")).on_conflict_do_update(["id"], set_={"x": wrong}),
            {"v": fits, "w": over},
        ),
    }  # fmt: skip

    @db.procedure(partition_by="k")
    def fill(tx: Any, k: int) -> None:
        tx.execute(insert(table).values(id=1, x=fits))
        tx.execute(insert(wide).values(id=2, x=over))

    @db.procedure(partition_by="k")
    def write(tx: Any, k: int, how: str, caught: bool) -> None:
        statement, values = statements[how]
        try:
            tx.execute(statement, **values)
        except Exception:
            if not caught:
                raise

    @db.procedure(partition_by="k")
    def find(tx: Any, k: int) -> int:
        return len(tx.execute(select(table.c.id).where(table.c.x == over)).all())

    site = Site(tmp_path / "s", db, digest_rows=digest_rows)
    assert site.call("fill", k=1)[0] == 0
    before = site.rows("SELECT * FROM t")
    for how in statements:
        for caught in (False, True):
            status, body = site.call("write", k=1, how=how, caught=caught)
            assert (status, body["type"]) == (2, "RowRefused")
            assert body["message"].startswith("column t.x: ")
    assert site.rows("SELECT * FROM t") == before
    assert site.call("find", k=1) == (0, 0)  # comparing with a longer value is no fault
    site.close()


def test_row_from_before_its_limit_can_be_changed(tmp_path: Any) -> None:
    """A value that an UPDATE leaves as it was is not judged again."""
    db = Database("old")
    table = db.table(
        "t", Column("id", Integer, primary_key=True), Column("x", String(3)), Column("n", Integer), partition_by="id"
    )

    @db.procedure(partition_by="k")
    def count(tx: Any, k: int) -> None:
        tx.execute(table.update().values(n=7))

    site = Site(tmp_path / "s", db)
    connection = apsw.Connection(str(site.path))
    connection.execute("INSERT INTO t VALUES (1, 'longer', 0)")
    connection.close()
    assert site.call("count", k=1) == (0, None)
    site.close()


def placed(kind: Any, hint: Any) -> Database:
    """A table that is partitioned by a column of the kind, and a replicated one."""
    db = Database("placed")
    table = db.table(
        "stock", Column("id", Integer, primary_key=True), Column("item", kind), Column("n", Integer), partition_by="item"
    )
    shared = db.table("shared", Column("id", Integer, primary_key=True), replicated=True)

    def put(tx: Any, item: Any, other: Any, caught: bool = False) -> None:
        try:
            tx.execute(insert(table).values(item=other, n=1))
        except RowRefused:
            if not caught:
                raise

    def move(tx: Any, item: Any, other: Any) -> None:
        tx.execute(table.update().values(item=other).where(table.c.item == item))

    def count(tx: Any, item: Any) -> int:
        return int(tx.execute(table.update().values(n=table.c.n + 1)).rowcount)

    for function in (put, move, count):
        function.__annotations__ |= {"item": hint} | ({"other": hint} if "other" in function.__annotations__ else {})
        db.procedure(partition_by="item")(function)

    @db.procedure(partition_by=None)
    def share(tx: Any, number: int) -> None:
        tx.execute(insert(shared).values(id=number))

    return db


KINDS: dict[str, tuple[Any, Any, Callable[[int], Any]]] = {
    "Integer": (Integer(), int, int),
    "String": (String(), str, str),
    "Date": (types.Date(), date, lambda n: str(date(2026, 1, 1) + timedelta(n))),
    "DateTime": (types.DateTime(), datetime, lambda n: f"2026-01-01T00:00:{n % 60:02}Z"),
    "Uuid": (types.Uuid(), UUID, lambda n: str(UUID(int=n))),
}


@pytest.mark.parametrize("digest_rows", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_row_is_written_where_its_value_belongs(kind: str, digest_rows: bool, tmp_path: Any) -> None:
    """By an insert or an update, of every kind of value, even if the call catches the error, which says what belongs where."""
    type_, hint, make = KINDS[kind]
    db = placed(type_, hint)
    site = Site(tmp_path / "s", db, digest_rows=digest_rows, partition=1, partitions=3)
    owners = partition_by_slot(3)

    def owner(value: Any) -> int:
        return owners[slot_of(db.procedures["count"].bind({"item": value})[0])]

    values = [make(n) for n in range(50)]
    here, there = ([value for value in values if (owner(value) == 1) is belongs] for belongs in (True, False))
    for value in here[:3]:
        assert site.call("put", item=here[0], other=value) == (0, None)
    before = site.rows("SELECT * FROM stock")
    for value in there[:3]:
        for call in (("put", {"other": value}), ("put", {"other": value, "caught": True}), ("move", {"other": value})):
            status, body = site.call(call[0], item=here[0], **call[1])
            assert (status, body["type"]) == (2, "RowRefused")
            assert body["message"].startswith("table stock: the row, by its item, belongs to")
            assert f"belongs to partition {owner(value)}, and this call runs on partition 1; " in body["message"]
    assert site.rows("SELECT * FROM stock") == before
    assert site.call("move", item=here[0], other=here[3]) == (0, None)
    assert site.call("share", number=1) == (0, None)
    site.close()


def test_row_without_a_partitioning_value_is_refused(tmp_path: Any) -> None:
    """NULL has no partition."""
    db = placed(Integer(), int)
    table = db.tables["stock"].table

    @db.procedure(partition_by="item")
    def lose(tx: Any, item: int) -> None:
        tx.execute(insert(table).values(n=1))

    site = Site(tmp_path / "s", db, partitions=2)
    assert "the row, by its item, has no partition" in site.call("lose", item=1)[1]["message"]
    site.close()


def test_misplaced_row_from_before_can_be_changed(tmp_path: Any) -> None:
    """A row that an older version let in is counted and deleted like any other."""
    site = Site(tmp_path / "s", placed(Integer(), int), partitions=2)
    connection = apsw.Connection(str(site.path))
    connection.executemany("INSERT INTO stock VALUES (?, ?, 1)", [(n, n) for n in range(20)])
    connection.close()
    assert site.call("count", item=1) == (0, 20)
    site.close()
