"""Statements that a procedure builds in each call share what was compiled for the first one."""

from __future__ import annotations

import gc
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from weakref import ref

import pytest
from sqlalchemy import Column, Integer, Numeric, bindparam, func, insert, literal, or_, select, text, update
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from procedures import Database, Transaction
from procedures.execution.executor import Status
from procedures.statements import statement_runs
from procedures.statements.compiled import compile_statement
from procedures.statements.statement_runs import Runs
from tests.procedures.statements.statement_bench import MakeSite, StatementBench


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The statements that were compiled, in their order."""
    seen: list[Any] = []

    def noting(statement: Any, *args: Any, **keywords: Any) -> Any:
        seen.append(statement)
        return compile_statement(statement, *args, **keywords)

    monkeypatch.setattr(statement_runs, "compile_statement", noting)
    return seen


def runs_of(bench: StatementBench) -> Runs:
    """The statements of the procedures that write one partition."""
    transactions = bench.site.executor._catalogs[1]._transactions
    return next(iter(transactions.values()))._statements


def test_statements_that_differ_in_values_are_compiled_once(bench: StatementBench, compiled: list[Any]) -> None:
    """Each has its own values all the same: in WHERE, VALUES, SET, LIMIT, lists and upserts."""
    rows = bench.rows

    def body(tx: Transaction) -> list[Any]:
        for number in range(8):
            tx.execute(insert(rows).values(id=number, name=f"row {number}", other=number % 2))
        names = [tx.scalar(select(rows.c.name).where(rows.c.id == number, rows.c.other == number % 2)) for number in range(8)]
        assert names == [f"row {number}" for number in range(8)]
        for number in (2, 5):
            tx.execute(update(rows).where(rows.c.id == number).values(name=f"new {number}", other=rows.c.other + 10 * number))
            upsert = sqlite_insert(rows).values(id=number, name="twice")
            tx.execute(upsert.on_conflict_do_update(index_elements=["id"], set_={"other": upsert.excluded.id + number * 100}))
        assert tx.execute(select(rows.c.name, rows.c.other).where(rows.c.id == 5)).one() == ("new 5", 505)
        limited = [tx.scalars(select(rows.c.id).order_by(rows.c.id).limit(n).offset(o)) for n, o in ((2, 1), (1, 6))]
        lists = [tx.scalars(select(rows.c.id).where(rows.c.id.in_(numbers))) for numbers in ([1], [2, 9, 3], [], [4])]
        return [limited, lists]

    assert bench.run(body) == (Status.OK, [[[1, 2], [6]], [[1], [2, 3], [], [4]]])
    assert len(compiled) == 7


def test_a_statement_is_not_shared_with_one_of_another_structure(bench: StatementBench, compiled: list[Any]) -> None:
    """Another column, operator, NULL, number of conditions or a required parameter makes another form."""
    rows = bench.rows
    conditions = [
        rows.c.id == 1,
        rows.c.other == 1,
        rows.c.id > 1,
        rows.c.id == None,  # noqa: E711 - SQLAlchemy's IS NULL
        or_(rows.c.id == 1, rows.c.id == 2),
        rows.c.id == bindparam("id_1", 1),
    ]

    def body(tx: Transaction) -> list[Any]:
        tx.execute(insert(rows), [{"id": 1, "other": 2}, {"id": 2, "other": 1}])
        found = [tx.scalars(select(rows.c.id).where(condition)) for condition in conditions]
        needed = select(rows.c.id).where(rows.c.id == bindparam("id_1"))
        with pytest.raises(TypeError, match="needs a value for id_1"):
            tx.execute(needed)
        return [*found, tx.scalars(needed, id_1=2)]

    assert bench.run(body) == (Status.OK, [[1], [2], [2], [], [1, 2], [1], [2]])


def test_statements_with_exact_numbers_share_a_form_by_kind_of_value(make_site: MakeSite) -> None:
    """Digits of literals decide what is compiled: each value is compared, rounded and added as if it were alone."""
    db = Database("exact")
    t = db.table("t", Column("id", Integer, primary_key=True), Column("amount", Numeric(12, 2)), partition_by="id")
    values = [Decimal(text_) for text_ in ("1", "1.5", "10.25", "0.125", "99999999.99", "100", "7.00")]
    cases: list[Callable[[Any], Any]] = [
        lambda v: select(t.c.amount + v),
        lambda v: select(t.c.amount * v),
        lambda v: select(t.c.amount / v),
        lambda v: select(t.c.amount > v),
        lambda v: select(func.coalesce(literal(v), t.c.amount)),
        lambda v: select(t.c.amount.in_([v, Decimal("2.5")])),
        lambda v: select(t.c.amount * int(v)),
        lambda v: select(func.round(t.c.amount * Decimal("0.123"), int(v) % 5)),
    ]

    @db.procedure(partition_by="n")
    def run(tx: Transaction, n: int) -> list[str]:
        if n == 0:
            tx.execute(insert(t), id=1, amount=Decimal("10.25"))
        return [str(tx.scalar(case(value))) for case in cases for value in (values if n >= 0 else reversed(values))]

    site, other = make_site(db), make_site(db)
    forwards = site.call("run", n=0)
    assert forwards[0] == Status.OK
    assert site.call("run", n=0)[0] == Status.FAILED  # the row is there
    backwards = site.call("run", n=-1)
    other.call("run", n=0)
    fresh = other.call("run", n=-1)
    assert backwards == fresh
    count = len(values)
    chunks = [forwards[1][at : at + count] for at in range(0, len(forwards[1]), count)]
    assert [value for chunk in chunks for value in reversed(chunk)] == backwards[1]
    assert forwards[1][:3] == ["11.25", "11.75", "20.50"]


def test_a_statement_that_was_met_once_is_not_kept(bench: StatementBench) -> None:
    """Neither in the call that built it, however often that runs it, nor later; one that lives longer is found by itself."""
    rows, met = bench.rows, []
    kept = select(rows.c.id).where(rows.c.id == 3)

    def body(tx: Transaction) -> None:
        for number in range(20):
            built = select(rows.c.id).where(rows.c.id == number)
            tx.execute(built)
            tx.execute(built)
            met.append(ref(built))
            tx.execute(kept)

    for _ in range(3):
        assert bench.run(body) == (Status.OK, None)
    gc.collect()
    assert [statement() for statement in met] == [None] * 60
    assert list(runs_of(bench)) == [kept]


def test_forms_are_bounded(bench: StatementBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Statements of ever new structure take no more memory than the limit."""
    monkeypatch.setattr(statement_runs, "STATEMENTS_MAX", 10)
    rows = bench.rows

    def body(tx: Transaction) -> int:
        for count in range(30):
            tx.execute(select(rows.c.id).where(*(rows.c.id == number for number in range(count))))
            tx.execute(text(f"SELECT {count}"))
        return 1

    assert bench.run(body) == (Status.OK, 1)
    runs = runs_of(bench)
    assert max(len(table) for table in (runs, runs._forms, runs._alone)) <= 10
