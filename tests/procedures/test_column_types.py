"""The table of types: every type of SQLAlchemy is either exact here or refused when it is declared, with a sentence."""

from __future__ import annotations

import enum
import math
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import apsw
import pytest
from sqlalchemy import Column, Integer, String, func, select, types
from sqlalchemy.dialects import mysql, postgresql, sqlite

from procedures import Database, DefinitionError
from procedures.declaration.columns.column_types import REFUSED as REASONS
from procedures.declaration.columns.column_types import WORKING
from procedures.declaration.dialect import DIALECT, bind_processor_of, result_processor_of
from procedures.errors import StatementRefused
from procedures.numeric.numeric_types import numeric_as_text
from procedures.statements.compiled import compile_statement


class Colour(enum.Enum):
    """A Python enum, as columns have them."""

    RED = "r"
    BLUE = "b"


class Upper(types.TypeDecorator[str]):
    """A type of an application's own."""

    impl = types.String(3)
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        return None if value is None else value.upper()


def decorator_over(inner: Any) -> Any:
    """A TypeDecorator over the type."""
    return type("Decorated", (types.TypeDecorator,), {"impl": inner, "cache_ok": True})()


class Own(types.UserDefinedType[Any]):
    """A type with a name of its own."""

    def get_col_spec(self, **_: Any) -> str:
        return "OWN"


NOON = datetime(2026, 5, 1, 12, 0, 0, 5, tzinfo=UTC)
UUID = uuid.UUID(int=7)

# declared -> a value that comes back as it was, and how it lies in SQLite
WORKS: dict[str, tuple[Callable[[], Any], Any, Any]] = {
    "Integer": (types.Integer, 1 << 62, 1 << 62),
    "INTEGER": (types.INTEGER, 1, 1),
    "BigInteger": (types.BigInteger, -(1 << 63), -(1 << 63)),
    "BIGINT": (types.BIGINT, 1, 1),
    "SmallInteger": (types.SmallInteger, -32768, -32768),
    "SMALLINT": (types.SMALLINT, 32767, 32767),
    "Float": (types.Float, 0.1, 0.1),
    "Float(53)": (lambda: types.Float(53), math.inf, math.inf),
    "FLOAT": (types.FLOAT, 0.1, 0.1),
    "Double": (types.Double, 0.1, 0.1),
    "DOUBLE": (types.DOUBLE, 0.1, 0.1),
    "DOUBLE_PRECISION": (types.DOUBLE_PRECISION, 0.1, 0.1),
    "REAL": (types.REAL, 0.1, 0.1),
    "String": (types.String, "äö", "äö"),
    "String(3)": (lambda: types.String(3), "äöü", "äöü"),
    "Text": (types.Text, "x", "x"),
    "Unicode": (lambda: types.Unicode(2), "ab", "ab"),
    "UnicodeText": (types.UnicodeText, "x", "x"),
    "VARCHAR": (lambda: types.VARCHAR(2), "ab", "ab"),
    "NVARCHAR": (lambda: types.NVARCHAR(2), "ab", "ab"),
    "TEXT": (types.TEXT, "x", "x"),
    "CLOB": (types.CLOB, "x", "x"),
    "Enum of strings": (lambda: types.Enum("a", "b"), "b", "b"),
    "Enum of Python": (lambda: types.Enum(Colour), Colour.RED, "RED"),
    "Enum by value": (lambda: types.Enum(Colour, values_callable=lambda e: [m.value for m in e]), Colour.BLUE, "b"),
    "Enum not native": (lambda: types.Enum(Colour, native_enum=False, create_constraint=True), Colour.BLUE, "BLUE"),
    "LargeBinary": (types.LargeBinary, b"\0\xff", b"\0\xff"),
    "LargeBinary(2)": (lambda: types.LargeBinary(2), b"ab", b"ab"),
    "BLOB": (types.BLOB, b"ab", b"ab"),
    "VARBINARY": (types.VARBINARY, b"ab", b"ab"),
    "Boolean": (types.Boolean, True, 1),
    "BOOLEAN": (types.BOOLEAN, False, 0),
    "Boolean with a constraint": (lambda: types.Boolean(create_constraint=True), True, 1),
    "Numeric": (lambda: types.Numeric(12, 2), Decimal("1.20"), 120),
    "NUMERIC": (lambda: types.NUMERIC(12, 2), Decimal("1.20"), 120),
    "DECIMAL": (lambda: types.DECIMAL(12, 2), Decimal("1.20"), 120),
    "DateTime": (types.DateTime, NOON, "2026-05-01T12:00:00.000005Z"),
    "DateTime with a zone": (lambda: types.DateTime(timezone=True), NOON, "2026-05-01T12:00:00.000005Z"),
    "DATETIME": (types.DATETIME, NOON, "2026-05-01T12:00:00.000005Z"),
    "TIMESTAMP": (types.TIMESTAMP, NOON, "2026-05-01T12:00:00.000005Z"),
    "Date": (types.Date, date(2026, 5, 1), "2026-05-01"),
    "DATE": (types.DATE, date(2026, 5, 1), "2026-05-01"),
    "Time": (types.Time, time(9, 30), "09:30:00.000000"),
    "TIME": (types.TIME, time(9, 30, 0, 1), "09:30:00.000001"),
    "Interval": (types.Interval, timedelta(days=-1, microseconds=1), -86_399_999_999),
    "Uuid": (types.Uuid, UUID, str(UUID)),
    "UUID": (types.UUID, UUID, str(UUID)),
    "Uuid as text": (lambda: types.Uuid(as_uuid=False), str(UUID), str(UUID)),
    "JSON": (types.JSON, {"b": [1, 0.5, None], "a": "ä"}, '{"a":"ä","b":[1,0.5,null]}'),
    "JSON without null": (lambda: types.JSON(none_as_null=True), None, None),
    "sqlite.JSON": (sqlite.JSON, [1], "[1]"),
    "a TypeDecorator": (Upper, "ABC", "ABC"),
    "sqlite.VARCHAR": (sqlite.VARCHAR, "x", "x"),
}

