"""Parameter lists as the log has them, `[1,"a"]`, into objects by parameter name, `{"account":1,"name":"a"}`: many rows at once.

One rule: the bytes of a value are never touched, so a number reads as it was written. Nothing is parsed where it need not be: a
list of n values has n - 1 commas of its own, so if a row holds no more than that, all of them separate values. Where there are
more, those inside strings are told by the quotes before them; only rows with lists or objects inside, or with escaped characters,
are gone through one by one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import orjson

if TYPE_CHECKING:
    import pyarrow as pa

Ints = npt.NDArray[np.int64]
UNKNOWN: Final = -1  # number of parameters of a procedure whose names nobody states: its rows stay lists
_COMMA, _QUOTE, _OPEN, _CLOSE = (ord(sign) for sign in ',"{}')
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{},]')


@dataclass(frozen=True, slots=True, eq=False)
class Keys:
    """The parameter names of all procedures, as they are put in front of values; one number per procedure."""

    literals: tuple[bytes, ...]
    firsts: Ints  # of a procedure's first literal
    counts: Ints  # of its parameters, or UNKNOWN

    @classmethod
    def of(cls, procedures: Sequence[tuple[str, ...] | None]) -> Keys:
        """By parameter names per procedure."""
        counts = np.array([UNKNOWN if names is None else len(names) for names in procedures], dtype=np.int64)
        literals = tuple(orjson.dumps(name) + b":" for names in procedures for name in names or ())
        firsts = np.cumsum(np.maximum(counts, 0)) - np.maximum(counts, 0)
        return cls(literals, firsts, counts)


def lists(text: bytes, starts: Ints, ends: Ints) -> pa.StringArray:
    """The rows text[start:end], ascending, as they are."""
    bounds = np.empty(2 * len(starts) + 1, dtype=np.int32)
    bounds[:-1:2], bounds[1::2], bounds[-1] = starts, ends, len(text)
    return _strings(text, bounds).take(int_array(np.arange(0, 2 * len(starts), 2)))


def objects(text: bytes, starts: Ints, ends: Ints, keys: Keys, procedures: Ints) -> pa.StringArray:
    """The same rows as objects. `procedures`: number of each row's procedure in `keys`."""
    counts = keys.counts[procedures]
    data = bytearray(text)
    view = np.frombuffer(data, np.uint8)
    commas, spliced = _separators(text, view, starts, ends, counts)
    view[starts[spliced]], view[ends[spliced] - 1] = _OPEN, _CLOSE
    other = np.flatnonzero(~spliced)
    extra = [_one_by_one(text[int(starts[row]) : int(ends[row])], keys, int(procedures[row])) for row in other.tolist()]
    # Pieces of the text: of a row with values `{`, then each value with the sign behind it. Then literals, then the rows by hand.
    valued = spliced & (counts > 0)
    pieces = np.where(valued, counts + 2, 2)  # bounds of a row: begin, behind `{`, behind each comma, end
    at = np.cumsum(pieces) - pieces
    bounds = np.empty(int(pieces.sum()), dtype=np.int64)
    bounds[at], bounds[at + pieces - 1] = starts, ends
    bounds[at[valued] + 1] = starts[valued] + 1
    rows, nth = _expanded(np.where(valued, np.maximum(counts - 1, 0), 0))
    bounds[at[rows] + 2 + nth] = commas + 1
    literal_at = len(bounds)  # number of the first literal among the pieces
    added = [*keys.literals, *extra]
    tail = len(data) + np.cumsum([0, *(len(one) for one in added)])
    bounds = np.concatenate([bounds, tail])
    order, firsts = _order(
        at, counts, valued, other, literals=keys.firsts[procedures] + literal_at, extra_at=literal_at + len(keys.literals)
    )
    taken = _strings(b"".join((data, *added)), bounds.astype(np.int32)).take(int_array(order))
    return _regrouped(taken, firsts)


