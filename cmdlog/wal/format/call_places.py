"""Where the entries of a call on all partitions are: (term, index) in every partition. FORMAT.md "Places of a call".

One rule: the leader that proposes such a call puts it into all groups in one step, and each of its entries names them all. So a
reader of one of them knows what to look for in the other groups, and needs no guess from what a state holds.

Whether the call counts is a pure function of these places and of the terms that the groups hold: the same for the leader, its
followers, a start, a recovery, a fork and a job, whichever of them has seen more. Of a place (term *t*, index *i*) in a group:
the entry is in the group when its index *i* holds term *t*. It is out for good when the group holds a higher term at or before
*i*: terms never go down along a log, so index *i* can never hold *t* again (Ongaro, Raft, section 5.3). Otherwise it is open, and
what follows the call waits. A table of terms that begins after *i* still knows that the entry is in when its first term is *t*:
the leader of *t* wrote both.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from cmdlog.wal.format.record import BadRecord
from cmdlog.wal.format.struct_layout import Layout

PLACES: Final = Layout(
    "Places header",
    ("base_term", "Q"),
    ("base_index", "Q"),
    ("count", "H"),
    ("term_bytes", "B"),
    ("index_bytes", "B"),
    ("reserved", "4s"),
)
_CODES: Final = {1: "B", 2: "H", 4: "I", 8: "Q"}
_ZERO4: Final = bytes(4)
ROWS_MAX: Final = 256  # changes of term that are kept: a call is judged within one or two of them


@dataclass(frozen=True, slots=True)
class CallPlace:
    """One entry of the call: what its group must hold, and where."""

    term: int
    index: int


CallPlaces = tuple[CallPlace, ...]
"""By partition, from 0 on; () of nodes that vote alone: there one block has the call, on all."""


def encode_places(places: Sequence[CallPlace]) -> bytes:
    """The section of these places; b"" of none."""
    if not places:
        return b""
    terms, indexes = [place.term for place in places], [place.index for place in places]
    columns = [[value - min(of) for value in of] for of in (terms, indexes)]
    widths = [_width(max(column)) for column in columns]
    head = PLACES.pack(min(terms), min(indexes), len(places), *widths, _ZERO4)
    codes = "".join(f"{len(places)}{_CODES[width]}" for width in widths if width)
    values = [value for width, column in zip(widths, columns, strict=True) if width for value in column]
    return head + struct.pack(f"<{codes}", *values)


def places_bytes_max(partitions: int) -> int:
    """At most what one entry of a call on so many partitions takes for their places: 4 bytes of distance between terms, 8 between
    indexes."""
    return PLACES.bytes + 12 * partitions


def decode_places(section: bytes) -> CallPlaces:
    """The places that a section names. Raises: BadRecord when it is not what its header says."""
    if not section:
        return ()
    if len(section) < PLACES.bytes:
        raise BadRecord("places of a call")
    base_term, base_index, count, term_bytes, index_bytes, reserved = PLACES.unpack_from(section)
    if not count or reserved != _ZERO4 or {term_bytes, index_bytes} - {0, *_CODES}:
        raise BadRecord("places of a call: header")
    if PLACES.bytes + count * (term_bytes + index_bytes) != len(section):
        raise BadRecord("places of a call: size")
    at = PLACES.bytes
    terms = _column(section, at, count, term_bytes)
    indexes = _column(section, at + count * term_bytes, count, index_bytes)
    return tuple(CallPlace(base_term + term, base_index + index) for term, index in zip(terms, indexes, strict=True))


def _width(highest: int) -> int:
    """Bytes of a column's values."""
    return next(width for width in (0, 1, 2, 4, 8) if highest < 1 << 8 * width)


def _column(section: bytes, at: int, count: int, width: int) -> Sequence[int]:
    return struct.unpack_from(f"<{count}{_CODES[width]}", section, at) if width else [0] * count


class CallVerdict(Enum):
    """Of a call on all partitions, or of its entry in one of them."""

    IN = "in"  # every group has it: it is executed on all
    OUT = "out"  # some group can never have it: it is executed nowhere, and leaves no outcome
    OPEN = "open"  # not known yet
    UNKNOWN = "unknown"  # it was known, and the table does not reach back so far


@dataclass(slots=True)
class TermTable:
    """One group's, as far as its entries were met. Invariant: `rows` ascend in index and in term, none is after `last`."""

    last: int = 0  # the newest entry
    rows: list[tuple[int, int]] = field(default_factory=list)  # (first index, term) of each term

    @classmethod
    def beginning(cls, index: int, term: int) -> TermTable:
        """Of a group of which that entry alone is known."""
        return cls(index, [(index, term)]) if index else cls()

    def add(self, index: int, term: int) -> None:
        """The next entry, or one that replaces a suffix."""
        if index <= self.last:
            self.cut(index)
        if not self.rows or self.rows[-1][1] != term:
            self.rows.append((index, term))
            del self.rows[:-ROWS_MAX]
        self.last = index

    def cut(self, index: int) -> None:
        """Entries from `index` on are void."""
        while self.rows and self.rows[-1][0] >= index:
            self.rows.pop()
        self.last = min(self.last, index - 1)

    def extend(self, other: TermTable) -> None:
        """Adds what another table says of later entries of the same line."""
        known = self.rows[-1][1] if self.rows else -1
        self.rows += [row for row in other.rows if row[1] > known]
        self.last = max(self.last, other.last)

    def upto(self, index: int) -> TermTable:
        """What it says of the entries up to there."""
        return TermTable(min(self.last, index), [row for row in self.rows if row[0] <= index])

    def judge(self, place: CallPlace) -> CallVerdict:
        """Whether the group has this entry."""
        if not self.rows:
            return CallVerdict.UNKNOWN if self.last >= place.index else CallVerdict.OPEN
        if place.index > self.last:
            return CallVerdict.OUT if self.rows[-1][1] > place.term else CallVerdict.OPEN
        at = bisect_right(self.rows, place.index, key=lambda row: row[0]) - 1
        if at < 0:
            return CallVerdict.IN if self.rows[0][1] == place.term else CallVerdict.UNKNOWN
        return CallVerdict.IN if self.rows[at][1] == place.term else CallVerdict.OUT


def judge_call(places: CallPlaces, terms: Mapping[int, TermTable]) -> CallVerdict:
    """Whether the call is executed: on all partitions, or on none. `terms`: of every partition."""
    found = {terms[partition].judge(place) for partition, place in enumerate(places)}
    return next(
        (verdict for verdict in (CallVerdict.OUT, CallVerdict.UNKNOWN, CallVerdict.OPEN) if verdict in found), CallVerdict.IN
    )
