"""Type hints as wire formats: one `Codec` per hint, checked once at the gate.

*Wire form* is what JSON holds: numbers, strings, true/false/null, arrays, objects. The log, the network and the answers
all carry it. `to_wire` is strict and canonical: it takes a Python value or its wire form, and gives the one wire form, or
raises `WireError`. `from_wire` trusts its input; a codec whose wire form *is* the Python value has `plain = True` and
costs nothing on the way in.

`WIRE_FORM` is the version of this table. A log is read by the table of today, so a row that exists never changes its
meaning; a new version adds rows.

| hint | wire | since |
|---|---|---|
| bool, None, str | the same; strings hold no lone surrogates | 1 |
| int | integer of 64 bits, never a bool | 1 |
| float | finite number; integers are converted | 1 |
| bytes | base64 with padding | 1 |
| Decimal | string of digits, finite | 1 |
| datetime | RFC 3339; given with any offset, kept in UTC (`…Z`); naive ones are refused | 1 |
| date, UUID | `YYYY-MM-DD`; 36 characters with hyphens, lower case | 1 |
| time | `HH:MM:SS` and up to six digits of a fraction, without a zone | 2 |
| timedelta | ISO 8601 in days, hours, minutes and seconds: `P1DT2H3M4.5S`, `-PT1S`, `PT0S` | 2 |
| Enum, Literal | the value | 1 |
| list[T], tuple[T, ...], tuple[A, B], dict[str, T] | array, array, array of that length, object in the caller's order | 1 |
| frozen dataclass | object, field by field; unknown fields are refused; made again it is equal (`repeated_objects`) | 1 |
| T or None | null, or T | 1 |
| other unions | the form of the one member that the value fits; what could be two of them is refused | 2 |
| NewType, a type alias | as what it stands for | 2 |
| Any, object, dict[str, Any], list[Any] | JSON of at most 64 levels; members of objects in the order of their names | 2 |
| TypedDict | object, in the order of the declaration; keys that are not required may be missing | 2 |
| NamedTuple | array, field by field; the last ones may be left out if they have defaults | 2 |
| pydantic models, and what else pydantic writes | pydantic's JSON, members in the order of their names (`model_codecs`) | 2 |
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from datetime import timedelta
from typing import Any, Final

from procedures.errors import DefinitionError
from procedures.wire.dataclass_codec import dataclass_codec, named_tuple_codec, object_schema
from procedures.wire.frozen import FrozenDict, FrozenList
from procedures.wire.json_values import JSON_CODEC
from procedures.wire.repeated_objects import UNCHECKED
from procedures.wire.scalar_codecs import ANY_DURATION, SCALARS, Codec, WireError, field_to_wire, refuse, same, text
from procedures.wire.union_codec import union_codec

WIRE_FORM: Final = 2


def codec_for(hint: Any) -> Codec:
    """The codec of a type hint.

    Raises:
        DefinitionError: the hint has no wire form.
    """
    return _build(hint, ())


def _build(hint: Any, inside: tuple[Any, ...]) -> Codec:
    """`inside` holds the dataclasses around the hint, so that one that contains itself is refused, not built for ever."""
    scalar = SCALARS.get(hint) if isinstance(hint, type) else None
    if hint is None:
        return SCALARS[type(None)]
    if scalar is not None:
        return ANY_DURATION if hint is timedelta and UNCHECKED.get() else scalar
    if hint is Any or hint is object or hint in (dict, list):
        return JSON_CODEC[hint]
    if isinstance(hint, typing.NewType):
        return _build(hint.__supertype__, inside)
    if hasattr(hint, "__value__"):  # `type X = ...` of Python 3.12
        return _build(hint.__value__, inside)
    return _build_generic(hint, inside) or _build_class(hint, inside)


def _build_generic(hint: Any, inside: tuple[Any, ...]) -> Codec | None:
    """The codec of a hint with arguments, such as `list[int]`; None for every other."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Annotated, typing.Required, typing.NotRequired):
        return _build(arguments[0], inside)
    if origin in (typing.Union, types.UnionType):
        return _union(hint, arguments, inside)
    if origin is typing.Literal:
        return _literal(arguments)
    if origin is list:
        return JSON_CODEC[list] if arguments[0] in (Any, object) else _list(_build(arguments[0], inside))
    if origin is tuple:
        return _tuple(arguments, inside)
    if origin is dict and arguments[0] is str:
        return JSON_CODEC[dict] if arguments[1] in (Any, object) else _dict(_build(arguments[1], inside))
    return None


