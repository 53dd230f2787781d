"""Scalars on the wire: numbers, texts, bytes, times. The table of all types is in `type_codecs`."""

from __future__ import annotations

import base64
import binascii
import math
import re
import typing
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, NoReturn
from uuid import UUID

INT_MIN = -(1 << 63)  # SQLite's integers; JSON readers of other languages hold these as well
INT_MAX = (1 << 63) - 1
DECIMAL_DIGITS_MAX = 64  # twice what IEEE decimal128 holds; arithmetic on them stays cheap
DECIMAL_EXPONENT_MAX = 6144  # as IEEE decimal128: 1E+999999999 would take gigabytes to write out

BASE64 = "base64"  # in the schema of bytes, wherever they are inside of a type

Convert = Callable[[Any], Any]
Schema = dict[str, Any]


class WireError(ValueError):
    """A value does not fit its type hint; the text says what was expected."""


class NotRepeatable(WireError):
    """An object does not come back equal from its wire form: its class is at fault, not the value."""


@dataclass(frozen=True, slots=True)
class Codec:
    """How one type hint crosses the wire."""

    to_wire: Convert  # strict, canonical; raises WireError
    from_wire: Convert  # trusts its input
    schema: Schema  # JSON schema of the wire form
    plain: bool = False  # from_wire gives its argument back


def same(value: Any) -> Any:
    """Wire form and Python value are the same."""
    return value


def _name(value: Any) -> str:
    return "null" if value is None else type(value).__name__


def refuse(expected: str, value: Any) -> NoReturn:
    """Raises: WireError."""
    raise WireError(f"expected {expected}, got {_name(value)}")


def _int(value: Any) -> Any:
    if type(value) is int:
        if INT_MIN <= value <= INT_MAX:
            return value
        raise WireError("expected an integer of 64 bits, got a longer one")
    refuse("an integer", value)


def _float(value: Any) -> Any:
    if type(value) is float:
        if math.isfinite(value):
            return value
        raise WireError("expected a finite number, got NaN or infinity")
    if type(value) is int:
        return float(_int(value))
    refuse("a number", value)


def _bool(value: Any) -> Any:
    if value is True or value is False:
        return value
    refuse("true or false", value)


def _null(value: Any) -> Any:
    if value is None:
        return None
    refuse("null", value)


def text(value: Any) -> Any:
    """The checked string. Raises: WireError."""
    if type(value) is not str:
        refuse("a string", value)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise WireError("expected a string of Unicode characters, got a lone surrogate") from None
    return value


def field_to_wire(name: Any, codec: Codec, value: Any) -> Any:
    """The wire form of a field. Raises: WireError, which names the field."""
    try:
        return codec.to_wire(value)
    except WireError as error:
        raise type(error)(f".{name}: {error}") from None


KINDS: dict[Convert, int] = {_int: 1, text: 2, _bool: 3, _float: 4}
"""What values are often their own wire form, by number: see `native/binding.c`."""


def _bytes(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if type(value) is not str:
        refuse("a base64 string", value)
    try:
        decoded = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise WireError("expected base64 with padding") from None
    if base64.b64encode(decoded).decode() != value:
        raise WireError("expected canonical base64: the bits after the last byte are not zero")
    return value


_DECIMAL = re.compile(r"-?[0-9]{1,80}(?:\.[0-9]{1,80})?(?:[eE][+-]?[0-9]{1,5})?", re.ASCII)


def _decimal(value: Any) -> Any:
    if type(value) is int:
        value = Decimal(_int(value))
    elif type(value) is str:
        if not _DECIMAL.fullmatch(value):
            raise WireError('expected a decimal number in a string, such as "12.50"')
        value = Decimal(value)
    elif not isinstance(value, Decimal):
        refuse("a decimal number in a string", value)
    if not value.is_finite():
        raise WireError("expected a finite decimal number")
    _, digits, exponent = value.as_tuple()
    if len(digits) > DECIMAL_DIGITS_MAX or abs(typing.cast(int, exponent)) > DECIMAL_EXPONENT_MAX:
        raise WireError(f"expected at most {DECIMAL_DIGITS_MAX} digits and an exponent within {DECIMAL_EXPONENT_MAX}")
    return str(value)


_RFC3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?(?:[Zz]|[+-][0-9]{2}:[0-9]{2})", re.ASCII
)


def _datetime(value: Any) -> Any:
    if type(value) is str:
        if not _RFC3339.fullmatch(value):
            raise WireError("expected a time with its offset, such as 2026-01-31T12:00:00Z")
        value = _parsed(datetime.fromisoformat, value.upper(), "a time")
    elif not isinstance(value, datetime):
        refuse("a time in a string", value)
    if value.tzinfo is None:
        raise WireError("expected a time with its zone, got a naive datetime")
    try:
        wire = value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    except OverflowError:
        raise WireError("expected a time between the years 1 and 9999 in UTC") from None
    if type(value) is not datetime and (not _RFC3339.fullmatch(wire) or datetime.fromisoformat(wire) != value):
        refuse("a time in microseconds", value)
    return wire


def _date(value: Any) -> Any:
    if type(value) is str:
        if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", value, re.ASCII):
            raise WireError("expected a date such as 2026-01-31")
        value = _parsed(date.fromisoformat, value, "a date")
    elif not isinstance(value, date) or isinstance(value, datetime):
        refuse("a date in a string", value)
    return value.isoformat()