# declared -> words of the sentence that refuses it
IS_REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "no type": (types.NullType, "give one"),
    "ARRAY": (lambda: types.ARRAY(types.Integer), "store a list as JSON"),
    "postgresql.ARRAY": (lambda: postgresql.ARRAY(types.Integer), "store a list as JSON"),
    "postgresql.JSONB": (postgresql.JSONB, "declare JSON"),
    "postgresql.JSON": (postgresql.JSON, "declare JSON"),
    "postgresql.INET": (postgresql.INET, "declare String"),
    "postgresql.MONEY": (postgresql.MONEY, r"declare Numeric\(p, s\)"),
    "postgresql.INTERVAL": (postgresql.INTERVAL, "declare sqlalchemy.Interval"),
    "postgresql.ENUM": (lambda: postgresql.ENUM("a", name="e"), "declare sqlalchemy.Enum"),
    "mysql.YEAR": (mysql.YEAR, "another database"),
    "sqlite.JSONB": (sqlite.JSONB, "declare JSON"),
    "sqlite.DATETIME": (sqlite.DATETIME, "declare DateTime"),
    "sqlite.DATE": (sqlite.DATE, "declare Date"),
    "sqlite.TIME": (sqlite.TIME, "declare Time"),
    "TupleType": (types.TupleType, "one column for each"),
    "PickleType": (types.PickleType, "store JSON"),
    "MatchType": (types.MatchType, "declare Boolean"),
    "CHAR": (lambda: types.CHAR(3), r"declare String\(n\)"),
    "NCHAR": (lambda: types.NCHAR(3), r"declare String\(n\)"),
    "BINARY": (lambda: types.BINARY(3), r"declare LargeBinary\(n\)"),
    "String with a collation": (lambda: types.String(collation="NOCASE"), r"collate\(column"),
    "Float of few digits": (lambda: types.Float(24), "leave precision out"),
    "Float as Decimal": (lambda: types.Float(asdecimal=True), r"declare Numeric\(p, s\)"),
    "Double as Decimal": (lambda: types.Double(asdecimal=True), r"declare Numeric\(p, s\)"),
    "Numeric without digits": (types.Numeric, r"Numeric\(12, 2\)"),
    "Time with a zone": (lambda: types.Time(timezone=True), "declare DateTime"),
    "Interval of few digits": (lambda: types.Interval(second_precision=2), "leave them out"),
    "a variant": (lambda: types.String().with_variant(types.Text(), "postgresql"), "give the type itself"),
    "a type of one's own": (Own, "TypeDecorator"),
    "a subclass": (type("Name", (types.String,), {}), "TypeDecorator"),
    "a TypeDecorator over Numeric": (lambda: decorator_over(types.Numeric(12, 2)), "convert in Python"),
    "a TypeDecorator over Interval": (lambda: decorator_over(types.Interval()), "over Integer"),
    "a TypeDecorator over ARRAY": (lambda: decorator_over(types.ARRAY(types.Integer)), "as JSON"),
}
ABSTRACT = {
    "Concatenable", "ExternalType", "Indexable", "NumericCommon", "OperatorClass", "SchemaType", "TypeDecorator", "TypeEngine",
    "Variant",
}  # fmt: skip


def declared(type_: Any) -> Database:
    """A database with one table that has a column of the type."""
    db = Database("kinds")
    db.table("t", Column("id", Integer, primary_key=True), Column("x", type_), partition_by="id")
    return db


