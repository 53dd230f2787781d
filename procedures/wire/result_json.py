"""Results on the way out: the body of an answer as JSON bytes.

The body is hashed and compared between replicas and replays, so the same result must give the same bytes: NaN and
infinities are refused (JSON has no word for them), sets too (their order differs between processes).
"""

from __future__ import annotations

import dataclasses
import enum
import typing
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cache
from typing import Any
from uuid import UUID

import orjson

from procedures.errors import DefinitionError
from procedures.wire.context_flags import raised
from procedures.wire.repeated_objects import UNCHECKED
from procedures.wire.scalar_codecs import INT_MAX, INT_MIN, Codec, WireError
from procedures.wire.type_codecs import codec_for

RESULT_BYTES_MAX = 8 << 20  # one answer; more belongs into a query with pages
_DEPTH_MAX = 64  # a deeper result is a mistake, and readers refuse it

Encode = Callable[[Any], bytes]
_dumps = orjson.dumps


def encoder_for(hint: Any) -> tuple[Encode, Codec | None]:
    """Encoder of a procedure's results from its return annotation, and the codec that it uses.

    An annotation that says nothing exact (`Any`, `object`, `dict`, `list`, none at all) gives the general encoder.
    """
    if hint is int:
        return _encode_int, codec_for(int)
    if hint is None or hint is type(None):
        return _encode_none, codec_for(None)
    if hint in (Any, object, dict, list, tuple) or typing.get_args(hint)[-1:] in ((Any,), (object,)):
        return encode_any, None
    try:
        codec = _result_codec(hint)
    except DefinitionError as error:
        raise DefinitionError(f"result: {error}") from None
    to_wire = codec.to_wire
    return (lambda value: _bounded(_dumps(to_wire(value)))), codec


def _encode_int(value: Any) -> bytes:
    if type(value) is int and INT_MIN <= value <= INT_MAX:
        return _dumps(value)
    raise WireError(f"result: annotated as an integer of 64 bits, got {type(value).__name__}")


def _encode_none(value: Any) -> bytes:
    if value is None:
        return b"null"
    raise WireError(f"result: annotated as None, got {type(value).__name__}")


def encode_any(value: Any) -> bytes:
    """JSON of a value by its own types, without an annotation to hold it to: each has the form that it has as a hint.

    Models go with their members in the order of their names, all other objects in their own order.
    """
    return _bounded(_dumps(to_json(value)))


def _bounded(body: bytes) -> bytes:
    if len(body) > RESULT_BYTES_MAX:
        raise WireError(f"result of {len(body)} bytes is over the limit of {RESULT_BYTES_MAX}")
    return body


_EXACT: dict[type, Callable[[Any], Any]] = {
    type(None): lambda value: None,
    **{kind: codec_for(kind).to_wire for kind in (bool, int, float, str, bytes, Decimal, datetime, date, UUID)},
}


def to_json(value: Any, depth: int = 0) -> Any:
    """Wire form by the value's own type.

    Raises:
        WireError: it has none, or is nested too deep.
    """
    exact = _EXACT.get(type(value))
    if exact is not None:
        return exact(value)
    if depth > _DEPTH_MAX:
        raise WireError(f"result is nested deeper than {_DEPTH_MAX}")
    if isinstance(value, list | tuple):
        return [to_json(element, depth + 1) for element in value]
    if isinstance(value, dict):
        return {_key(key): to_json(element, depth + 1) for key, element in value.items()}
    if isinstance(value, enum.Enum):
        return to_json(value.value, depth + 1)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name), depth + 1) for field in dataclasses.fields(value)}
    for kind, plain in _PLAIN:  # subclasses, such as SQLAlchemy's quoted names, count as what they derive from
        if isinstance(value, kind) and type(value) is not bool:
            return to_json(plain(value), depth + 1)
    return _later_form(value)


_PLAIN: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (str, str.__str__),
    (int, int.__int__),
    (float, float.__float__),
    (Decimal, Decimal),
)


def _later_form(value: Any) -> Any:
    """Durations, times of day, and models of pydantic. Raises: WireError."""
    kind = type(value)
    if kind not in (time, timedelta) and not hasattr(kind, "__pydantic_validator__"):
        instead = "a list, sorted: a set has no order" if isinstance(value, set | frozenset) else _RETURNABLE
        raise WireError(f"result: {kind.__name__} has no JSON form; return {instead}")
    try:
        return _codec_of(kind).to_wire(value)
    except (WireError, DefinitionError) as error:
        raise WireError(f"result: {error}") from None


_RETURNABLE = "numbers, texts, bytes, times, lists, dicts, dataclasses or pydantic models"


def _result_codec(kind: Any) -> Codec:
    with raised(UNCHECKED):
        return codec_for(kind)


_codec_of: Callable[[Any], Codec] = cache(_result_codec)


def _key(key: Any) -> str:
    if type(key) is str:
        return str(_EXACT[str](key))
    raise WireError(f"result: keys of objects are strings, not {type(key).__name__}")
