"""Python values as the wire has them, chosen by the values' own types: the client knows no signatures.

One rule: what has no exact form in JSON is refused here, by field, and never bent: no NaN becomes null, no time loses its zone.

bytes are base64, Decimal and UUID strings, datetime RFC 3339 in UTC, Enum its value, dataclasses and
pydantic models objects, tuples arrays, durations ISO 8601.
"""

from __future__ import annotations

import base64
import dataclasses
import math
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final
from uuid import UUID

import orjson

from cmdlog.errors import InvalidParameters

DEPTH_MAX: Final = 64  # of nesting; the server refuses more
INT_MIN: Final = -(1 << 63)
INT_MAX: Final = (1 << 63) - 1
PLAIN: Final = frozenset((int, str, bool, type(None)))  # orjson writes them as they are, or raises


class NoWireForm(ValueError):
    """The value cannot be sent; the text says why."""


def encode_params(params: Mapping[str, Any]) -> bytes:
    """The JSON object of a call's parameters. Raises: InvalidParameters."""
    if all(type(value) in PLAIN for value in params.values()):
        try:
            return orjson.dumps(params)
        except TypeError:
            pass  # an integer beyond 64 bits, a lone surrogate: the slow way names the field
    problems: list[tuple[str, str]] = []
    wire: dict[str, Any] = {}
    for name, value in params.items():
        try:
            wire[_text(name)] = to_wire(value)
        except NoWireForm as error:
            problems.append((repr(name).strip("'"), str(error)))
    if problems:
        raise InvalidParameters(problems=problems)
    return orjson.dumps(wire)


def is_json(value: Any) -> bool:
    """Whether the value has JSON's own types alone."""
    if type(value) is dict:
        return all(type(name) is str and is_json(inner) for name, inner in value.items())
    return type(value) in PLAIN or type(value) is float or (type(value) is list and all(map(is_json, value)))


def to_wire(value: Any, depth: int = 1) -> Any:
    """The value as JSON types. Raises: NoWireForm."""
    if value is None or value is True or value is False:
        return value
    for kind, convert in _SCALARS:
        if isinstance(value, kind):
            return convert(value)
    if depth > DEPTH_MAX:
        raise NoWireForm(f"is nested deeper than {DEPTH_MAX} levels")
    if isinstance(value, Mapping):
        return {_text(key): to_wire(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_wire(inner, depth + 1) for inner in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        _check_remade(value)
        return {field.name: to_wire(getattr(value, field.name), depth + 1) for field in dataclasses.fields(value) if field.init}
    if hasattr(type(value), "model_dump"):  # a model of pydantic, which a client need not have
        return to_wire(_model_json(value), depth + 1)
    raise NoWireForm(f"is of type {type(value).__name__}, which cannot be sent as JSON")


def _check_remade(value: Any) -> None:
    """Raises: NoWireForm, when the server would make another object of the fields of this dataclass."""
    kind, fields = type(value), dataclasses.fields(value)
    if not hasattr(kind, "__post_init__"):
        return
    try:
        again = dataclasses.replace(value)
    except Exception as error:
        raise NoWireForm(f"is a {kind.__name__} that its own fields do not make again: {error}") from error
    for field in fields:
        if getattr(value, field.name) != getattr(again, field.name):
            raise NoWireForm(
                f"is a {kind.__name__} whose {field.name} is another once it is made again, as the server makes it: its "
                "__post_init__ must leave a finished object as it is; or send a dict"
            )


def _model_json(value: Any) -> Any:
    """The JSON of a model. Raises: NoWireForm, when the model reads another one in it."""
    kind, told = type(value), value.model_dump(mode="json", by_alias=True)
    try:
        same = kind.model_validate_json(orjson.dumps(told)) == value
    except ValueError as error:
        raise NoWireForm(f"is a {kind.__name__}, which cannot read the JSON that it writes: {error}") from None
    if not same:
        raise NoWireForm(f"is a {kind.__name__} that does not come back equal from its JSON; correct the model, or send a dict")
    return told


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise NoWireForm(f"a name must be a string, not {type(value).__name__}")
    text = str.__str__(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise NoWireForm("contains a lone surrogate, which is not a Unicode character") from None
    return text


def _integer(value: int) -> int:
    if not INT_MIN <= value <= INT_MAX:
        raise NoWireForm("is longer than 64 bits")
    return int(value)


def _float(value: float) -> float:
    if not math.isfinite(value):
        raise NoWireForm("is NaN or infinite")
    return float(value)


def _decimal(value: Decimal) -> str:
    if not value.is_finite():
        raise NoWireForm("is NaN or infinite")
    return str(value)


def _datetime(value: datetime) -> str:
    if value.tzinfo is None:
        raise NoWireForm("is a time without a time zone")
    try:
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    except OverflowError:
        raise NoWireForm("lies outside of the years 1 to 9999 in UTC") from None


def _time(value: time) -> str:
    if value.tzinfo is not None:
        raise NoWireForm("is a time of day with a zone, whose offset depends on the date")
    return value.isoformat()


def _duration(value: timedelta) -> str:
    size = abs(value)
    return f"{'-' if value < timedelta() else ''}P{size.days}DT{size.seconds}.{size.microseconds:06}S"


def _bytes(value: bytes | bytearray | memoryview) -> str:
    return base64.b64encode(value).decode()


_SCALARS: Final[tuple[tuple[Any, Callable[[Any], Any]], ...]] = (
    (Enum, lambda value: to_wire(value.value)),  # before int and str, which its members may be as well
    (str, _text),
    (int, _integer),
    (float, _float),
    (bytes | bytearray | memoryview, _bytes),
    (Decimal, _decimal),
    (datetime, _datetime),  # before date, which it is as well
    (date, date.isoformat),
    (time, _time),
    (timedelta, _duration),
    (UUID, str),
)