def test_every_type_of_sqlalchemy_is_in_the_table() -> None:
    """A type that a later SQLAlchemy adds makes this fail until it is decided what it does here."""
    for module in (types, sqlite):
        for name in dir(module):
            kind = getattr(module, name)
            if isinstance(kind, type) and issubclass(kind, types.TypeEngine) and name not in ABSTRACT and name[0] != "_":
                assert kind in WORKING or kind in REASONS, f"{module.__name__}.{name}"
    shown = {type(make()) for make, _, _ in WORKS.values()}
    assert {kind for kind in WORKING if kind.__module__.startswith("sqlalchemy.sql")} <= shown
    assert set(REASONS) <= {type(make()) for make, _ in IS_REFUSED.values()} | {types.UserDefinedType}


@pytest.mark.parametrize("name", WORKS)
def test_type_keeps_its_values(name: str, tmp_path: Any) -> None:
    """Its table can be made, a value comes back from SQLite as it was given, and so does NULL."""
    make, value, stored = WORKS[name]
    db = declared(make())
    table = db.tables["t"].table
    connection = apsw.Connection(str(tmp_path / "t"))
    for statement in db.schema_statements():
        connection.execute(statement)
    to_sqlite, to_python = bind_processor_of(table.c.x.type), result_processor_of(table.c.x.type)
    bound = value if to_sqlite is None else to_sqlite(value)
    connection.execute("INSERT INTO t VALUES (1, ?)", (bound,))
    found = connection.execute("SELECT x FROM t").fetchall()[0][0]
    assert (found, type(found)) == (stored, type(stored))
    assert (found if to_python is None else to_python(found)) == value
    assert to_python is None or to_python(None) is None


@pytest.mark.parametrize("name", IS_REFUSED)
def test_type_without_an_exact_form_is_refused(name: str) -> None:
    """When it is declared, with a sentence that names what to declare instead."""
    make, words = IS_REFUSED[name]
    with pytest.raises(DefinitionError, match=words):
        declared(make())


def test_code_from_before_keeps_its_types() -> None:
    """A bundle of the log that declares what is refused today is compiled as it was."""
    with numeric_as_text():
        db = Database("old")
        db.table(
            "t",
            Column("id", Integer, primary_key=True),
            Column("name", String(3, collation="NOCASE")),
            Column("pad", types.CHAR(2)),
            Column("spent", types.Interval),
            Column("pickled", types.PickleType),
            partition_by="id",
        )
    assert db.schema_statements() == [
        "CREATE TABLE t ( id INTEGER NOT NULL, name TEXT, pad TEXT, spent TEXT, pickled BLOB, PRIMARY KEY (id) ) STRICT"
    ]


REFUSED_VALUES: dict[str, tuple[Any, Any, str]] = {
    "NaN": (types.Float(), math.nan, "SQLite would store NULL"),
    "NaN in JSON": (types.JSON(), [math.nan], "null"),
    "date in JSON": (types.JSON(), [date(2026, 1, 1)], "date"),
    "number as key in JSON": (types.JSON(), {1: 2}, "strings"),
    "naive datetime": (types.DateTime(), datetime(2026, 1, 1), "aware"),  # noqa: DTZ001
    "time with a zone": (types.Time(), time(1, tzinfo=UTC), "without a zone"),
    "number as Interval": (types.Interval(), 5, "timedelta"),
    "datetime as Date": (types.Date(), NOON, "date"),
    "unknown member": (types.Enum("a", "b"), "c", "Enum None: a, b"),
}


@pytest.mark.parametrize("name", REFUSED_VALUES)
def test_value_that_would_come_back_as_another_is_refused(name: str) -> None:
    """Where it is bound, before SQLite sees it."""
    type_, value, words = REFUSED_VALUES[name]
    column = declared(type_).tables["t"].table.c.x
    bind = bind_processor_of(column.type)
    assert bind is not None
    with pytest.raises((TypeError, ValueError, LookupError), match=words):
        bind(value)


def test_what_would_compute_with_stored_forms_is_refused() -> None:
    """Times are text and intervals whole numbers: what SQLite would make of them otherwise is a sentence."""
    db = Database("kinds")
    table = db.table(
        "t",
        Column("id", Integer, primary_key=True),
        Column("at", types.DateTime),
        Column("day", types.Date),
        Column("spent", types.Interval),
        partition_by="id",
    )
    c = table.c
    for wrong in (
        c.at - c.at, c.at + c.spent, c.day + 1, func.sum(c.at), func.avg(c.spent), func.lag(c.at), func.round(c.spent),
    ):  # fmt: skip
        with pytest.raises(StatementRefused, match=r"in Python|needs a type"):
            compile_statement(select(wrong))
    right = select(func.sum(c.spent), c.spent + timedelta(1), func.max(c.at), func.lag(c.at, type_=types.DateTime))
    assert len(compile_statement(right.where(c.at > NOON, c.spent <= timedelta(1))).results) == 4
    assert DIALECT.name == "sqlite"
