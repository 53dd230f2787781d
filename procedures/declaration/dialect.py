"""How Python values lie in SQLite columns.

SQLAlchemy's own SQLite types lose data for our purpose: a `Numeric` goes through float, a `DateTime` drops its zone. Here
every value has one exact form, and tables are STRICT, so that SQLite refuses what does not fit instead of storing it:

| column type | stored as | Python |
|---|---|---|
| Integer, BigInteger | INTEGER | int, 64 bits |
| Float, Double | REAL | float |
| String, Text, Unicode, Enum | TEXT | str (Enum: its member) |
| LargeBinary | BLOB | bytes |
| Boolean | INTEGER 0/1 | bool |
| Numeric(p, s), p up to 18 | INTEGER, units of 10^-s: exact in every place of a statement (procedures/numeric) | Decimal |
| TextNumeric | TEXT, exact digits; only stored and read | Decimal |
| DateTime | TEXT, RFC 3339 UTC with six decimals: sorts as time | aware datetime |
| Date | TEXT | date |
| Uuid | TEXT, with hyphens | UUID |
| JSON | TEXT, keys sorted | lists, dicts, … |
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

import orjson
from sqlalchemy import types
from sqlalchemy.dialects.sqlite.base import SQLiteCompiler, SQLiteDDLCompiler, SQLiteDialect, SQLiteTypeCompiler

from procedures.numeric.compiler import ExactCompiler
from procedures.numeric.numeric_types import ScaledNumeric, TextNumeric
from procedures.numeric.schema_compiler import ExactDDLCompiler

Processor = Callable[[Any], Any] | None


class _Exact(types.TypeEngine[Any]):
    """A type with its own two conversions; None passes through."""

    def to_sqlite(self, value: Any) -> Any:
        raise NotImplementedError

    def to_python(self, value: Any) -> Any:
        raise NotImplementedError

    def bind_processor(self, dialect: Any) -> Any:
        return lambda value: None if value is None else self.to_sqlite(value)

    def result_processor(self, dialect: Any, coltype: Any) -> Any:
        return lambda value: None if value is None else self.to_python(value)


class UtcDateTime(_Exact, types.DateTime):
    """Aware datetime as RFC 3339 in UTC; fixed width, so text order is time order."""

    def to_sqlite(self, value: Any) -> Any:
        if not isinstance(value, datetime) or value.tzinfo is None:
            raise TypeError("a DateTime column takes aware datetimes; write datetime(..., tzinfo=UTC)")
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")

    def to_python(self, value: Any) -> Any:
        return datetime.fromisoformat(value)


class IsoDate(_Exact, types.Date):
    """Date as YYYY-MM-DD."""

    def to_sqlite(self, value: Any) -> Any:
        if not isinstance(value, date) or isinstance(value, datetime):
            raise TypeError("a Date column takes datetime.date")
        return value.isoformat()

    def to_python(self, value: Any) -> Any:
        return date.fromisoformat(value)


class TextUuid(_Exact, types.Uuid):  # type: ignore[type-arg]
    """UUID as text with hyphens."""

    def to_sqlite(self, value: Any) -> Any:
        return str(value if isinstance(value, UUID) else UUID(value))

    def to_python(self, value: Any) -> Any:
        return UUID(value) if self.as_uuid else value


class _TypeCompiler(SQLiteTypeCompiler):
    """Names of the column types that a STRICT table accepts."""

    def visit_numeric(self, type_: Any, **kw: Any) -> str:
        return "INTEGER" if isinstance(type_, ScaledNumeric) else "TEXT"

    visit_NUMERIC = visit_DECIMAL = visit_numeric

    def _text(self, type_: Any, **kw: Any) -> str:
        return "TEXT"

    visit_string = visit_text = visit_unicode = visit_unicode_text = visit_enum = visit_datetime = visit_date = _text
    visit_uuid = visit_JSON = visit_VARCHAR = visit_NVARCHAR = visit_CHAR = visit_TEXT = visit_UUID = _text
    visit_DATETIME = visit_TIMESTAMP = visit_DATE = _text

    def _integer(self, type_: Any, **kw: Any) -> str:
        return "INTEGER"

    visit_integer = visit_big_integer = visit_small_integer = visit_boolean = _integer
    visit_BIGINT = visit_SMALLINT = visit_INTEGER = visit_BOOLEAN = _integer

    def _real(self, type_: Any, **kw: Any) -> str:
        return "REAL"

    visit_float = visit_double = visit_FLOAT = visit_DOUBLE = visit_DOUBLE_PRECISION = visit_REAL = _real

    def visit_time(self, type_: Any, **kw: Any) -> str:
        raise TypeError("Time columns are not supported; store seconds, or a DateTime")

    visit_TIME = visit_time


class StateDialect(SQLiteDialect):
    """SQLite as the state of a partition speaks it: named parameters, exact values, STRICT types."""

    supports_statement_cache = True
    type_compiler_cls = _TypeCompiler
    statement_compiler: Any = ExactCompiler
    ddl_compiler: Any = ExactDDLCompiler
    colspecs = {  # noqa: RUF012 - SQLAlchemy declares it so
        **{
            kind: spec
            for kind, spec in SQLiteDialect.colspecs.items()
            if kind not in {types.DateTime, types.Date, types.Time, types.Float}
        },
        types.Numeric: ScaledNumeric,
        TextNumeric: TextNumeric,
        types.Float: types.Float,
        types.DateTime: UtcDateTime,
        types.Date: IsoDate,
        types.Uuid: TextUuid,
    }

    def __init__(self) -> None:
        super().__init__(
            paramstyle="named",
            json_serializer=lambda value: orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode(),
            json_deserializer=orjson.loads,
        )


class TextNumericDialect(StateDialect):
    """The same with text for every Numeric, compared as text: how databases ran whose code is from before exact decimals."""

    supports_statement_cache = True
    statement_compiler: Any = SQLiteCompiler
    ddl_compiler: Any = SQLiteDDLCompiler
    colspecs = {**StateDialect.colspecs, types.Numeric: TextNumeric}  # noqa: RUF012 - SQLAlchemy declares it so


DIALECT = StateDialect()
TEXT_NUMERIC_DIALECT = TextNumericDialect()


def bind_processor_of(type_: Any, dialect: StateDialect = DIALECT) -> Processor:
    processor: Processor = type_.dialect_impl(dialect).bind_processor(dialect)
    return processor


def result_processor_of(type_: Any, dialect: StateDialect = DIALECT) -> Processor:
    processor: Processor = type_.dialect_impl(dialect).result_processor(dialect, None)
    return processor
