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
| DateTime | TEXT, RFC 3339 UTC with six decimals: sorts as time | aware datetime |
| Date | TEXT | date |
| Time | TEXT, with six decimals: sorts as time | time without a zone |
| Interval | INTEGER, microseconds: compared, added and summed as they are | timedelta |
| Uuid | TEXT, with hyphens | UUID |
| JSON | TEXT, keys sorted | lists, dicts, … |

Which of SQLAlchemy's types a table may have is decided in `column_types`.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from math import isnan
from typing import Any, ClassVar
from uuid import UUID

import apsw
from sqlalchemy import types


class _Exact(types.TypeEngine[Any]):
    """A type with its own two conversions; None passes through."""

    stands_for: ClassVar[str]  # in texts of errors

    def to_sqlite(self, value: Any) -> Any:
        raise NotImplementedError

    def to_python(self, value: Any) -> Any:
        raise NotImplementedError

    def bind_processor(self, dialect: Any) -> Any:
        return lambda value: None if value is None else self.to_sqlite(value)

    def result_processor(self, dialect: Any, coltype: Any) -> Any:
        to_python = self.to_python

        def convert(value: Any) -> Any:
            try:
                return None if value is None else to_python(value)
            except (TypeError, ValueError) as error:
                raise type(error)(f"a value of type {type(value).__name__} where {self.stands_for} was expected") from None

        return convert

    def literal_processor(self, dialect: Any) -> Any:
        """In a CHECK, a generated column or an index: as it is stored, or the comparison would be with something else."""
        return lambda value: "NULL" if value is None else apsw.format_sql_value(self.to_sqlite(value))


class UtcDateTime(_Exact, types.DateTime):
    """Aware datetime as RFC 3339 in UTC; fixed width, so text order is time order."""

    stands_for = "a DateTime"

    def to_sqlite(self, value: Any) -> Any:
        if not isinstance(value, datetime) or value.tzinfo is None:
            raise TypeError("a DateTime column takes aware datetimes; write datetime(..., tzinfo=UTC)")
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")

    def to_python(self, value: Any) -> Any:
        return datetime.fromisoformat(value)


class IsoDate(_Exact, types.Date):
    """Date as YYYY-MM-DD."""

    stands_for = "a Date"

    def to_sqlite(self, value: Any) -> Any:
        if not isinstance(value, date) or isinstance(value, datetime):
            raise TypeError("a Date column takes datetime.date")
        return value.isoformat()

    def to_python(self, value: Any) -> Any:
        return date.fromisoformat(value)


class TextUuid(_Exact, types.Uuid):  # type: ignore[type-arg]
    """UUID as text with hyphens."""

    stands_for = "a Uuid"

    def to_sqlite(self, value: Any) -> Any:
        return str(value if isinstance(value, UUID) else UUID(value))

    def to_python(self, value: Any) -> Any:
        return UUID(value) if self.as_uuid else value


class IsoTime(_Exact, types.Time):
    """Time of day as HH:MM:SS.ffffff; fixed width, so text order is time order."""

    stands_for = "a Time"

    def to_sqlite(self, value: Any) -> Any:
        if not isinstance(value, time) or value.tzinfo is not None:
            raise TypeError("a Time column takes datetime.time without a zone; with one, store a DateTime")
        return value.isoformat(timespec="microseconds")

    def to_python(self, value: Any) -> Any:
        return time.fromisoformat(value)


class MicrosecondInterval(_Exact, types.Interval):
    """Interval as a number of microseconds, which is all that a timedelta holds."""

    cache_ok = True
    stands_for = "an Interval"

    def to_sqlite(self, value: Any) -> Any:
        if not isinstance(value, timedelta):
            raise TypeError(f"an Interval column takes datetime.timedelta, not {type(value).__name__}")
        return value // timedelta(microseconds=1)

    def to_python(self, value: Any) -> Any:
        if type(value) is not int:
            raise TypeError("not the microseconds of an Interval")
        return timedelta(microseconds=value)


class StoredEnum(types.Enum):
    """Enum whose errors do not show the value."""

    def _db_value_for_elem(self, elem: Any) -> Any:
        try:
            return self._valid_lookup[elem]
        except KeyError:
            if isinstance(elem, str) and not self.validate_strings:
                return super()._db_value_for_elem(elem)  # type: ignore[no-untyped-call]
            raise self._refusal() from None

    def _object_value_for_elem(self, elem: str) -> Any:
        try:
            return self._object_lookup[elem]
        except KeyError:
            raise self._refusal() from None

    def _refusal(self) -> LookupError:
        return LookupError(f"a value that is none of those of Enum {self.name}: {', '.join(self.enums)}")


class StoredBoolean(types.Boolean):
    """Boolean whose errors do not show the value."""

    def _strict_as_bool(self, value: Any) -> Any:
        if value not in self._strict_bools:
            kind = ValueError if isinstance(value, int) else TypeError
            raise kind(f"a Boolean takes True, False and None, not this value of type {type(value).__name__}")
        return value


class StoredBytes(types.LargeBinary):
    """Bytes; SQLAlchemy would write them into DDL as a text."""

    def literal_processor(self, dialect: Any) -> Any:
        return lambda value: apsw.format_sql_value(bytes(value))

    def result_processor(self, dialect: Any, coltype: Any) -> Any:
        """Else Python would make 3 NUL bytes of the number 3."""
        return _to_bytes


def _to_bytes(value: Any) -> bytes | None:
    if value is None or type(value) is bytes:
        return value
    raise TypeError(f"a value of type {type(value).__name__} where bytes were expected")


class NumberFloat(_Exact, types.Float):  # type: ignore[type-arg]
    """Float without NaN, of which SQLite would silently make NULL."""

    literal_processor = types.Float.literal_processor

    def to_sqlite(self, value: Any) -> Any:
        if isinstance(value, Decimal):
            value = float(value)
        if isinstance(value, float) and isnan(value):
            raise ValueError("a Float column takes numbers; NaN is none, and SQLite would store NULL: store None")
        return value

    def result_processor(self, dialect: Any, coltype: Any) -> Any:
        return None
