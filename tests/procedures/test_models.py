"""Classes as declarations of tables."""

from __future__ import annotations

import enum
import uuid
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import pytest
from sqlalchemy import (
    CheckConstraint,
    Column,
    ForeignKey,
    Integer,
    Numeric,
    String,
    Table,
    bindparam,
    delete,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    aliased,
    column_property,
    deferred,
    load_only,
    mapped_column,
    relationship,
    validates,
)

from procedures import Database, DefinitionError
from procedures.errors import StatementRefused
from procedures.statements.compiled import compile_statement
from tests.procedures.sites import Site

Money = Annotated[Decimal, mapped_column(Numeric(12, 2))]
Key = Annotated[int, mapped_column(primary_key=True)]


class Kind(enum.Enum):
    """A Python enum, which `Mapped` knows."""

    OPEN = "o"
    CLOSED = "c"


def ledger() -> Database:
    """A bank of classes, with a procedure that uses every verb."""
    db = Database("ledger")

    class Account(db.Model):  # type: ignore[misc,name-defined]
        __tablename__ = "accounts"
        __partition_by__ = "id"
        __table_args__ = (CheckConstraint("length(owner) > 0"), {"comment": "who owns what"})

        id: Mapped[Key]
        owner: Mapped[str] = mapped_column(String(10))
        balance: Mapped[Money] = mapped_column(default=Decimal(0))
        kind: Mapped[Kind] = mapped_column(default=Kind.OPEN)
        opened: Mapped[datetime] = mapped_column(default=lambda tx: tx.now)
        note: Mapped[str | None]

    class Entry(db.Model):  # type: ignore[misc,name-defined]
        __tablename__ = "entries"
        __partition_by__ = "account"

        id: Mapped[Key]
        account: Mapped[int] = mapped_column(ForeignKey("accounts.id"), index=True)
        amount: Mapped[Money]

    class Rate(db.Model):  # type: ignore[misc,name-defined]
        __tablename__ = "rates"
        __replicated__ = True

        day: Mapped[date] = mapped_column(primary_key=True)
        at: Mapped[time | None]
        wait: Mapped[timedelta | None]
        ident: Mapped[uuid.UUID | None]
        data: Mapped[bytes | None]
        share: Mapped[float | None]
        used: Mapped[bool | None]

    pay_in = insert(Entry).values(account=bindparam("who"), amount=bindparam("much"))

    @db.procedure(partition_by="account")
    def work(tx: Any, account: int) -> list[Any]:
        tx.execute(insert(Account).values(id=account, owner="ann"))
        for amount in (Decimal(5), Decimal("2.50")):
            tx.execute(pay_in, who=account, much=amount)
        total = select(func.sum(Entry.amount)).where(Entry.account == Account.id).scalar_subquery()
        tx.execute(update(Account).where(Account.id == account).values(balance=total))
        row = tx.execute(
            select(Account).where(Account.id == account, select(Entry.id).where(Entry.account == Account.id).exists())
        ).one()
        joined = tx.execute(select(Account.owner, Entry.amount).join(Entry, Entry.account == Account.id).order_by(Entry.id)).all()
        tx.execute(delete(Entry).where(Entry.amount > Decimal(3)))
        other = aliased(Entry)
        left = tx.execute(select(func.count(other.id))).scalar()
        return [
            row.owner,
            str(row.balance),
            row.kind.name,
            row.opened == tx.now,
            row.note,
            [list(map(str, r)) for r in joined],
            left,
        ]

    return db


def test_class_is_a_table(tmp_path: Path) -> None:
    """Its annotations are columns with exact types, its table is declared, and statements of Core run on it."""
    db = ledger()
    assert [(name, info.partition_by, info.replicated) for name, info in db.tables.items()] == [
        ("accounts", "id", False), ("entries", "account", False), ("rates", None, True),
    ]  # fmt: skip
    assert "TEXT, wait INTEGER, ident TEXT, data BLOB, share REAL, used INTEGER" in db.schema_statements()[-1]
    site = Site(tmp_path / "s", db)
    status, result = site.call("work", account=1)
    assert (status, result) == (0, ["ann", "7.50", "OPEN", True, None, [["ann", "5.00"], ["ann", "2.50"]], 1])
    site.close()


