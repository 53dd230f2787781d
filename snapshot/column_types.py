"""The type of a column outside SQLite, of Arrow and of Spark, and how a value gets there.

One rule: it follows from the declaration alone, never from the rows. So exports, tables on Spark, rebuilds and differences agree,
files of different partitions are one table, and the columns of a table are known before it is read.

| declared | in SQLite | in Arrow and Parquet |
|---|---|---|
| Integer, BigInteger, SmallInteger | INTEGER | int64 |
| Boolean | INTEGER | bool |
| Float, Double | REAL | double |
| Numeric(p, s) | INTEGER, units of 10^-s | decimal(p, s) |
| DateTime | TEXT | timestamp in microseconds, UTC |
| Date | TEXT | date |
| Uuid, JSON, String, Text, Enum | TEXT | string |
| LargeBinary | BLOB | binary |

A column that is no longer declared has the type that SQLite has for it; a Numeric is still one, by its mark in the schema.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any, Final

import apsw
from sqlalchemy import types

from procedures.numeric.marks import marked_numerics, numeric_digits
from procedures.storage.state import rows_of

UNFIT: Final = (TypeError, ValueError, InvalidOperation, OverflowError)  # of `convert`; pyarrow's own errors are others
Convert = Callable[[Any], Any]
_NUMERIC_KIND: Final = re.compile(r"numeric\(([0-9]+),([0-9]+)\)")
_SPARK: Final = {
    "int64": "bigint",
    "bool": "boolean",
    "double": "double",
    "string": "string",
    "binary": "binary",
    "date32[day]": "date",
    "timestamp[us, tz=UTC]": "timestamp",
}


@dataclass(frozen=True, slots=True)
class ColumnType:
    """The exported type of a column, and the conversion of its values."""

    arrow: Any  # pyarrow.DataType
    convert: Convert  # of a value that is not NULL; raises what `UNFIT` lists

    @property
    def spark(self) -> str:
        """As SQL has it."""
        name = str(self.arrow)
        return name.replace("128", "").replace(" ", "") if name.startswith("decimal128(") else _SPARK[name]


def column_type(arrow: Any, kind: str, declared: Any) -> ColumnType:
    """`arrow` is pyarrow, `kind` the type of the column in its table, `declared` its SQLAlchemy column, if any.

    The kind of an exact decimal is "numeric(p,s)", as `column_kinds` gives it.
    """
    if exact := _NUMERIC_KIND.fullmatch(kind):
        precision, decimals = map(int, exact.groups())
        return ColumnType(arrow.decimal128(precision, decimals), partial(_unscaled, scale=decimals))
    wanted: Any = None if declared is None else declared.type
    if isinstance(wanted, types.Boolean):
        return ColumnType(arrow.bool_(), _to_bool)
    if isinstance(wanted, types.DateTime):
        return ColumnType(arrow.timestamp("us", tz="UTC"), _to_datetime)
    if isinstance(wanted, types.Date):
        return ColumnType(arrow.date32(), date.fromisoformat)
    by_kind: dict[str, ColumnType] = {
        "INTEGER": ColumnType(arrow.int64(), _only(int)),
        "INT": ColumnType(arrow.int64(), _only(int)),
        "REAL": ColumnType(arrow.float64(), _only(float)),
        "BLOB": ColumnType(arrow.binary(), _only(bytes)),
    }
    return by_kind.get(kind.upper()) or ColumnType(arrow.string(), _only(str))


def column_kinds(connection: apsw.Connection, table: str) -> dict[str, str]:
    """Column -> its type in the table, "numeric(p,s)" for an exact decimal."""
    rows = rows_of(connection, "SELECT name, type FROM pragma_table_xinfo(?)", (table,))
    exact = marked_numerics(connection, table)
    return {name: "numeric({},{})".format(*exact[name]) if name in exact else str(kind) for name, kind in rows}


def _unscaled(value: Any, *, scale: int) -> Decimal:
    if type(value) is not int:
        raise TypeError(f"{type(value).__name__} instead of an integer of units")
    return Decimal(numeric_digits(value, scale))


def _only(kind: type) -> Convert:
    """Lets only values of this type through: Arrow would take 1 for 1.0, and "1" for nothing it knows."""

    def convert(value: Any) -> Any:
        if type(value) is not kind:
            raise TypeError(f"{type(value).__name__} instead of {kind.__name__}")
        return value

    return convert


def _to_bool(value: Any) -> bool:
    if type(value) is not int or value not in (0, 1):
        raise ValueError("neither 0 nor 1")
    return bool(value)


def _to_datetime(value: Any) -> datetime:
    moment = datetime.fromisoformat(value)
    if moment.tzinfo is None:
        raise ValueError("a time without its UTC offset")
    return moment
