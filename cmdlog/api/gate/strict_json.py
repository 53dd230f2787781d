"""Strict JSON: one text has one meaning, and that meaning survives every hop to the log, to SQL and back.

One rule: what could be read in two ways, or not be kept exactly, is refused: a key that comes twice, NaN and infinities, a number
that overflows, an integer beyond 64 bits, a lone surrogate, the character U+0000 (SQLite's text functions stop at it), a value of
more than `DEPTH_MAX` levels; those of a body or a line *around* its values do not count. A number with a fraction or an exponent
means the double that is nearest to it, as everywhere in JSON.

orjson parses; it checks grammar, UTF-8 and surrogates, and refuses numbers that overflow. The rest is found by one pass over the
text, in `native/strict_json.c` or here, whatever the text holds: its time is that of its length. Only the name of a repeated key
needs another parser, and is given for short texts.

orjson makes the values of a MiB in 1 to 20 ms, in which no other thread runs. So a long text is read in pieces, and its reader
rests after each as long as it took: it belongs into a thread of its own (`read_resting`). The content of a container is cut at
its commas; pieces that are content themselves, none of them empty, make content. A key repeated by two pieces is found here.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import orjson

from cmdlog.api.native import steps

DEPTH_MAX: Final = 64  # of a value, wherever it comes; `cmdlog.client.request` has the same
INT_MIN: Final = -(1 << 63)  # SQLite's integers
INT_MAX: Final = (1 << 63) - 1
INT_CHARS_MAX: Final = 20  # of an integer within 64 bits; longer ones are not converted to find that out
NUMBER_CHARS_MAX: Final = 1024  # no double needs as many; longer ones only do harm
NAMED_BYTES_MAX: Final = 16 << 10  # of a text whose repeated key is named: that takes 0.3 us a byte
SHOWN_CHARS_MAX: Final = 80  # of a key, in a message
OPENERS: Final = ("[", "{")
PIECE_BYTES: Final = 16 << 10  # of a long text: 0.1 to 0.4 ms
PIECE_ITEMS: Final = 4096  # of a long text's values that are freed at a time
WORK_S: Final = 0.0002  # between two rests
BLANKS: Final = b" \t\r\n"
CLOSERS: Final = {b"[": b"]", b"{": b"}"}

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

T = TypeVar("T")


class NotStrict(ValueError):
    """The text is not JSON, or not JSON with one meaning; `str()` says why and where, and shows none of its values."""


def loads_strict(text: bytes, *, around: int = 0) -> Any:
    """The value of a JSON text in UTF-8; `around` is how many more levels than a value it may have. Raises: NotStrict."""
    if len(text) > 2 * PIECE_BYTES and steps is not None:
        return _LongText(around).read_text(text)
    return _read_short(text, around)


def _read_short(text: bytes, around: int) -> Any:
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
    bare = b"".join(_between_strings(text))
    if _depth(bare) > depth_max:
        return TOO_DEEP
    if b"\\u0000" in text and _NUL.search(text):
        return NUL_CHARACTER
    for number in _LONG_NUMBERS.finditer(bare):
        if flaw := _number_flaw(bare[max(number.start() - 1, 0) : number.end()]):
            return flaw
    return STRICT if value is _NO_VALUE or _members(value) == bare.count(b":") else REPEATED_KEY


def _between_strings(text: bytes) -> Iterator[bytes]:
    """What is not within quotes, in steps: other threads have their turn between them."""
    start = 0
    for string in _STRINGS.finditer(text):
        yield text[start : string.start()]
        start = string.end()
    yield text[start:]


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


# -- long texts --------------------------------------------------------------------------------------------------------------

_read: Final[list[Any]] = []  # lists and dicts of the long text that is being read, the outer ones first


def read_resting(read: Callable[[bytes], T], text: bytes) -> T:
    """What `read` makes of a text. If it raises, the values are freed in steps as well. One thread."""
    try:
        return read(text)
    except Exception:
        _free_values()
        raise
    finally:
        _read.clear()


def _free_values() -> None:
    resting = _Resting()
    while _read:
        part = _read.pop()
        while part:
            if type(part) is list:
                del part[-PIECE_ITEMS:]
            else:
                for _ in range(min(len(part), PIECE_ITEMS)):
                    part.popitem()
            resting.rest_if_due()


class _Resting:
    """Half of the time is for others: a thread that sleeps gives them the interpreter at once, one that works within 1 ms."""

    def __init__(self) -> None:
        self._began_s = time.perf_counter()

    def rest_if_due(self) -> None:
        worked_s = time.perf_counter() - self._began_s
        if worked_s >= WORK_S:
            time.sleep(worked_s)
            self._began_s = time.perf_counter()


class _LongText:
    """Reads one."""

    def __init__(self, around: int) -> None:
        self._around = around
        self._resting = _Resting()

    def read_text(self, text: bytes) -> Any:
        """Its value. Raises: NotStrict."""
        if flaw := steps.examine_json(text, DEPTH_MAX + self._around):
            raise NotStrict(FLAWS[flaw])
        try:
            return self._read_value(text)
        except orjson.JSONDecodeError:  # orjson says where, before it makes any value
            return _read_short(text, self._around)

    def _read_value(self, text: bytes) -> Any:
        text = text.strip(BLANKS)
        if len(text) <= 2 * PIECE_BYTES or CLOSERS.get(text[:1]) != text[-1:]:
            return self._read_piece(text)
        whole: Any = [] if text[:1] == b"[" else {}
        _read.append(whole)
        for piece in _pieces(text[1:-1], PIECE_BYTES):
            if len(piece) <= 2 * PIECE_BYTES:
                self._add_piece(whole, piece)
            else:  # with a long element
                for element in _pieces(piece, 1):
                    self._add_element(whole, element)
        return whole

    def _add_element(self, whole: Any, text: bytes) -> None:
        if len(text) <= 2 * PIECE_BYTES:
            self._add_piece(whole, text)
        elif type(whole) is list:
            whole.append(self._read_value(text))
        else:
            text = text.lstrip(BLANKS)
            key = _STRINGS.match(text)
            rest = b"" if key is None else text[key.end() :].lstrip(BLANKS)
            if key is None or rest[:1] != b":":
                self._add_piece(whole, text)  # is no member: orjson says so
            else:
                _add_members(whole, {self._read_piece(key[0]): self._read_value(rest[1:])})

    def _add_piece(self, whole: Any, piece: bytes) -> None:
        if type(whole) is list:
            whole += self._read_piece(b"[%b]" % piece)
        else:
            _add_members(whole, self._read_piece(b"{%b}" % piece))

    def _read_piece(self, text: bytes) -> Any:
        value = _loads(text)
        if flaw := _examine(text, DEPTH_MAX + self._around, value):
            raise NotStrict(FLAWS[flaw])
        self._resting.rest_if_due()
        return value


def _add_members(whole: dict[str, Any], found: dict[str, Any]) -> None:
    members = len(whole) + len(found)
    whole.update(found)
    if len(whole) != members:
        raise NotStrict(FLAWS[REPEATED_KEY])


def _pieces(content: bytes, piece_bytes: int) -> Iterator[bytes]:
    """What is between the commas of a container's content, in pieces of at least so many bytes but for the last."""
    cuts = steps.split_json(content, piece_bytes)
    start = 0
    for cut in cuts or ():
        yield content[start:cut].strip(BLANKS) or b","  # no element between two commas: then the content is none either
        start = cut + 1
    last = content[start:] if cuts is not None else b","
    yield last if not cuts else last.strip(BLANKS) or b","