def test_statement_on_classes_is_that_on_their_tables() -> None:
    """The same text as with `__table__`, upserts and nested queries included."""
    db = ledger()
    account, entry = (mapper.class_ for mapper in sorted(db.Model.registry.mappers, key=lambda m: m.class_.__name__)[:2])

    def statements(a: Any, e: Any, ca: Any, ce: Any) -> list[Any]:
        sub = select(ce.account, func.max(ce.amount).label("m")).group_by(ce.account).subquery()
        return [
            select(a),
            select(a, ce.amount).join(e, ce.account == ca.id),
            select(sub.c.m).where(sub.c.m > Decimal("1.5")),
            select(ca.id).with_only_columns(ca.owner),
            select(ca.owner).union(select(ca.note)),
            insert(e).from_select(["account", "amount"], select(ca.id, ca.balance)),
            insert(a).values(id=1).returning(a),
            sqlite.insert(e)
            .values(id=1, amount=Decimal(1))
            .on_conflict_do_update(["id"], set_={"amount": ce.amount + Decimal(1)}),
            update(a).values(balance=ca.balance + Decimal("0.5")).where(ca.id.in_([1, 2])),
        ]

    by_class = statements(account, entry, account, entry)
    tables = account.__table__, entry.__table__
    by_table = statements(*tables, tables[0].c, tables[1].c)
    for ours, theirs in zip(by_class, by_table, strict=True):
        first, second = compile_statement(ours), compile_statement(theirs)
        assert (first.sql, first.keys, len(first.results)) == (second.sql, second.keys, len(second.results))


def declared(base: Any, **members: Any) -> Any:
    """A class with a key and these members."""
    key = {"id": mapped_column(Integer, primary_key=True), "__tablename__": "t", "__partition_by__": "id"}
    return type("Thing", (base,), key | members)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no place": ({"__partition_by__": None}, "__replicated__ = True"),
    "two places": ({"__replicated__": True}, "either"),
    "no such column": ({"__partition_by__": "other"}, "none of its columns"),
    "no table": ({"__tablename__": None}, "class Thing"),
    "relationship": ({"x": mapped_column(Integer), "xs": relationship("X")}, "join the tables"),
    "expression": ({"twice": column_property(func.abs(-1))}, "Computed"),
    "other name": ({"a": mapped_column("b", Integer)}, "call the attribute b"),
    "deferred": ({"a": deferred(mapped_column(Integer))}, "select the columns"),
    "history": ({"a": mapped_column(Integer, active_history=True)}, "active_history has no effect: there is no Session"),
    "validation": ({"a": mapped_column(Integer), "check": validates("a")(lambda self, name, value: value)}, "CheckConstraint"),
    "mapper arguments": ({"__mapper_args__": {"version_id_col": None}}, "__mapper_args__"),
    "table arguments": ({"__table_args__": {"sqlite_autoincrement": True}}, "no effect"),
    "decimals": ({"n": mapped_column(Numeric())}, r"Numeric\(12, 2\)"),
}


@pytest.mark.parametrize("name", WRONG)
def test_class_that_needs_a_session_or_states_no_place_is_refused(name: str) -> None:
    """When it is defined, with a sentence."""
    members, words = WRONG[name]
    db = Database("wrong")
    db.table("x", Column("id", Integer, primary_key=True), partition_by="id")
    with pytest.raises(DefinitionError, match=words):
        declared(db.Model, **members)


def test_class_extends_no_table() -> None:
    """A mixin or an abstract class may be shared; a class with a table may not be extended."""
    db = Database("shapes")
    base = type("Timed", (db.Model,), {"__abstract__": True, "at": mapped_column(Integer)})
    thing = declared(base)
    assert "at" in thing.__table__.c
    with pytest.raises(DefinitionError, match="cannot extend Thing"):
        type("More", (thing,), {})


def test_session_is_refused_by_name(tmp_path: Path) -> None:
    """Instances, loader options and methods of a Session say what to write."""
    db = Database("session")
    thing = declared(db.Model, n=mapped_column(Integer))
    with pytest.raises(StatementRefused, match=r"insert\(Thing\)"):
        thing(id=1)
    with pytest.raises(StatementRefused, match="Session"):
        compile_statement(select(thing).options(load_only(thing.n)))

    @db.procedure(partition_by="k")
    def add(tx: Any, k: int) -> None:
        tx.add(k)

    site = Site(tmp_path / "s", db)
    assert "there is no Session" in site.call("add", k=1)[1]["message"]
    site.close()


def test_table_that_was_not_declared_is_refused() -> None:
    """A table or a class put on `metadata` by hand is not accepted and ignored."""
    db = Database("hands")
    db.table("x", Column("id", Integer, primary_key=True), partition_by="id")
    Table("by_hand", db.metadata, Column("id", Integer, primary_key=True))
    for use in (db.schema_statements, lambda: db.plan_schema({})):
        with pytest.raises(DefinitionError, match=r"'by_hand' is on hands\.metadata.*db\.Model"):
            use()
    other = Database("base")
    base = type("Base", (DeclarativeBase,), {"metadata": other.metadata})
    declared(base)
    with pytest.raises(DefinitionError, match=r"db\.Model"):
        other.check_tables()


def test_what_is_added_after_the_declaration_is_checked() -> None:
    """A column that is appended later follows the same rules."""
    db = Database("later")
    table = db.table("x", Column("id", Integer, primary_key=True), partition_by="id")
    table.append_column(Column("n", String(collation="NOCASE")))
    with pytest.raises(DefinitionError, match="collation"):
        db.schema_statements()