def _build_class(hint: Any, inside: tuple[Any, ...]) -> Codec:
    if typing.is_typeddict(hint):
        return _typed_dict(hint, inside)
    if isinstance(hint, type):
        if issubclass(hint, enum.Enum):
            return _enum(hint)
        if dataclasses.is_dataclass(hint):
            return dataclass_codec(hint, inside, _build)
        if issubclass(hint, tuple) and hasattr(hint, "_fields"):
            return named_tuple_codec(hint, inside, _build)
    from procedures.wire.model_codecs import pydantic_codec  # noqa: PLC0415 - it brings pydantic, which few need

    return pydantic_codec(hint)


def _union(hint: Any, arguments: tuple[Any, ...], inside: tuple[Any, ...]) -> Codec:
    others = [argument for argument in arguments if argument is not type(None)]
    if len(others) == 1 and len(arguments) == 2:
        return _optional(_build(others[0], inside))
    return union_codec(hint, [_build(argument, inside) for argument in arguments])


def _optional(inner: Codec) -> Codec:
    to_wire, from_wire = inner.to_wire, inner.from_wire
    return Codec(
        lambda value: None if value is None else to_wire(value),
        same if inner.plain else lambda value: None if value is None else from_wire(value),
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

    return Codec(to_wire, same, {"enum": list(values)}, plain=True)


def _enum(kind: type[enum.Enum]) -> Codec:
    inner = _literal(tuple(member.value for member in kind))

    def to_wire(value: Any) -> Any:
        return inner.to_wire(value.value if isinstance(value, kind) else value)

    return Codec(to_wire, kind, inner.schema)


def _items(value: Any, item: Codec) -> list[Any]:
    if not isinstance(value, list | tuple):
        refuse("an array", value)
    wire = []
    for position, element in enumerate(value):
        try:
            wire.append(item.to_wire(element))
        except WireError as error:
            raise type(error)(f"[{position}]: {error}") from None
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
            refuse(f"an array of {len(items)}", value)
        return [item.to_wire(element) for item, element in zip(items, value, strict=True)]

    def from_wire(wire: Any) -> Any:
        return tuple(item.from_wire(element) for item, element in zip(items, wire, strict=True))

    schema = {"type": "array", "prefixItems": [item.schema for item in items], "minItems": len(items), "maxItems": len(items)}
    return Codec(to_wire, from_wire, schema)


def _dict(item: Codec) -> Codec:
    def to_wire(value: Any) -> Any:
        if not isinstance(value, dict):
            refuse("an object", value)
        return {text(key): field_to_wire(key, item, element) for key, element in value.items()}

    def from_wire(wire: Any) -> Any:
        return FrozenDict((key, item.from_wire(element)) for key, element in wire.items())

    return Codec(to_wire, from_wire, {"type": "object", "additionalProperties": item.schema})


def _typed_dict(kind: Any, inside: tuple[Any, ...]) -> Codec:
    """Object with the declared keys, in their order; `NotRequired` ones may be missing."""
    if kind in inside:
        raise DefinitionError(f"{kind.__name__} contains itself; a value on the wire has a bounded depth")
    hints = typing.get_type_hints(kind, include_extras=True)
    codecs = {name: _build(hint, (*inside, kind)) for name, hint in hints.items()}
    said = {name: typing.get_origin(hint) for name, hint in hints.items()}
    required = {  # the hint has the last word: where annotations are texts, the class does not know its `NotRequired`
        name
        for name in hints
        if said[name] is typing.Required or (said[name] is not typing.NotRequired and name in kind.__required_keys__)
    }

    def to_wire(value: Any) -> Any:
        if not isinstance(value, dict):
            refuse("an object", value)
        if unknown := sorted(str(name) for name in value.keys() - codecs.keys()):
            raise WireError(f"unknown key {', '.join(unknown)}")
        if missing := sorted(required - value.keys()):
            raise WireError(f"missing key {', '.join(missing)}")
        return {name: field_to_wire(name, codec, value[name]) for name, codec in codecs.items() if name in value}

    def from_wire(wire: Any) -> Any:
        return FrozenDict((name, codecs[name].from_wire(element)) for name, element in wire.items())

    return Codec(to_wire, from_wire, object_schema(kind, codecs, required))