def _separators(
    text: bytes, view: npt.NDArray[np.uint8], starts: Ints, ends: Ints, counts: Ints
) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """(places of the commas between values in the rows that can be spliced, which rows those are)."""
    commas = np.flatnonzero(view == _COMMA)
    found, spliced = _matching(commas, starts, ends, counts)
    if not spliced[counts >= 0].all() and b"\\" not in text:
        quotes = np.flatnonzero(view == _QUOTE)  # every string ends, so an even number stands in front of whatever is in none
        outside = commas[np.searchsorted(quotes, commas) % 2 == 0]
        found, spliced = _matching(outside, starts, ends, counts)
    return found, spliced


def _matching(commas: Ints, starts: Ints, ends: Ints, counts: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
    low, high = np.searchsorted(commas, starts), np.searchsorted(commas, ends)
    filled = ends - starts > 2
    spliced = np.where(counts > 0, filled & (high - low == counts - 1), (counts == 0) & ~filled)
    rows, nth = _expanded(np.where(spliced, high - low, 0))
    return commas[low[rows] + nth], spliced


def _expanded(counts: Ints) -> tuple[Ints, Ints]:
    """Rows repeated by their counts, and the number of each repetition."""
    rows = np.repeat(np.arange(len(counts)), counts)
    return rows, np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)


def _order(
    at: Ints, counts: Ints, valued: npt.NDArray[np.bool_], other: Ints, *, literals: Ints, extra_at: int
) -> tuple[Ints, Ints]:
    """Which pieces make up the result, one behind the other; and the first of them of each row, with the end."""
    sizes = np.where(valued, 2 * counts + 1, 1)
    firsts = np.concatenate([[0], np.cumsum(sizes)])
    order = np.empty(int(firsts[-1]), dtype=np.int64)
    order[firsts[:-1]] = at
    order[firsts[other]] = extra_at + np.arange(len(other))
    rows, nth = _expanded(np.where(valued, counts, 0))
    order[firsts[rows] + 1 + 2 * nth] = literals[rows] + nth
    order[firsts[rows] + 2 + 2 * nth] = at[rows] + 1 + nth
    return order, firsts


def _one_by_one(row: bytes, keys: Keys, procedure: int) -> bytes:
    """One list as an object; the list itself where the names are not known, or are not as many as the values."""
    count, first = int(keys.counts[procedure]), int(keys.firsts[procedure])
    if count == UNKNOWN:
        return row
    cuts, depth = [0], 0
    for token in _TOKEN.finditer(row):
        sign = token[0]
        if sign in b"[{":
            depth += 1
        elif sign in b"]}":
            depth -= 1
        elif sign == b"," and depth == 1:
            cuts.append(token.start())
    values = [row[low + 1 : high] for low, high in zip(cuts, [*cuts[1:], len(row) - 1], strict=True)]
    if values == [b""]:
        values = []
    if len(values) != count:
        return row
    named = (keys.literals[first + n] + value for n, value in enumerate(values))
    return b"{" + b",".join(named) + b"}"


def _strings(text: bytes, bounds: npt.NDArray[Any]) -> pa.StringArray:
    """Strings that lie one behind the other in the text, from bound to bound; nothing is copied."""
    import pyarrow as pa  # noqa: PLC0415 - the numbers above need none

    return pa.StringArray.from_buffers(len(bounds) - 1, pa.py_buffer(bounds), pa.py_buffer(text))


def _regrouped(pieces: pa.StringArray, firsts: Ints) -> pa.StringArray:
    """Neighbouring strings joined to one per row: they lie one behind the other already."""
    import pyarrow as pa  # noqa: PLC0415

    _, offsets, data = pieces.buffers()
    bounds = np.frombuffer(offsets, np.int32, len(pieces) + 1, 4 * pieces.offset)[firsts]
    return pa.StringArray.from_buffers(len(firsts) - 1, pa.py_buffer(np.ascontiguousarray(bounds)), data)


def int_array(values: Ints) -> pa.Int64Array:
    """The numbers as they lie there. `pa.array` asks whether they are of pandas, and imports it: half a second."""
    import pyarrow as pa  # noqa: PLC0415

    return pa.Int64Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values, dtype=np.int64))])


def string_array(values: Sequence[str]) -> pa.StringArray:
    """The strings, without looking for pandas."""
    data = [value.encode() for value in values]
    return _strings(b"".join(data), np.cumsum([0, *(len(one) for one in data)]).astype(np.int32))
