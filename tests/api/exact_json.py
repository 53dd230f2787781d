"""Strict JSON the long way: a reader over the standard library's scanner, which sees every key and every digit.

The tests hold the gate's `loads_strict` to its verdict and its value.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NoReturn

from cmdlog.api.gate.strict_json import (
    DEPTH_MAX,
    INT_CHARS_MAX,
    INT_MAX,
    INT_MIN,
    NUMBER_CHARS_MAX,
    SHOWN_CHARS_MAX,
    NotStrict,
)

_STRINGS: Final = re.compile(r'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def loads_exactly(text: bytes, *, around: int = 0) -> Any:
    """The value of a text; `around` is how many more levels than a value it may have. Raises: NotStrict."""
    try:
        decoded = text.decode()
    except UnicodeDecodeError as error:
        raise NotStrict(f"is not JSON: byte {error.start} is not UTF-8") from None
    _check_depth(decoded, DEPTH_MAX + around)
    try:
        value = _DECODER.decode(decoded)
    except json.JSONDecodeError as error:
        raise NotStrict(f"is not JSON: {error}") from None
    _check_strings(value)
    return value


def _check_depth(text: str, depth_max: int) -> None:
    """Before anything that calls itself: brackets outside of strings, counted."""
    depth = 0
    for char in _STRINGS.sub("", text):
        if char in "[{":
            depth += 1
            if depth > depth_max:
                _too_deep()
        elif char in "]}":
            depth -= 1


def _check_text(text: str) -> None:
    if "\0" in text:
        raise NotStrict("contains the character U+0000")
    if not text.isascii() and _SURROGATE.search(text):
        raise NotStrict("contains a lone surrogate")


def _check_strings(value: Any) -> None:
    """The keys were looked at one by one, also those that came twice."""
    if type(value) is str:
        _check_text(value)
    elif type(value) is list:
        for inner in value:
            _check_strings(inner)
    elif type(value) is dict:
        for inner in value.values():
            _check_strings(inner)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = {}
    for key, value in pairs:
        _check_text(key)
        if key in found:
            raise NotStrict(f"the key {key[:SHOWN_CHARS_MAX]!r} occurs twice")
        found[key] = value
    return found


def _integer(text: str) -> int:
    value = int(text) if len(text) <= INT_CHARS_MAX else INT_MAX + 1
    if not INT_MIN <= value <= INT_MAX:
        raise NotStrict("contains an integer outside of -2^63 to 2^63-1")
    return value


def _double(text: str) -> float:
    if len(text) > NUMBER_CHARS_MAX:
        raise NotStrict(f"contains a number of more than {NUMBER_CHARS_MAX} characters")
    value = float(text)
    if not -float("inf") < value < float("inf"):
        raise NotStrict("contains a number that overflows")
    return value


def _constant(name: str) -> NoReturn:
    raise NotStrict(f"is not JSON: {name} is not a number")


def _too_deep() -> NoReturn:
    raise NotStrict(f"is nested deeper than {DEPTH_MAX} levels")


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_double, parse_constant=_constant, strict=True
)