_TIME_OF_DAY = re.compile(r"(?:[01][0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9](?:\.[0-9]{1,6})?)?", re.ASCII)


def _time(value: Any) -> Any:
    if type(value) is str:
        if not _TIME_OF_DAY.fullmatch(value):
            raise WireError("expected a time of day such as 12:30:00, without a zone")
        value = time.fromisoformat(value)
    elif not isinstance(value, time):
        refuse("a time of day in a string", value)
    if value.tzinfo is not None:
        raise WireError("expected a time of day without a zone: its offset depends on the date")
    return value.isoformat()


_DURATION_SHAPE = r"-?P(?:[0-9]{1,9}D)?(?:T(?:[0-9]{1,9}H)?(?:[0-9]{1,9}M)?(?:[0-9]{1,9}(?:\.[0-9]{1,6})?S)?)?"
_DURATION = re.compile(
    r"(-?)P(?:([0-9]{1,9})D)?(?:T(?:([0-9]{1,9})H)?(?:([0-9]{1,9})M)?(?:([0-9]{1,9})(?:\.([0-9]{1,6}))?S)?)?", re.ASCII
)


def _duration(value: Any) -> Any:
    if type(value) is str:
        if not _DURATION.fullmatch(value):
            raise WireError("expected a duration in days, hours, minutes and seconds, such as P1DT2H30M or PT0.5S")
        value = _parsed(_duration_from, value, "a duration")
    elif not isinstance(value, timedelta):
        refuse("a duration in a string", value)
    elif type(value) is not timedelta and _duration_from(duration_text(value)) != value:
        refuse("a duration in microseconds", value)
    return duration_text(value)


def _bounded_duration(value: Any) -> Any:
    """One that a column of type Interval holds."""
    wire = _duration(value)
    check_duration(value if isinstance(value, timedelta) else _duration_from(wire))
    return wire


def check_duration(value: timedelta) -> None:
    """Raises: WireError."""
    if not INT_MIN <= value // timedelta(microseconds=1) <= INT_MAX:
        raise WireError("expected a duration of 64 bits of microseconds, which are 106,751,991 days; got a longer one")


def duration_text(value: timedelta) -> str:
    """ISO 8601 in days, hours, minutes and seconds, each with its carry taken: 90 minutes are always `PT1H30M`."""
    size = abs(value)
    minutes, seconds = divmod(size.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    fraction = f".{size.microseconds:06}".rstrip("0") if size.microseconds else ""
    clock = "".join(f"{count}{unit}" for count, unit in ((hours, "H"), (minutes, "M")) if count)
    clock += f"{seconds}{fraction}S" if seconds or fraction or not (clock or size.days) else ""
    days = f"{size.days}D" if size.days else ""
    return ("-" if value < timedelta() else "") + "P" + days + ("T" + clock if clock else "")


def _duration_from(text: str) -> timedelta:
    """Raises: ValueError, when it is longer than a timedelta."""
    found = _DURATION.fullmatch(text)
    assert found is not None
    sign, days, hours, minutes, seconds, fraction = found.groups()
    try:
        size = timedelta(
            days=int(days or 0),
            hours=int(hours or 0),
            minutes=int(minutes or 0),
            seconds=int(seconds or 0),
            microseconds=int((fraction or "").ljust(6, "0")),
        )
        return -size if sign else size
    except OverflowError as error:
        raise ValueError(str(error)) from None


_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)


def _uuid(value: Any) -> Any:
    if isinstance(value, UUID):
        return str(value)
    if type(value) is not str:
        refuse("a UUID in a string", value)
    if not _UUID.fullmatch(value):
        raise WireError("expected a UUID of 36 characters with hyphens")
    return value.lower()


def _parsed(parse: Callable[[str], Any], text: str, what: str) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise WireError(f"expected {what} of the calendar: {error}") from None


# Canonical: the bits after the last byte are zero.
_BASE64 = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$"
_INT_SCHEMA = {"type": "integer", "minimum": INT_MIN, "maximum": INT_MAX}
_DURATION_SCHEMA: Final = {"type": "string", "format": "duration", "pattern": f"^{_DURATION_SHAPE}$"}
SCALARS: dict[Any, Codec] = {
    int: Codec(_int, same, _INT_SCHEMA, plain=True),
    float: Codec(_float, same, {"type": "number"}, plain=True),
    bool: Codec(_bool, same, {"type": "boolean"}, plain=True),
    str: Codec(text, same, {"type": "string"}, plain=True),
    type(None): Codec(_null, same, {"type": "null"}, plain=True),
    bytes: Codec(_bytes, base64.b64decode, {"type": "string", "contentEncoding": BASE64, "pattern": _BASE64}),
    Decimal: Codec(_decimal, Decimal, {"type": "string", "format": "decimal"}),
    datetime: Codec(_datetime, datetime.fromisoformat, {"type": "string", "format": "date-time"}),
    date: Codec(_date, date.fromisoformat, {"type": "string", "format": "date"}),
    time: Codec(_time, time.fromisoformat, {"type": "string", "format": "time-local", "pattern": f"^{_TIME_OF_DAY.pattern}$"}),
    timedelta: Codec(_bounded_duration, _duration_from, _DURATION_SCHEMA),
    UUID: Codec(_uuid, UUID, {"type": "string", "format": "uuid"}),
}
ANY_DURATION: Final = Codec(_duration, _duration_from, _DURATION_SCHEMA)
"""Of results, which old logs have beyond 64 bits."""
