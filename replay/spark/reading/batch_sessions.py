"""The client sessions of many batches at once, as columns; checked as `decode_sessions` checks those of one.

One rule: no work per call but numpy's. A batch without sessions takes part as one whose calls belong to none.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import compress
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from cmdlog.wal.format.session_columns import ENDED, SESSION, SESSIONS

_HEAD: Final = np.dtype(
    {
        "names": [field.name for field in SESSIONS.fields],
        "formats": ["<u4", "<u2", "u1", "u1"],
        "offsets": [field.offset for field in SESSIONS.fields],
        "itemsize": SESSIONS.bytes,
    }
)
_WORDS: Final = SESSION.bytes // 8  # of one session: two of its fingerprint, base, floor
_BASE: Final = 2
_SAFE: Final = 1 << 63  # two numbers below it have a sum of 64 bits
_ORDINAL_BYTES: Final = (0, 1, 2)
_NUMBER_BYTES: Final = (0, 1, 2, 8)

Int64s = npt.NDArray[np.int64]
Uint64s = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]
Value = TypeVar("Value", np.int64, np.uint64)


class BatchSessions:
    """The sections of some batches.

    Attributes:
        sizes: [batches] bytes of the section, 0 for a batch without one.
        fits: [batches] whether the header is one whose columns fill the section; nothing else may be asked where it does not.
    """

    def __init__(self, raws: Sequence[bytes], at: Int64s, counts: Int64s, present: Bools) -> None:
        """`at`: where the section of each record begins, if it is `present`; `counts`: calls of each batch."""
        self._raws, self._at, self._counts = raws, at.tolist(), counts
        absent = bytes(SESSIONS.bytes)
        found = [raw[begin : begin + SESSIONS.bytes] for raw, begin in zip(raws, self._at, strict=True)]
        whole = [has and len(head) == SESSIONS.bytes for has, head in zip(present.tolist(), found, strict=True)]
        joined = b"".join([head if has else absent for has, head in zip(whole, found, strict=True)])
        self._heads = np.frombuffer(joined, _HEAD)
        self.sizes: Int64s = self._heads["bytes"].astype(np.int64)
        self._mentions: Int64s = self._heads["sessions"].astype(np.int64)
        ordinal_bytes, number_bytes = self._heads["ordinal_bytes"], self._heads["number_bytes"]
        wanted = SESSIONS.bytes + SESSION.bytes * self._mentions + counts * (ordinal_bytes + number_bytes.astype(np.int64))
        good = (self.sizes == wanted) & (self._mentions > 0)
        good &= np.isin(ordinal_bytes, _ORDINAL_BYTES) & np.isin(number_bytes, _NUMBER_BYTES)
        self.fits: Bools = np.where(present, good, True)

    def first_bad(self) -> int | None:
        """A batch that names a session twice or one that it does not have, or has too high a number; None: there is none."""
        bad = self._ordinals > self._mentions.repeat(self._counts)
        if bad.any():  # before any number is looked up
            return int(self._batch_of_call(int(bad.argmax())))
        if self._may_overflow():
            bad = (self._bases[self._places] > self._numbers) | (self._numbers == ENDED)
        found = [self._batch_of_call(int(bad.argmax()))] if bad.any() else []
        found += self._repeated_sessions()
        return min(found, default=None)

    def in_session(self) -> Bools:
        """[calls] whether the call belongs to one."""
        return self._ordinals > 0

    def names(self) -> Uint64s:
        """[calls, 3]: the two halves of the session's fingerprint, and the number; zeros for a call of none.

        In memory a row is the 24 bytes of the call's name.
        """
        words = np.empty((len(self._ordinals), 3), dtype=np.uint64)
        words[:, :2] = self._sessions[:, :2][self._places]
        words[:, 2] = self._numbers
        return words

    def _parts(self, skip: Int64s, length: Int64s) -> list[bytes]:
        """A piece of each section, by its distance from the header's end."""
        begins = (np.array(self._at, dtype=np.int64) + SESSIONS.bytes + skip).tolist()
        return [raw[at : at + size] for raw, at, size in zip(self._raws, begins, length.tolist(), strict=True)]

    @cached_property
    def _sessions(self) -> Uint64s:
        """[sessions of all batches + 1, words]; the first stands for none."""
        none = bytes(SESSION.bytes)
        mentioned = self._parts(np.zeros(len(self._mentions), np.int64), SESSION.bytes * self._mentions)
        return np.frombuffer(b"".join((none, *mentioned)), np.uint64).reshape(-1, _WORDS)

    @property
    def _bases(self) -> Uint64s:
        bases: Uint64s = self._sessions[:, _BASE]
        return bases

    @cached_property
    def _ordinals(self) -> Int64s:
        widths = self._heads["ordinal_bytes"]
        implied: Int64s = (self._mentions > 0).astype(np.int64).repeat(self._counts)
        parts = self._parts(SESSION.bytes * self._mentions, widths * self._counts)
        return _with_columns(implied, parts, widths, self._counts)

    @cached_property
    def _places(self) -> Int64s:
        """[calls] in `_sessions`."""
        before = (self._mentions.cumsum() - self._mentions).repeat(self._counts)
        places: Int64s = np.where(self._ordinals > 0, before + self._ordinals, 0)
        return places

    @cached_property
    def _numbers(self) -> Uint64s:
        widths = self._heads["number_bytes"]
        rows = int(self._counts.sum())
        counted: Int64s = np.arange(rows, dtype=np.int64) - (self._counts.cumsum() - self._counts).repeat(self._counts)
        skip: Int64s = SESSION.bytes * self._mentions + self._heads["ordinal_bytes"].astype(np.int64) * self._counts
        distances = _with_columns(counted.astype(np.uint64), self._parts(skip, widths * self._counts), widths, self._counts)
        numbers: Uint64s = np.where(self._places > 0, self._bases[self._places] + distances, 0).astype(np.uint64)
        return numbers

    def _may_overflow(self) -> bool:
        return bool((self._heads["number_bytes"] == 8).any() or (self._bases >= _SAFE).any())

    def _repeated_sessions(self) -> list[int]:
        """The first batch that names a session twice."""
        if not (self._mentions > 1).any():
            return []
        batches = np.arange(len(self._mentions)).repeat(self._mentions)
        low, high = self._sessions[1:, 0], self._sessions[1:, 1]
        order = np.lexsort((low, high, batches))
        same = [column[order][1:] == column[order][:-1] for column in (batches, high, low)]
        twice = same[0] & same[1] & same[2]
        return [int(batches[order][1:][twice].min())] if twice.any() else []

    def _batch_of_call(self, row: int) -> int:
        return int(np.searchsorted(self._counts.cumsum(), row, side="right"))


def _with_columns(
    implied: npt.NDArray[Value], parts: Sequence[bytes], widths: npt.NDArray[np.uint8], counts: Int64s
) -> npt.NDArray[Value]:
    """The values of calls: those of the batches that have a column of them, whatever its width, else the implied ones."""
    for width in sorted(set(widths.tolist()) - {0}):
        chosen = widths == width
        implied[chosen.repeat(counts)] = np.frombuffer(b"".join(compress(parts, chosen.tolist())), f"<u{width}")
    return implied
