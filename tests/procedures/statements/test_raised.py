"""What the rows refuse reaches a procedure as SQLAlchemy's exceptions."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

import apsw
import pytest
from sqlalchemy import CheckConstraint, Column, Integer, Numeric, String, bindparam, exc, insert, select, text, update

import procedures
from procedures import Database, Transaction
from procedures.execution.executor import Status
from procedures.statements.raised import DataError, IntegrityError, OperationalError
from tests.procedures.statements.statement_bench import MakeSite, StatementBench


def accounts(db: Database) -> Any:
    """A table with a constraint of each kind."""
    return db.table(
        "accounts",
        Column("id", Integer, primary_key=True),
        Column("owner", String, nullable=False, unique=True),
        Column("balance", Numeric(12, 2)),
        Column("age", Integer),
        CheckConstraint("age < 200", name="age is plausible"),
        partition_by="id",
    )


def outcomes(make_site: MakeSite, db: Database, *statements: tuple[Any, dict[str, Any]]) -> list[Any]:
    """Bodies of calls that each run one statement."""
    chosen: list[tuple[Any, dict[str, Any]]] = []

    @db.procedure(partition_by="n")
    def run(tx: Transaction, n: int) -> None:
        tx.execute(chosen[0][0], **chosen[0][1])

    site, bodies = make_site(db), []
    for pair in statements:
        chosen[:] = [pair]
        bodies.append(site.call("run", n=1)[1])
    return bodies


SAID: Final = [
    "UNIQUE constraint failed: accounts.id",
    "UNIQUE constraint failed: accounts.owner",
    "NOT NULL constraint failed: accounts.owner",
    "CHECK constraint failed: age is plausible (table accounts)",
    "UNIQUE constraint failed: accounts.id",
    "cannot store TEXT value in INTEGER column accounts.age",
    "accounts.balance: the new value is out of range of Numeric(12, 2)",
]


def test_messages_name_constraint_and_columns(make_site: MakeSite) -> None:
    """Each kind of constraint says which it is, and where."""
    db = Database("refusals")
    t = accounts(db)
    add = insert(t)
    first, *failed = outcomes(
        make_site,
        db,
        (add, {"id": 1, "owner": "ann", "balance": Decimal("9999999999.00"), "age": 5}),
        (add, {"id": 1, "owner": "bob", "balance": None, "age": 5}),
        (add, {"id": 2, "owner": "ann", "balance": None, "age": 5}),
        (add, {"id": 2, "owner": None, "balance": None, "age": 5}),
        (add, {"id": 2, "owner": "bob", "balance": None, "age": 500}),
        (insert(t).values(id=1, owner="built"), {}),
        (add, {"id": 2, "owner": "bob", "balance": None, "age": "old"}),
        (update(t).where(t.c.id == bindparam("who")).values(balance=t.c.balance + 1), {"who": 1}),
    )
    assert first is None
    assert {body["type"] for body in failed} == {"IntegrityError"}
    assert [body["message"] for body in failed] == SAID


def test_exceptions_are_those_of_sqlalchemy_and_of_apsw(bench: StatementBench) -> None:
    """Code that knows either catches it, and finds constraint, table, columns and values in it."""
    rows = bench.rows
    seen: list[Any] = []

    def body(tx: Transaction) -> str:
        tx.execute(insert(rows), id=1, name="x", other=1)
        for kind in (exc.IntegrityError, exc.DBAPIError, apsw.ConstraintError, procedures.IntegrityError, IntegrityError):
            try:
                tx.execute(insert(rows), id=1, name="x", other=1)
            except kind as error:
                seen.append(error)
        return str(len(tx.execute(select(rows)).all()))

    assert bench.run(body) == (Status.OK, "1")
    assert len(seen) == 5
    error = seen[0]
    assert (error.constraint, error.table, error.columns) == ("UNIQUE", "rows", ("id",))
    assert error.params == {"id": 1, "name": "x", "other": 1}
    assert isinstance(error.orig, apsw.ConstraintError)
    assert error.__cause__ is error.orig


@pytest.mark.parametrize(
    ("statement", "kind", "message"),
    [
        (text("SELECT sum(column1) FROM (VALUES (9223372036854775807), (1))"), OperationalError, "integer overflow"),
        (text("SELECT json_extract('{', '$')"), OperationalError, "malformed JSON"),
        (text("SELECT length(zeroblob(2000000000))"), DataError, "too big"),
    ],
)
def test_relatives_are_raised_too(bench: StatementBench, statement: Any, kind: type[Exception], message: str) -> None:
    """A statement that fails on its values raises what SQLAlchemy has for it."""

    def body(tx: Transaction) -> None:
        with pytest.raises(kind, match=message):
            tx.execute(statement)

    assert bench.run(body) == (Status.OK, None)
