"""What the rows refuse reaches a procedure as SQLAlchemy's exceptions."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

import apsw
import pytest
from sqlalchemy import CheckConstraint, Column, Integer, Numeric, String, bindparam, exc, insert, select, text, update

import procedures
from procedures import Database, Transaction
from procedures.bundle_dialect import GROUPED_OPERANDS, HIDDEN_VALUES, rules_of
from procedures.execution.executor import Status
from procedures.numeric.numeric_types import numeric_as_text
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


SAID: Final = (
    ("UNIQUE constraint failed: accounts.id", "id=1"),
    ("UNIQUE constraint failed: accounts.owner", "owner='ann'"),
    ("NOT NULL constraint failed: accounts.owner", "owner=None"),
    ("CHECK constraint failed: age is plausible (table accounts)", "id=2, owner='bob', balance=None, age=500"),
    ("UNIQUE constraint failed: accounts.id", "id=1"),
    ("cannot store TEXT value in INTEGER column accounts.age", "age='old'"),
    ("accounts.balance: the new value is out of range of Numeric(12, 2)", "balance_1=1, who=1"),
)


@pytest.mark.parametrize("dialect", [HIDDEN_VALUES, GROUPED_OPERANDS])
def test_messages_name_constraint_and_columns(make_site: MakeSite, dialect: int) -> None:
    """Each kind of constraint says which it is, and where; code from before says on which values as well."""
    with rules_of(dialect):
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
    wanted = [text if dialect == HIDDEN_VALUES else f"{text}; values: {values}" for text, values in SAID]
    assert [body["message"] for body in failed] == wanted


def test_message_of_before_that_a_procedure_catches_holds_no_address(make_site: MakeSite) -> None:
    """It may return the text, and a replay compares that; a text that looks like an address is shown as it is."""
    with rules_of(GROUPED_OPERANDS):
        bench = StatementBench(make_site)

    def body(tx: Transaction) -> list[str]:
        found = []
        for value in (memoryview(b"x"), "of a 1 at 0x7f00"):
            try:
                with tx.savepoint():
                    tx.execute(insert(bench.rows), id=1, name="x", other=value)
            except IntegrityError as error:
                found.append(str(error).rpartition("values: ")[2])
        return found

    assert bench.run(body) == (Status.OK, ["other=<memory>", "other='of a 1 at 0x7f00'"])


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


def test_code_from_before_exact_decimals_fails_as_it_did(make_site: MakeSite) -> None:
    """Its outcomes are in logs, which replays compare byte for byte: type and text stay."""
    with numeric_as_text():
        db = Database("former")
        t = accounts(db)
    add = insert(t)
    values = {"id": 1, "owner": "ann", "balance": None, "age": 5}
    first, again, some, one = outcomes(
        make_site,
        db,
        (add, values),
        (add, values),
        (add, {"id": 2, "owner": "bob"}),
        (select(t.c.id).where(t.c.id == bindparam("n")), {}),
    )
    assert first is None
    assert again == {"type": "ConstraintError", "message": "UNIQUE constraint failed: accounts.id"}
    assert some == {"type": "TypeError", "message": "the statement needs a value for age, balance"}
    assert one == {"type": "TypeError", "message": "the statement needs a value for n"}
