"""Which term every entry of a group has, and what follows from it for a call on all partitions.

One rule: the verdict is a pure function of what the call's entry names (`cmdlog.wal.format.call_places`) and of the terms that
the groups hold: the same for the leader, its followers, a start, a recovery, a fork and a job, whichever of them has seen more.

Of a place (term *t*, index *i*) in a group: the entry is in the group when its index *i* holds term *t*. It is out for good when
the group holds a higher term at or before *i*: terms never go down along a log, so index *i* can never hold *t* again (Ongaro,
Raft, section 5.3). Otherwise it is open, and what follows the call waits.

A table that begins after *i* still knows that the entry is in when its first term is *t*: the leader of *t* wrote both.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from cmdlog.wal.format.call_places import CallPlace, CallPlaces

ROWS_MAX: Final = 256  # changes of term that are kept: a call is judged within one or two of them


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
