"""Strict JSON: one text has one meaning, and that meaning survives every hop to the log, to SQL and back.

One rule: what could be read in two ways, or not be kept exactly, is refused: a key that comes twice, NaN and infinities, a number
that overflows, an integer beyond 64 bits, a lone surrogate, the character U+0000 (SQLite's text functions stop at it), a value of
more than `DEPTH_MAX` levels; those of a body or a line *around* its values do not count. A number with a fraction or an exponent
means the double that is nearest to it, as everywhere in JSON.

orjson parses; it checks grammar, UTF-8 and surrogates, and refuses numbers that overflow. The rest is found by one pass over the
text, in `native/strict_json.c` or here, whatever the text holds: its time is that of its length. Only the name of a repeated key
needs another parser, and is given for short texts.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import orjson

from cmdlog.api.native import steps

DEPTH_MAX: Final = 64  # of a value, wherever it comes; `cmdlog.client.wire_values` has the same
INT_MIN: Final = -(1 << 63)  # SQLite's integers
INT_MAX: Final = (1 << 63) - 1
INT_CHARS_MAX: Final = 20  # of an integer within 64 bits; longer ones are not converted to find that out
NUMBER_CHARS_MAX: Final = 1024  # no double needs as many; longer ones only do harm
NAMED_BYTES_MAX: Final = 16 << 10  # of a text whose repeated key is named: that takes 0.3 us a byte
SHOWN_CHARS_MAX: Final = 80  # of a key, in a message
OPENERS: Final = ("[", "{")

STRICT, REPEATED_KEY, TOO_DEEP, LARGE_INTEGER, LONG_NUMBER, NUL_CHARACTER = 0, -1, -2, -3, -4, -5  # as in strict_json.h
FLAWS: Final = {
    REPEATED_KEY: "has an object in which a key occurs twice",
    TOO_DEEP: f"is nested deeper than {DEPTH_MAX} levels",
    LARGE_INTEGER: "contains an integer outside of -2^63 to 2^63-1",
    LONG_NUMBER: f"contains a number of more than {NUMBER_CHARS_MAX} characters",
    NUL_CHARACTER: "contains the character U+0000",
}

_STRINGS: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_BRACKETS: Final = bytes(byte for byte in range(256) if chr(byte) not in "[]{}")  # all others
_LONG_NUMBERS: Final = re.compile(rb"[0-9][0-9.eE+-]{%d,}" % (INT_CHARS_MAX - 2))
_NUL: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_NO_VALUE: Final = object()

_loads: Final = orjson.loads


class NotStrict(ValueError):
    """The text is not JSON, or not JSON with one meaning; `str()` says why and where, and shows none of its values."""


def loads_strict(text: bytes, *, around: int = 0) -> Any:
    """The value of a JSON text in UTF-8; `around` is how many more levels than a value it may have. Raises: NotStrict."""
    try:
        value = _loads(text)
    except orjson.JSONDecodeError as error:
        if error.doc[error.pos - 1 : error.pos] in OPENERS:  # orjson has a depth of its own, which is not what we promise
            _refuse_depth(error.doc[: error.pos].encode(), around)
        raise NotStrict(f"is not JSON: {error}") from None
    flaw = _examine(text, DEPTH_MAX + around, value)
    if flaw:
        _refuse_flaw(text, flaw)
    return value


def _refuse_depth(beginning: bytes, around: int) -> None:
    if _examine(beginning, DEPTH_MAX + around) == TOO_DEEP:
        raise NotStrict(FLAWS[TOO_DEEP])


def _refuse_flaw(text: bytes, flaw: int) -> None:
    if flaw == REPEATED_KEY and len(text) <= NAMED_BYTES_MAX:
        json.loads(text, object_pairs_hook=_refuse_repeated)
    raise NotStrict(FLAWS[flaw])


def _refuse_repeated(members: list[tuple[str, Any]]) -> None:
    seen = set()
    for key, _ in members:
        if key in seen:
            raise NotStrict(f"the key {key[:SHOWN_CHARS_MAX]!r} occurs twice")
        seen.add(key)


def _examine_in_python(text: bytes, depth_max: int, value: Any = _NO_VALUE) -> int:
    """STRICT or the flaw of a text; `value` is what orjson made of it. See strict_json.c."""
    bare = _STRINGS.sub(b"", text)
    if _depth(bare) > depth_max:
        return TOO_DEEP
    if b"\\u0000" in text and _NUL.search(text):
        return NUL_CHARACTER
    for number in _LONG_NUMBERS.finditer(bare):
        if flaw := _number_flaw(bare[max(number.start() - 1, 0) : number.end()]):
            return flaw
    return STRICT if value is _NO_VALUE or _members(value) == bare.count(b":") else REPEATED_KEY


def _depth(bare: bytes) -> int:
    """The levels of a text without its strings."""
    depth = deepest = 0
    for bracket in bare.translate(None, _BRACKETS):
        if bracket in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        else:
            depth -= 1
    return deepest


def _number_flaw(number: bytes) -> int:
    """Of a number and the character before it, which may be its sign."""
    number = number.lstrip(b"[:, \t\r\n")
    if any(mark in number for mark in b".eE"):
        return LONG_NUMBER if len(number) > NUMBER_CHARS_MAX else STRICT
    return STRICT if len(number) <= INT_CHARS_MAX and INT_MIN <= int(number) <= INT_MAX else LARGE_INTEGER


def _members(value: Any) -> int:
    """How many members the objects of a value have."""
    if type(value) is dict:
        return len(value) + sum(map(_members, value.values()))
    return sum(map(_members, value)) if type(value) is list else 0


_examine: Any = _examine_in_python if steps is None else steps.examine_json
