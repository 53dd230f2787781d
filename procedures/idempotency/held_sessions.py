"""The sessions of one partition in memory: enough to judge a call without reading, and to know which rows are needed.

One rule: plain data of `session_table.SessionTable`. Everything here can be made again from the rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from procedures.idempotency.session_row import Forgotten, SessionRow, Stage

_make = tuple.__new__  # half the time of the class's own


class KnownNumbers(NamedTuple):
    """The outcomes of a session that one row holds."""

    idx: int  # of the row
    lowest: int
    highest: int
    numbers: tuple[int, ...]


class KnownSession:
    """What is known of one session."""

    __slots__ = ("chunks", "floor", "highest", "latest")

    def __init__(self, floor: int, latest: int) -> None:
        self.floor, self.latest = floor, latest
        self.highest = 0  # of all numbers that had an outcome
        self.chunks: list[KnownNumbers] = []  # by row

    def add_chunk(self, idx: int, numbers: tuple[int, ...]) -> None:
        """The row holds the outcomes of these."""
        lowest = highest = numbers[0]
        if len(numbers) > 1:
            lowest, highest = min(numbers), max(numbers)
        self.chunks.append(_make(KnownNumbers, (idx, lowest, highest, numbers)))
        self.highest = max(self.highest, highest)

    def row_of(self, number: int) -> int:
        """The row with the outcome of the number; 0: it has none."""
        for chunk in self.chunks:
            if chunk.lowest <= number <= chunk.highest and number in chunk.numbers:
                return chunk.idx
        return 0

    def has_used(self, number: int) -> bool:
        """Whether the number is not above the floor, or has an outcome."""
        return number <= self.floor or (number <= self.highest and self.row_of(number) != 0)

    def knows_any(self, numbers: Sequence[int]) -> bool:
        """Whether there is an outcome of one of these."""
        lowest, highest = min(numbers), max(numbers)
        if lowest > self.highest:
            return False
        near = [chunk for chunk in self.chunks if chunk.lowest <= highest and lowest <= chunk.highest]
        return bool(near) and not set(numbers).isdisjoint(chain.from_iterable([chunk.numbers for chunk in near]))

    def passed(self, floor: int) -> list[KnownNumbers]:
        """The chunks that a floor makes useless."""
        if floor <= self.floor:
            return []
        return self.chunks if floor >= self.highest else [chunk for chunk in self.chunks if chunk.highest <= floor]

    def drop(self, chunks: list[KnownNumbers]) -> None:
        """Forgets these outcomes, all of which there are."""
        if len(chunks) == len(self.chunks):
            self.chunks = []
            return
        rows = {chunk.idx for chunk in chunks}
        self.chunks = [chunk for chunk in self.chunks if chunk.idx not in rows]


@dataclass(slots=True)
class HeldRow:
    """A row in memory: enough to know when it is not needed any more."""

    clock: int  # activity time at which it came
    digest: int
    uses: int  # chunks in it, and sessions whose latest it is
    sessions: tuple[bytes, ...]
    stage: int


@dataclass(slots=True)
class SessionChanges:
    """What `accept` does to the table."""

    forgotten: Forgotten
    row: SessionRow | None = None  # that was added
    numbers: Mapping[bytes, tuple[int, ...]] = field(default_factory=dict)  # session -> of its outcomes in `row`
    dropped: list[tuple[bytes, list[KnownNumbers]]] = field(default_factory=list)
    ended: list[bytes] = field(default_factory=list)  # sessions that are forgotten
    carried: list[bytes] = field(default_factory=list)  # idle ones that are kept another while
    uses: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))  # index of a row -> how many uses it has lost
    deleted: set[int] = field(default_factory=set)
    rewritten: dict[int, HeldRow] = field(default_factory=dict)
    shrunk: int = 0  # rows taken from the queue of new ones
    aged: int = 0  # rows taken from the queue of those that wait for their age
    due: dict[int, Stage] = field(default_factory=dict)  # rows that are written once more, if they are still needed
    digest: int = 0
    written: int = 0


def numbers_of(row: SessionRow) -> dict[bytes, tuple[int, ...]]:
    """Session -> numbers of its calls in the row."""
    if not row.numbers:
        return {}
    if len(row.sessions) == 1:
        return {row.sessions[0]: row.numbers}
    if row.ordinals == tuple(range(len(row.sessions))):  # a call of each
        return dict(zip(row.sessions, zip(row.numbers, strict=True), strict=True))
    found: dict[bytes, list[int]] = {}
    for ordinal, number in zip(row.ordinals, row.numbers, strict=True):
        found.setdefault(row.sessions[ordinal], []).append(number)
    return {session: tuple(numbers) for session, numbers in found.items()}
