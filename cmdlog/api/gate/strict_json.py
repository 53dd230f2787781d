"""Strict JSON: one text has one meaning, and that meaning survives every hop to the log, to SQL and back.

One rule: what could be read in two ways, or not be kept exactly, is refused: a key that comes twice, NaN and infinities, a number
that overflows, an integer beyond 64 bits, a lone surrogate, the character U+0000 (SQLite's text functions stop at it), a value of
more than `DEPTH_MAX` levels; those of a body or a line *around* its values do not count. A number with a fraction or an exponent
means the double that is nearest to it, as everywhere in JSON.

`loads_strict` is on the hottest path. orjson parses, and cheap tests on its result and on the raw bytes *prove* the common case:

- every member has a colon of its own, so as many `:` as keys leave no room for a second key of the same name;
- orjson turns an integer beyond 64 bits into a float of at least 2^63, so a smaller float was none;
- U+0000 can only be written `\\u0000`; bytes below 0x20 are no JSON, and neither are lone surrogates to orjson.

What these tests do not prove goes to `loads_exactly`, which decides: a parser of its own over the standard library's scanner,
which sees every key and every digit. The tests hold both to the same verdict and the same value.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NoReturn

import orjson

from cmdlog.api.native import steps

DEPTH_MAX: Final = 64  # of a value, wherever it comes; `cmdlog.client.wire_values` has the same
INT_MIN: Final = -(1 << 63)  # SQLite's integers
INT_MAX: Final = (1 << 63) - 1
INT_CHARS_MAX: Final = 20  # of an integer within 64 bits; longer ones are not converted to find that out
NUMBER_CHARS_MAX: Final = 1024  # no double needs as many; longer ones only do harm
SHOWN_CHARS_MAX: Final = 80  # of a key, in a message
FLOAT_SURE: Final = float(1 << 63)  # a smaller float was no integer
CLOSER: Final = -(1 << 62)  # less than 0 whatever is added to it
TOO_DEEP: Final = -2  # of `requests.count_keys`
NUL: Final = b"\\u0000"
OPENERS: Final = ("[", "{")

_CONTAINERS: Final = (dict, list)
_NUMBERS: Final = bytes(0x30 if chr(byte) in "0123456789.eE+-" else 0x20 for byte in range(256))
_LONG_NUMBER: Final = b"0" * (NUMBER_CHARS_MAX + 1)
_STRINGS: Final = re.compile(r'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_SURROGATE: Final = re.compile("[\ud800-\udfff]")

_loads: Final = orjson.loads


class NotStrict(ValueError):
    """The text is not JSON, or not JSON with one meaning; `str()` says why and where, and shows none of its values."""


def loads_strict(text: bytes, *, around: int = 0) -> Any:
    """The value of a JSON text in UTF-8; `around` is how many more levels than a value it may have. Raises: NotStrict."""
    try:
        value = _loads(text)
    except orjson.JSONDecodeError as error:
        if error.doc[error.pos - 1 : error.pos] in OPENERS:  # orjson has a depth of its own, which is not what we promise
            _check_depth(error.doc[: error.pos], DEPTH_MAX + around)
        raise NotStrict(f"is not JSON: {error}") from None
    keys = _count(value, around)
    if keys != text.count(b":") and keys != _separators_at_most(text):
        return loads_exactly(text, around=around)
    if b"\\" in text and NUL in text:  # to look for one byte first is 100 times faster
        return loads_exactly(text, around=around)
    if len(text) > NUMBER_CHARS_MAX and _LONG_NUMBER in text.translate(_NUMBERS):
        return loads_exactly(text, around=around)
    return value


def _separators_at_most(text: bytes) -> int:
    """Colons that may stand between a key and its value: a quote or white space comes before them. A time of day has others."""
    return text.count(b'":') + text.count(b" :") + text.count(b"\n:") + text.count(b"\t:") + text.count(b"\r:")


def _count_keys(value: Any, depth: int) -> int:
    """How many members there are; less than 0 when a number needs a closer look. Raises: NotStrict."""
    if type(value) is dict:
        keys = len(value)
        value = value.values()
    else:
        keys = 0
    for inner in value:
        kind = type(inner)
        if kind is int:
            if not INT_MIN <= inner <= INT_MAX:
                return CLOSER
        elif kind is float:
            if not -FLOAT_SURE < inner < FLOAT_SURE:
                return CLOSER
        elif kind in _CONTAINERS:
            if depth == DEPTH_MAX:
                _too_deep()
            keys += _count_keys(inner, depth + 1)
    return keys


def _count_in_python(value: Any, around: int = 0) -> int:
    return _count_keys(value, 1 - around) if type(value) in _CONTAINERS else _count_keys((value,), 0)


def _count_in_c(value: Any, around: int) -> int:
    keys: int = _in_c(value)
    return keys if keys != TOO_DEEP else _count_in_python(value, around)  # it knows of no level around


_in_c: Any = None if steps is None else steps.count_keys
_count: Final = _count_in_python if steps is None else _count_in_c


def loads_exactly(text: bytes, *, around: int = 0) -> Any:
    """The same verdict and value as `loads_strict`, the long way. Raises: NotStrict."""
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
