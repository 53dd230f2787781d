"""Which of SQLAlchemy's column types a table may have: each works exactly, or is refused with a sentence that names another.

One rule: nothing is accepted and then ignored. A limit that a type states (`String(3)`, `SmallInteger`) is held for every row
that is written (`limit_of`, `procedures.execution.row_checks`), not by a CHECK: the schema of a table that exists stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import types
from sqlalchemy.dialects import sqlite

from procedures.errors import DefinitionError
from procedures.numeric.numeric_types import ScaledNumeric

WORKING: Final[frozenset[type[Any]]] = frozenset((
    types.Integer, types.BigInteger, types.SmallInteger, types.INTEGER, types.BIGINT, types.SMALLINT,
    types.Float, types.Double, types.FLOAT, types.DOUBLE, types.DOUBLE_PRECISION, types.REAL,
    types.String, types.Text, types.Unicode, types.UnicodeText, types.VARCHAR, types.NVARCHAR, types.TEXT, types.CLOB, types.Enum,
    types.LargeBinary, types.BLOB, types.VARBINARY, types.Boolean, types.BOOLEAN,
    types.Numeric, types.NUMERIC, types.DECIMAL, ScaledNumeric,
    types.DateTime, types.DATETIME, types.TIMESTAMP, types.Date, types.DATE, types.Time, types.TIME, types.Interval,
    types.Uuid, types.UUID, types.JSON, sqlite.JSON,
))  # fmt: skip
"""Exactly these classes; a subclass may convert in a way that is not known here."""

REFUSED: Final[dict[type[Any], str]] = {
    types.NullType: "it has no type; give one, such as Integer or String",
    types.ARRAY: "SQLite has no arrays; store a list as JSON, or its elements as rows of another table",
    types.TupleType: "a tuple is no column; declare one column for each of its elements",
    types.PickleType: "a pickle depends on the versions of Python and of the code; store JSON, or bytes as LargeBinary",
    types.CHAR: "SQLite does not pad CHAR; declare String(n)",
    types.NCHAR: "SQLite does not pad NCHAR; declare String(n)",
    types.BINARY: "SQLite does not pad BINARY; declare LargeBinary(n)",
    types.MatchType: "it is the result of match(), not a column; declare Boolean or Float",
    sqlite.JSONB: "its bytes belong to one version of SQLite; declare JSON",
    sqlite.DATE: "its text would be another one than Date has; declare Date",
    sqlite.DATETIME: "its text would be another one than DateTime has; declare DateTime",
    sqlite.TIME: "its text would be another one than Time has; declare Time",
    types.UserDefinedType: "SQLite's STRICT tables know INTEGER, REAL, TEXT and BLOB alone; write a TypeDecorator",
}

_OTHER: Final = "it belongs to another database; {}"
_ALTERNATIVES: Final = {  # by the name of the class, for those of other databases
    "HSTORE": "declare JSON", "INET": "declare String", "CIDR": "declare String", "MONEY": "declare Numeric(p, s)",
    "BIT": "declare Integer or LargeBinary", "BYTEA": "declare LargeBinary", "ENUM": "declare sqlalchemy.Enum",
    "INTERVAL": "declare sqlalchemy.Interval", "TIMESTAMP": "declare DateTime", "TIME": "declare sqlalchemy.Time",
}  # fmt: skip

DOUBLE_BITS: Final = 53
SMALL_MAX: Final = (1 << 15) - 1


def check_type(type_: Any) -> None:
    """Raises: DefinitionError for a type, or an option of it, that would not do here what it says."""
    if type_._variant_mapping:  # noqa: SLF001 - nothing else says so
        raise DefinitionError("with_variant has no meaning here: a state is SQLite's; give the type itself")
    kind = type(type_)
    if isinstance(type_, types.TypeDecorator) and not isinstance(type_, types.Interval | types.PickleType):
        _check_decorated(type_)
    elif kind not in WORKING:
        raise DefinitionError(f"{kind.__name__}: {_reason(type_)}")
    else:
        _check_options(type_)


def _check_decorated(type_: types.TypeDecorator[Any]) -> None:
    inner: Any = type_.impl_instance
    if isinstance(inner, types.Numeric) and not isinstance(inner, types.Float):
        raise DefinitionError(
            f"{type(type_).__name__}: a TypeDecorator hides a Numeric's decimals; declare Numeric(p, s), and convert in Python"
        )
    if isinstance(inner, types.Interval):
        raise DefinitionError(f"{type(type_).__name__}: a TypeDecorator over Interval is not known; use one over Integer")
    try:
        check_type(inner)
    except DefinitionError as error:
        raise DefinitionError(f"{type(type_).__name__} decorates {error}") from None


def _reason(type_: Any) -> str:
    for kind, reason in REFUSED.items():
        if isinstance(type_, kind):
            return reason
    if type(type_).__module__.startswith("sqlalchemy.dialects."):
        other = "declare JSON" if isinstance(type_, types.JSON) else "use one of SQLAlchemy's own"
        return _OTHER.format(_ALTERNATIVES.get(type(type_).__name__, other))
    return "a type of your own is written as a TypeDecorator over one of SQLAlchemy's, so that it is known how it is stored"


def _check_options(type_: Any) -> None:
    if isinstance(type_, types.String) and type_.collation is not None:
        raise DefinitionError(
            f"collation={type_.collation!r}: columns compare by code points; write collate(column, 'NOCASE') in the statement "
            "and in an index"
        )
    if isinstance(type_, types.Float) and (type_.precision or DOUBLE_BITS) != DOUBLE_BITS:
        raise DefinitionError(f"Float(precision={type_.precision}): a Float has {DOUBLE_BITS} binary digits; leave precision out")
    if isinstance(type_, types.Float) and type_.asdecimal:
        raise DefinitionError("Float(asdecimal=True) has lost its decimals already; declare Numeric(p, s)")
    if isinstance(type_, types.Time) and type_.timezone:
        raise DefinitionError("Time(timezone=True): a time of day without its date has no place in UTC; declare DateTime")
    if isinstance(type_, types.Interval) and (type_.second_precision is not None or type_.day_precision is not None):
        raise DefinitionError("Interval(second_precision, day_precision): an Interval holds microseconds; leave them out")


def stated_limit(type_: Any) -> list[Any] | None:
    """What a record states of a type beside the form of its values; None where it takes every value of that form."""
    if isinstance(type_, types.TypeDecorator) and not isinstance(type_, types.Interval):
        return ["class", type(type_).__qualname__, stated_limit(type_.impl_instance)]
    if isinstance(type_, types.Enum):
        return ["values", *type_.enums]
    if isinstance(type_, types.SmallInteger):
        return ["bits", 16]
    length = getattr(type_, "length", None) if isinstance(type_, types.String | types.LargeBinary) else None
    return None if length is None else ["length", length]


def is_narrower(limit: list[Any] | None, before: list[Any] | None) -> bool:
    """Whether a value that was within the limit before may be outside now, as far as the limits say."""
    if limit is None or limit == before:
        return False
    if before is None or limit[0] != before[0]:
        return True
    if limit[0] == "values":
        return not set(before[1:]) <= set(limit[1:])
    return bool(limit[0] == "class" or limit[1] < before[1])


def limit_of(type_: Any) -> tuple[Callable[[Any], bool], str] | None:
    """Whether a stored value (never NULL) fits, and what the type states; None where every value that is stored does."""
    if isinstance(type_, types.TypeDecorator) and not isinstance(type_, types.Interval):
        type_ = type_.impl_instance
    if isinstance(type_, types.SmallInteger):
        return lambda value: -SMALL_MAX - 1 <= value <= SMALL_MAX, f"{type(type_).__name__} holds 16 bits"
    length = getattr(type_, "length", None)
    if not isinstance(type_, types.String | types.LargeBinary) or isinstance(type_, types.Enum) or length is None:
        return None
    unit = "characters" if isinstance(type_, types.String) else "bytes"
    return lambda value: len(value) <= length, f"{type(type_).__name__}({length}) holds {length} {unit}"
