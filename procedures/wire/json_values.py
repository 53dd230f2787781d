"""Any JSON value: what `Any` and `object` mean as the type of a parameter.

Canonical: members of objects are ordered by their names, so that equal values are equal bytes in the log, and a retry under
an idempotency key is recognised however its caller ordered them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from procedures.wire.frozen import FrozenDict, FrozenList
from procedures.wire.scalar_codecs import SCALARS, Codec, WireError, text

DEPTH_MAX: Final = 64  # of nesting; readers of JSON refuse more

_LEAVES: Final[dict[type, Callable[[Any], Any]]] = {kind: SCALARS[kind].to_wire for kind in (type(None), bool, int, float, str)}


def canonical_json(value: Any, depth: int = 0) -> Any:
    """The value as JSON types, its objects ordered by name.

    Raises: WireError: it holds something else (sets, NaN, times, names that are no strings), or is nested too deep.
    """
    leaf = _LEAVES.get(type(value))
    if leaf is not None:
        return leaf(value)
    if depth > DEPTH_MAX:
        raise WireError(f"expected at most {DEPTH_MAX} levels of arrays and objects")
    if isinstance(value, list | tuple):
        return [_member(f"[{at}]", element, depth) for at, element in enumerate(value)]
    if isinstance(value, Mapping):
        return {name: _member(f".{name}", value[name], depth) for name in sorted(map(text, value))}
    raise WireError(f"expected JSON, got {type(value).__name__}; a type hint that says so has a wire form")


def _member(place: str, value: Any, depth: int) -> Any:
    try:
        return canonical_json(value, depth + 1)
    except WireError as error:
        raise WireError(f"{place}{'' if str(error)[:1] in '.[' else ': '}{error}") from None


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return FrozenList(map(_frozen, value))
    if isinstance(value, dict):
        return FrozenDict((name, _frozen(element)) for name, element in value.items())
    return value


def _array(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        raise WireError(f"expected an array, got {type(value).__name__}")
    return canonical_json(value)


def _object(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise WireError(f"expected an object, got {type(value).__name__}")
    return canonical_json(value)


_ANYTHING: Final = Codec(canonical_json, _frozen, {})
JSON_CODEC: Final[dict[Any, Codec]] = {
    Any: _ANYTHING,
    object: _ANYTHING,
    list: Codec(_array, _frozen, {"type": "array", "items": {}}),
    dict: Codec(_object, _frozen, {"type": "object", "additionalProperties": True}),
}
