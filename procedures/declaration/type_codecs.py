"""Type hints as wire formats: one `Codec` per hint, checked once at the gate.

*Wire form* is what JSON holds: numbers, strings, true/false/null, arrays, objects. The log, the network and the answers
all carry it. `to_wire` is strict and canonical: it takes a Python value or its wire form, and gives the one wire form, or
raises `WireError`. `from_wire` trusts its input; a codec whose wire form *is* the Python value has `plain = True` and
costs nothing on the way in.

| hint | wire |
|---|---|
| bool, None, str | the same; strings hold no lone surrogates |
| int | integer of 64 bits, never a bool |
| float | finite number; integers are converted |
| bytes | base64 with padding |
| Decimal | string of digits, finite |
| datetime | RFC 3339; given with any offset, kept in UTC (`…Z`); naive ones are refused |
| date, UUID | `YYYY-MM-DD`; 36 characters with hyphens, lower case |
| Enum, Literal | the value |
| list[T], tuple[T, ...], tuple[A, B], dict[str, T] | array, array, array of that length, object |
| frozen dataclass | object, field by field; unknown fields are refused |
| T or None | null, or T |
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import enum
import math
import re
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, NoReturn
from uuid import UUID

from procedures.declaration.frozen import FrozenDict, FrozenList
from procedures.errors import DefinitionError

INT_MIN = -(1 << 63)  # SQLite's integers; JSON readers of other languages hold these as well
INT_MAX = (1 << 63) - 1
DECIMAL_DIGITS_MAX = 64  # twice what IEEE decimal128 holds; arithmetic on them stays cheap
DECIMAL_EXPONENT_MAX = 6144  # as IEEE decimal128: 1E+999999999 would take gigabytes to write out

Convert = Callable[[Any], Any]
Schema = dict[str, Any]


class WireError(ValueError):
    """A value does not fit its type hint; the text says what was expected."""


@dataclass(frozen=True, slots=True)
class Codec:
    """How one type hint crosses the wire."""

    to_wire: Convert  # strict, canonical; raises WireError
    from_wire: Convert  # trusts its input
    schema: Schema  # JSON schema of the wire form
    plain: bool = False  # from_wire gives its argument back


def _same(value: Any) -> Any:
    return value


def _name(value: Any) -> str:
    return "null" if value is None else type(value).__name__


def _refuse(expected: str, value: Any) -> NoReturn:
    raise WireError(f"expected {expected}, got {_name(value)}")


def _int(value: Any) -> Any:
    if type(value) is int:
        if INT_MIN <= value <= INT_MAX:
            return value
        raise WireError("expected an integer of 64 bits, got a longer one")
    _refuse("an integer", value)


def _float(value: Any) -> Any:
    if type(value) is float:
        if math.isfinite(value):
            return value
        raise WireError("expected a finite number, got NaN or infinity")
    if type(value) is int:
        return float(_int(value))
    _refuse("a number", value)


def _bool(value: Any) -> Any:
    if value is True or value is False:
        return value
    _refuse("true or false", value)


def _null(value: Any) -> Any:
    if value is None:
        return None
    _refuse("null", value)


def _str(value: Any) -> Any:
    if type(value) is not str:
        _refuse("a string", value)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise WireError("expected a string of Unicode characters, got a lone surrogate") from None
    return value


def _bytes(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if type(value) is not str:
        _refuse("a base64 string", value)
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
        _refuse("a decimal number in a string", value)
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
        _refuse("a time in a string", value)
    if value.tzinfo is None:
        raise WireError("expected a time with its zone, got a naive datetime")
    try:
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    except OverflowError:
        raise WireError("expected a time between the years 1 and 9999 in UTC") from None


def _date(value: Any) -> Any:
    if type(value) is str:
        if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", value, re.ASCII):
            raise WireError("expected a date such as 2026-01-31")
        value = _parsed(date.fromisoformat, value, "a date")
    elif not isinstance(value, date) or isinstance(value, datetime):
        _refuse("a date in a string", value)
    return value.isoformat()


_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)


def _uuid(value: Any) -> Any:
    if isinstance(value, UUID):
        return str(value)
    if type(value) is not str:
        _refuse("a UUID in a string", value)
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
_SCALARS: dict[Any, Codec] = {
    int: Codec(_int, _same, _INT_SCHEMA, plain=True),
    float: Codec(_float, _same, {"type": "number"}, plain=True),
    bool: Codec(_bool, _same, {"type": "boolean"}, plain=True),
    str: Codec(_str, _same, {"type": "string"}, plain=True),
    type(None): Codec(_null, _same, {"type": "null"}, plain=True),
    bytes: Codec(_bytes, base64.b64decode, {"type": "string", "contentEncoding": "base64", "pattern": _BASE64}),
    Decimal: Codec(_decimal, Decimal, {"type": "string", "format": "decimal"}),
    datetime: Codec(_datetime, datetime.fromisoformat, {"type": "string", "format": "date-time"}),
    date: Codec(_date, date.fromisoformat, {"type": "string", "format": "date"}),
    UUID: Codec(_uuid, UUID, {"type": "string", "format": "uuid"}),
}


def codec_for(hint: Any) -> Codec:
    """The codec of a type hint.

    Raises:
        DefinitionError: the hint has no wire form.
    """
    return _build(hint, ())


def _build(hint: Any, inside: tuple[Any, ...]) -> Codec:
    """`inside` holds the dataclasses around the hint, so that one that contains itself is refused, not built for ever."""
    scalar = _SCALARS.get(hint) if isinstance(hint, type) else None
    if hint is None:
        return _SCALARS[type(None)]
    if scalar is not None:
        return scalar
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _build(arguments[0], inside)
    if origin in (typing.Union, types.UnionType):
        return _optional(hint, arguments, inside)
    if origin is typing.Literal:
        return _literal(arguments)
    if origin is list:
        return _list(_build(arguments[0], inside))
    if origin is tuple:
        return _tuple(arguments, inside)
    if origin is dict and arguments[0] is str:
        return _dict(_build(arguments[1], inside))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _enum(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _dataclass(hint, inside)
    raise DefinitionError(f"{hint!r} has no wire form; use a type of the table in procedures/declaration/type_codecs.py")


def _optional(hint: Any, arguments: tuple[Any, ...], inside: tuple[Any, ...]) -> Codec:
    others = [argument for argument in arguments if argument is not type(None)]
    if len(others) != 1 or len(arguments) != 2:
        raise DefinitionError(f"{hint!r}: of unions only `T | None` has one meaning on the wire")
    inner = _build(others[0], inside)
    to_wire, from_wire = inner.to_wire, inner.from_wire
    return Codec(
        lambda value: None if value is None else to_wire(value),
        _same if inner.plain else lambda value: None if value is None else from_wire(value),
        {"anyOf": [inner.schema, {"type": "null"}]},
        plain=inner.plain,
    )


def _literal(values: tuple[Any, ...]) -> Codec:
    if not all(type(value) in (int, str, bool) for value in values):
        raise DefinitionError("a Literal of a procedure holds integers, strings or booleans")
    allowed = {(type(value), value) for value in values}

    def to_wire(value: Any) -> Any:
        if type(value) in (int, str, bool) and (type(value), value) in allowed:
            return value
        raise WireError(f"expected one of {', '.join(map(repr, values))}")

    return Codec(to_wire, _same, {"enum": list(values)}, plain=True)


def _enum(kind: type[enum.Enum]) -> Codec:
    inner = _literal(tuple(member.value for member in kind))

    def to_wire(value: Any) -> Any:
        return inner.to_wire(value.value if isinstance(value, kind) else value)

    return Codec(to_wire, kind, inner.schema)


def _items(value: Any, item: Codec) -> list[Any]:
    if not isinstance(value, list | tuple):
        _refuse("an array", value)
    wire = []
    for position, element in enumerate(value):
        try:
            wire.append(item.to_wire(element))
        except WireError as error:
            raise WireError(f"[{position}]: {error}") from None
    return wire


def _list(item: Codec) -> Codec:
    from_item = item.from_wire
    plain = item.plain
    return Codec(
        lambda value: _items(value, item),
        FrozenList if plain else lambda wire: FrozenList(map(from_item, wire)),
        {"type": "array", "items": item.schema},
    )


def _tuple(arguments: tuple[Any, ...], inside: tuple[Any, ...]) -> Codec:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        item = _build(arguments[0], inside)
        return Codec(
            lambda value: _items(value, item),
            lambda wire: tuple(map(item.from_wire, wire)),
            {"type": "array", "items": item.schema},
        )
    items = [_build(argument, inside) for argument in arguments]

    def to_wire(value: Any) -> Any:
        if not isinstance(value, list | tuple) or len(value) != len(items):
            _refuse(f"an array of {len(items)}", value)
        return [item.to_wire(element) for item, element in zip(items, value, strict=True)]

    def from_wire(wire: Any) -> Any:
        return tuple(item.from_wire(element) for item, element in zip(items, wire, strict=True))

    schema = {"type": "array", "prefixItems": [item.schema for item in items], "minItems": len(items), "maxItems": len(items)}
    return Codec(to_wire, from_wire, schema)


def _dict(item: Codec) -> Codec:
    def to_wire(value: Any) -> Any:
        if not isinstance(value, dict):
            _refuse("an object", value)
        return {_str(key): _field(key, item, element) for key, element in value.items()}

    def from_wire(wire: Any) -> Any:
        return FrozenDict((key, item.from_wire(element)) for key, element in wire.items())

    return Codec(to_wire, from_wire, {"type": "object", "additionalProperties": item.schema})


def _field(name: Any, codec: Codec, value: Any) -> Any:
    try:
        return codec.to_wire(value)
    except WireError as error:
        raise WireError(f".{name}: {error}") from None


def _dataclass(kind: Any, inside: tuple[Any, ...]) -> Codec:
    """Object with one member per field; fields with a default may be left out, and the log then holds the default."""
    if kind in inside:
        raise DefinitionError(f"{kind.__name__} contains itself; a value on the wire has a bounded depth")
    if not kind.__dataclass_params__.frozen:
        raise DefinitionError(f"{kind.__name__} must be a frozen dataclass: parameters are values")
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = [field for field in dataclasses.fields(kind) if field.init]
    codecs = {field.name: _build(hints[field.name], (*inside, kind)) for field in fields}
    required = {
        field.name for field in fields if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }

    def to_wire(value: Any) -> Any:
        if isinstance(value, kind):
            return {name: _field(name, codec, getattr(value, name)) for name, codec in codecs.items()}
        if not isinstance(value, dict):
            _refuse("an object", value)
        if unknown := sorted(str(name) for name in value.keys() - codecs.keys()):
            raise WireError(f"unknown field {', '.join(unknown)}")
        if missing := sorted(required - value.keys()):
            raise WireError(f"missing field {', '.join(missing)}")
        given = {name: _field(name, codec, value[name]) for name, codec in codecs.items() if name in value}
        if len(given) == len(codecs):
            return given
        return to_wire(from_wire(given))  # the defaults come from the class itself

    def from_wire(wire: Any) -> Any:
        return kind(**{name: codecs[name].from_wire(element) for name, element in wire.items()})

    schema = {
        "type": "object",
        "title": kind.__name__,
        "properties": {name: codec.schema for name, codec in codecs.items()},
        "required": sorted(required),
        "additionalProperties": False,
    }
    return Codec(to_wire, from_wire, schema)
