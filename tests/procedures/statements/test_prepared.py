"""How values go into a statement by name."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Date,
    DateTime,
    Float,
    Integer,
    LargeBinary,
    Numeric,
    String,
    Uuid,
    bindparam,
    func,
    insert,
    select,
    update,
)

from procedures import Database, Transaction
from procedures.execution.executor import Status
from procedures.storage.row_digest import UNREADABLE
from tests.procedures.statements.statement_bench import MakeSite, StatementBench


def test_parameters_by_name_are_checked(bench: StatementBench) -> None:
    """A missing or unknown parameter of a statement is named."""
    add = insert(bench.rows).values(id=bindparam("number"), name=bindparam("label"))
    one = select(bench.rows.c.name).where(bench.rows.c.id == bindparam("number"))
    for wrong, message in (
        ({"number": 1}, "needs a value for label"),
        ({"number": 1, "label": "x", "more": 1}, "no parameter more"),
        ({"number": 1, "lable": "x"}, "needs a value for label"),
        ({}, "needs a value for label, number"),
    ):
        assert message in bench.run(lambda tx, wrong=wrong: tx.execute(add, **wrong))[1]["message"]  # type: ignore[misc]
    assert "needs a value" in bench.run(lambda tx: tx.execute(one))[1]["message"]
    assert bench.run(lambda tx: tx.execute(add, number=1, label="x").rowcount) == (Status.OK, 1)
    assert bench.run(lambda tx: tx.execute(one, number=1).scalar()) == (Status.OK, "x")


def test_constants_defaults_and_repeated_parameters(bench: StatementBench) -> None:
    """Values inside a statement, default values of parameters, and a name used twice all reach SQLite."""
    rows = bench.rows
    add = insert(rows).values(id=bindparam("number"), name="fixed", other=bindparam("other", value=7))
    twice = update(rows).where(rows.c.id == bindparam("n")).values(other=bindparam("n") + rows.c.other)
    look = select(rows.c.name, rows.c.other).where(rows.c.id == bindparam("n"), rows.c.name == "fixed").limit(5)

    def body(tx: Transaction) -> Any:
        tx.execute(add, number=3)
        tx.execute(add, number=4, other=1)
        tx.execute(twice, n=3)
        return [tuple(tx.execute(look, n=3).one()), tuple(tx.execute(look, n=4).one())]

    assert bench.run(body) == (Status.OK, [["fixed", 10], ["fixed", 1]])


def test_column_types_come_back_exactly(make_site: MakeSite) -> None:
    """Every column type stores its value exactly and gives it back as the same Python type."""
    db = Database("columns")
    kinds: dict[str, tuple[Any, Any]] = {
        "number": (Numeric(18, 10), Decimal("12345678.0123456789")),
        "real": (Float, 0.1),
        "flag": (Boolean, True),
        "moment": (DateTime, datetime(2026, 1, 31, 12, 0, 0, 5, tzinfo=UTC)),
        "day": (Date, date(2026, 1, 31)),
        "uid": (Uuid, UUID(int=77)),
        "raw": (LargeBinary, b"\x00\xff"),
        "tree": (JSON, {"b": [1, None], "a": "ü"}),
        "words": (String, "nul \x00 and \U0001f600"),
        "long": (Integer, (1 << 63) - 1),
    }
    table = db.table(
        "t",
        Column("id", Integer, primary_key=True),
        *(Column(name, kind) for name, (kind, _) in kinds.items()),
        partition_by="id",
    )
    put = insert(table).values(id=bindparam("id"), **{name: bindparam(name) for name in kinds})
    get = select(*(table.c[name] for name in kinds)).where(table.c.id == bindparam("id"))
    seen: list[Any] = []

    @db.procedure(partition_by="n")
    def run(tx: Transaction, n: int) -> None:
        tx.execute(put, id=1, **{name: value for name, (_, value) in kinds.items()})
        tx.execute(put, id=2, **dict.fromkeys(kinds))
        seen.extend([tuple(tx.execute(get, id=1).one()), tuple(tx.execute(get, id=2).one())])

    @db.procedure(partition_by="n")
    def spoil(tx: Transaction, n: int, what: str) -> None:
        wrong: dict[str, Any] = {"number": 0.5, "moment": datetime(2026, 1, 1), "day": "x", "long": "text", "words": b"x"}  # noqa: DTZ001
        values = {name: value for name, (_, value) in kinds.items()}
        tx.execute(put, id=3, **{**values, what: wrong[what]})

    site = make_site(db)
    assert site.call("run", n=1) == (Status.OK, None)
    assert seen == [tuple(value for _, value in kinds.values()), (None,) * len(kinds)]
    assert [type(value) for value in seen[0]] == [type(value) for _, value in kinds.values()]
    for what in ("number", "moment", "day", "long", "words"):
        assert site.call("spoil", n=1, what=what)[0] == Status.FAILED, what


@pytest.mark.parametrize("digest_rows", [True, False])
def test_text_that_is_no_utf8_is_written_with_and_without_digests(make_site: MakeSite, digest_rows: bool) -> None:
    """Whether changed rows are digested does not decide what a call answers; no digest and no delta comes of such a row."""
    db = Database("raw")
    rows = db.table("rows", Column("id", Integer, primary_key=True), Column("name", String), partition_by="id")
    write = insert(rows).values(id=bindparam("number"), name=func.char(bindparam("code")))

    @db.procedure(partition_by="number")
    def put(tx: Transaction, number: int, code: int) -> int:
        return tx.execute(write, number=number, code=code).rowcount

    site = make_site(db, digest_rows=digest_rows)
    changes = site.executor.gather_changes()
    if changes is not None:
        changes.cut(site.state.position, keep=())
    assert site.call("put", number=1, code=0xE9) == (Status.OK, 1)
    assert changes is None or changes.gathering
    applied = site.apply(("put", {"number": 2, "code": 0xD800}), ("put", {"number": 3, "code": 65}))
    assert applied.bodies == [b"1", b"1"]
    assert applied.rows_digest == (UNREADABLE if digest_rows else 0)
    assert changes is None or not changes.gathering
    assert site.rows("SELECT hex(name) FROM rows") == [("C3A9",), ("EDA080",), ("41",)]
