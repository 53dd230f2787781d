"""Parameter lists as the log has them, `[1,"a"]`, into objects by parameter name, `{"account":1,"name":"a"}`: many rows at once.

One rule: the bytes of a value are never touched, so a number reads as it was written, and nothing is parsed where it need not be.
A list of n values has n - 1 commas of its own, so if a row holds no more than that, all of them separate values. Only in rows
with more are strings and brackets examined.

The rows of a batch are consecutive, with one character between them. So the whole is cut after each separating comma, and Arrow
copies a literal and a piece in turns. Between the last value of a row and the first of the next are three characters, `],[`, and
three are wanted there, `}{"`: they are overwritten in place and belong to the piece before them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import orjson

if TYPE_CHECKING:
    import pyarrow as pa

Ints = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.signedinteger[Any]]
Bools = npt.NDArray[np.bool_]
Signs = npt.NDArray[np.uint8]
UNKNOWN: Final = -1  # number of parameters of a procedure whose names are unknown: its rows stay lists
_COMMA, _QUOTE, _OPEN, _CLOSE, _SLASH, _LIST = (ord(sign) for sign in ',"{}\\[')
_TELLING: Final = np.isin(np.arange(256), list(b',"\\[]{}'))  # signs that show what is nested in what
_DEEPER: Final = (np.isin(np.arange(256), list(b"[{")) * 1 - np.isin(np.arange(256), list(b"]}"))).astype(np.int8)


@dataclass(frozen=True, slots=True, eq=False)
class ParameterNames:
    """The parameter names of all procedures, as they are put before values; one number per procedure."""

    literals: tuple[bytes, ...]  # a procedure's first one without its first quote
    firsts: Ints  # of a procedure's first literal
    counts: Ints  # of its parameters, or UNKNOWN

    @classmethod
    def of(cls, procedures: Sequence[tuple[str, ...] | None]) -> ParameterNames:
        """By parameter names per procedure."""
        counts = np.array([UNKNOWN if names is None else len(names) for names in procedures], dtype=np.int64)
        numbered = ((n, orjson.dumps(name) + b":") for names in procedures for n, name in enumerate(names or ()))
        firsts = np.cumsum(np.maximum(counts, 0)) - np.maximum(counts, 0)
        return cls(tuple(literal if n else literal[1:] for n, literal in numbered), firsts, counts)


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """The parameter lists of some rows, consecutive, each followed by one character."""

    parts: Sequence[bytes | memoryview | pa.Buffer]
    bounds: Ints  # [rows + 1]; row i is text[bounds[i] : bounds[i + 1] - 1], where one more character is before the parts

    def joined(self, literals: Sequence[bytes] = ()) -> bytearray:
        """The text, writable, after the literals."""
        return bytearray().join((*literals, b"[", *self.parts, b"]"))  # one more before and after, which `objects` overwrites

    def only(self, rows: Ints) -> Texts:
        """These rows, ascending."""
        taken = _picked(self.joined(), self.bounds[rows], self.bounds[rows + 1])
        return Texts([taken.buffers()[2] or b""], _offsets(taken).astype(np.int64) + 1)


def lists(texts: Texts) -> pa.StringArray:
    """The rows as they are."""
    return _picked(texts.joined(), texts.bounds[:-1], texts.bounds[1:] - 1)


def objects(texts: Texts, keys: ParameterNames, procedures: Numbers) -> pa.StringArray:
    """The same rows as objects. `procedures`: number of each row's procedure in `keys`."""
    bounds, counts, named = texts.bounds, keys.counts[procedures], len(keys.literals)
    text, begin = texts.joined(keys.literals), sum(map(len, keys.literals))
    view = np.frombuffer(text, np.uint8)[begin:]
    view[bounds[1:] - 1] = _COMMA  # where a batch ends it is a bracket
    commas, lasts = _separators(view, bounds, counts)
    sizes = _steps(lasts)  # values: the comma after a row is the last value's
    fits = (sizes == counts) & (bounds[1:] - bounds[:-1] > len("[],"))
    others = None if fits.all() else _others(view, bounds, counts, fits)
    view[bounds[1:] - 2], view[bounds[:-1] - 1], view[bounds[:-1]] = _CLOSE, _OPEN, _QUOTE
    places = np.empty(named + 2 + len(commas), dtype=np.int32)  # of the pieces: literals, the first `{"`, values
    places[:named] = np.cumsum([0, *map(len, keys.literals)])[:-1]
    places[named : named + 2] = begin, begin + len('{"')
    np.add(commas, begin + 1, out=places[named + 2 :], casting="unsafe")
    places[named + 2 + lasts] += 1  # `}{"` in place of `],[`
    order = np.empty(1 + 2 * len(commas), dtype=np.int32)
    order[0], order[2::2] = named, np.arange(named + 1, named + 1 + len(commas), dtype=np.int32)
    order[1::2] = np.arange(len(commas), dtype=np.int32)
    order[1::2] += np.repeat((keys.firsts[procedures] + sizes - 1 - lasts).astype(np.int32), sizes)
    if others is not None:  # which have no literals, or fewer; what is made of them is not used
        np.clip(order[1::2], 0, named, out=order[1::2])
    taken = pick(_strings(text, places), order)
    ends = np.zeros(len(bounds), dtype=np.int32)
    np.subtract(_offsets(taken)[2 * lasts + 3], len('{"'), out=ends[1:])
    made = _strings(taken.buffers()[2] or b"", ends)
    return made if others is None else _replaced(made, ~fits, others)


