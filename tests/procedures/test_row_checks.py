"""Limits that types state, held for every row that is written."""

from __future__ import annotations

from typing import Any

import apsw
import pytest
import sqlalchemy
from sqlalchemy import Column, Integer, String, bindparam, insert, select, types
from sqlalchemy.dialects import sqlite

from procedures import Database
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