def _others(view: Signs, bounds: Ints, counts: Ints, fits: Bools) -> pa.StringArray:
    """The rows that do not fit their names, as they are; those of a procedure without parameters as an object without any."""
    rows = np.flatnonzero(~fits)
    empty = bounds[rows[(counts[rows] == 0) & (bounds[rows + 1] - bounds[rows] == len("[],"))]]
    view[empty], view[empty + 1] = _OPEN, _CLOSE
    return _picked(view, bounds[rows], bounds[rows + 1] - 1)


def _separators(view: Signs, bounds: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """(places of the commas that end values, the one after each row included; number of that one of each row)."""
    commas = np.flatnonzero(view[: bounds[-1]] == _COMMA)
    lasts = counts.cumsum() - 1
    if len(lasts) and lasts[-1] + 1 == len(commas) and counts.min() > 0 and (commas[lasts] == bounds[1:] - 1).all():
        return commas, lasts  # all rows are as they are expected
    lasts = np.searchsorted(commas, bounds[1:] - 1)
    sizes = _steps(lasts)
    unclear = np.flatnonzero((sizes > counts) & (counts > 0))
    if not len(unclear):
        return commas, lasts
    found = sizes[unclear]
    ends = np.cumsum(found)
    rows = _picked(view, bounds[unclear], bounds[unclear + 1])
    ending = _ending(np.frombuffer(rows.buffers()[2], np.uint8), ends - 1)
    kept = np.ones(len(commas), dtype=np.bool_)
    kept[np.arange(ends[-1]) + np.repeat(lasts[unclear] + 1 - ends, found)] = ending
    sizes[unclear] = np.add.reduceat(ending, ends - found, dtype=np.int64)
    return commas[kept], np.cumsum(sizes) - 1


def _steps(lasts: Ints) -> Ints:
    """How many numbers there are up to each bound, counted from the one before."""
    steps = lasts + 1
    steps[1:] -= steps[:-1].copy()
    return steps


def _ending(view: Signs, lasts: Ints) -> Bools:
    """Whether each comma of the rows ends a value. `lasts`: number of the comma after each row, which does."""
    simple = _outside_strings(view, lasts)
    if simple is not None:
        return simple
    marks = np.flatnonzero(_TELLING[view])
    signs = view[marks]
    inside = np.logical_xor.accumulate((signs == _QUOTE) & ~_escaped(marks, signs == _SLASH))  # a string
    depth = np.cumsum(np.where(inside, 0, _DEEPER[signs]), dtype=np.int32)
    commas = np.flatnonzero(signs == _COMMA)
    ending: Bools = (~inside & (depth == 1))[commas]
    behind = commas[lasts]
    if (inside[behind] | (depth[behind] != 0)).any():  # a row that is not JSON must not spoil those after it
        if len(lasts) > 1:
            high = marks[behind] + 1
            rows = zip(np.concatenate([[0], high[:-1]]).tolist(), high.tolist(), _steps(lasts), strict=True)
            return np.concatenate([_ending(view[begin:end], np.array([size - 1])) for begin, end, size in rows])
        ending[:] = False
    ending[lasts] = True
    return ending


def _outside_strings(view: Signs, lasts: Ints) -> Bools | None:
    """The same where only strings hold further commas, which is the usual case; None in other cases."""
    if any((view == sign).any() for sign in (_SLASH, _OPEN)) or np.count_nonzero(view == _LIST) != len(lasts):
        return None
    marks = np.flatnonzero((view == _COMMA) | (view == _QUOTE))
    quotes = view[marks] == _QUOTE
    outside: Bools = ~np.logical_xor.accumulate(quotes)[~quotes]
    return outside if outside[lasts].all() else None


def _escaped(marks: Ints, slashes: Bools) -> Bools:
    """Which of the characters follow a backslash that is not itself escaped."""
    numbers = np.arange(len(marks))
    behind = np.zeros(len(marks), dtype=np.bool_)
    behind[1:] = slashes[:-1] & (np.diff(marks) == 1)
    first = np.maximum.accumulate(np.where(slashes & ~behind, numbers, 0))  # of the run of backslashes
    behind[1:] &= (numbers - first)[:-1] % 2 == 0
    return behind


def _picked(text: bytearray | Signs, begins: Ints, ends: Ints) -> pa.StringArray:
    """The stretches of the text from begin to end, ascending."""
    places = np.empty(2 * len(begins) + 1, dtype=np.int32)
    places[:-1:2], places[1::2], places[-1] = begins, ends, len(text)
    return pick(_strings(text, places), np.arange(0, 2 * len(begins), 2, dtype=np.int32))


def _strings(text: Any, bounds: npt.NDArray[np.int32]) -> pa.StringArray:
    """Strings that are consecutive in the text, from bound to bound; nothing is copied."""
    import pyarrow as pa  # noqa: PLC0415 - the numbers above need none

    return pa.StringArray.from_buffers(len(bounds) - 1, pa.py_buffer(bounds), pa.py_buffer(text))


def pick(strings: pa.StringArray, order: npt.NDArray[np.int32]) -> pa.StringArray:
    """The strings of these numbers, all of which exist."""
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow.compute import take  # noqa: PLC0415

    return take(strings, number_array(order, pa.int32()), boundscheck=False)


def _offsets(strings: pa.StringArray) -> npt.NDArray[np.int32]:
    return np.frombuffer(strings.buffers()[1], np.int32, len(strings) + 1)


def _replaced(strings: pa.StringArray, which: Bools, by: pa.StringArray) -> pa.StringArray:
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow.compute import replace_with_mask  # noqa: PLC0415

    bits = pa.py_buffer(np.packbits(which, bitorder="little"))
    return replace_with_mask(strings, pa.BooleanArray.from_buffers(pa.bool_(), len(which), [None, bits]), by)


def number_array(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    """The numbers as they lie there. `pa.array` asks whether they are of pandas, and imports it: half a second."""
    import pyarrow as pa  # noqa: PLC0415

    assert values.itemsize * 8 == kind.bit_width
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def string_array(values: Sequence[str]) -> pa.StringArray:
    """The strings, without looking for pandas."""
    data = [value.encode() for value in values]
    return _strings(b"".join(data), np.cumsum([0, *(len(one) for one in data)]).astype(np.int32))
