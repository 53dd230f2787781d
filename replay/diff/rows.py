"""Rows of a table from several partitions, as one stream in order; and how two such streams are walked side by side.

One rule: a few thousand rows of each partition are in memory at a time. SQLite gives each partition's rows in order; of what was
read of every partition, all that cannot come after an unread row is sorted together and becomes a block.

Most rows of two states are equal. Where the types of all columns are fixed and the same on both sides, stretches of equal rows
are passed over by comparing lists, ten times as fast as row by row.
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, Final

import apsw

Row = tuple[Any, ...]
Item = tuple[Any, Row]  # what sorts as SQLite sorts, and the row
CHUNK_ROWS: Final = 1000  # of one partition
STEP_MIN: Final = 16  # rows that are compared at once after a difference …
STEP_MAX: Final = 1024  # … and in a long stretch of equal ones
_RANK: Final[Mapping[type, int]] = {type(None): 0, int: 1, float: 1, str: 2, bytes: 3}  # SQLite's order of storage classes


def order_of(values: Row) -> Row:
    """A sort key that orders these values, of any types, as SQLite does."""
    rank = _RANK
    return tuple([(rank[type(value)], value) for value in values])


def read_ordered(
    connection: apsw.Connection, table: str, columns: Sequence[str], width: int, *, exact: bool
) -> Iterator[list[Item]]:
    """One partition's rows by their first `width` columns, in chunks. `exact`: these have fixed types and are never NULL."""
    names = [_quoted(name) for name in columns]
    order = ", ".join(f"{name} COLLATE BINARY" for name in names[:width])  # the one collation that Python shares
    sql = f"SELECT {', '.join(names)} FROM {_quoted(table)} ORDER BY {order}"  # noqa: S608 - quoted names of the schema
    rows = connection.execute(sql)
    values: Callable[[Row], Any] = itemgetter(*range(width)) if exact else lambda row: order_of(row[:width])
    while chunk := list(islice(rows, CHUNK_ROWS)):
        yield list(zip(map(values, chunk), chunk, strict=True))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


class Ordered:
    """The rows of one side in order. One thread."""

    __slots__ = ("_at", "_blocks", "_items")

    def __init__(self, partitions: Iterable[Iterator[list[Item]]]) -> None:
        self._blocks = _blocks(list(partitions))
        self._items: list[Item] = []
        self._at = 0

    @property
    def more(self) -> bool:
        """Whether there is a row; must be asked before `head`."""
        while self._at == len(self._items):
            block = next(self._blocks, None)
            if block is None:
                return False
            self._items, self._at = block, 0
        return True

    @property
    def head(self) -> Any:
        """Sort key of the next row."""
        return self._items[self._at][0]

    def take_rows(self, order: Any) -> Iterator[Row]:
        """The next rows, as long as they sort by this."""
        while self.more and self._items[self._at][0] == order:
            yield self._items[self._at][1]
            self._at += 1

    def pass_equal(self, other: Ordered, step: int) -> tuple[int, int]:
        """Passes over at most `step` rows that both sides have next. Returns how many, and how many different ones they are.

        Only whole groups of rows with one order are passed over, and only where `==` decides everything: for exact rows with
        unique keys.
        """
        count = min(step, len(self._items) - self._at, len(other._items) - other._at)
        mine = self._items[self._at : self._at + count]
        if mine != other._items[other._at : other._at + count]:
            return 0, 0
        while count and (self._key_continues(count) or other._key_continues(count)):
            count -= 1
        self._at += count
        other._at += count
        return count, count and 1 + sum(map(operator.ne, mine[1:count], mine[: count - 1]))

    def _key_continues(self, count: int) -> bool:
        """Whether the row after so many belongs to the last of them. No group continues in the next block: keys are unique."""
        behind = self._at + count
        return behind < len(self._items) and self._items[behind][0] == self._items[behind - 1][0]


def _blocks(partitions: Sequence[Iterator[list[Item]]]) -> Iterator[list[Item]]:
    """All items in order, some at a time."""
    waiting: dict[int, list[Item]] = {}
    streams = dict(enumerate(partitions))
    while True:
        for n in [n for n in streams if not waiting.get(n)]:
            if (chunk := next(streams[n], None)) is None:
                del streams[n]
                waiting.pop(n, None)
            else:
                waiting[n] = chunk
        # A single stream is in order; of several, everything up to the lowest last key is complete.
        if len(waiting) <= 1:
            yield from waiting.values()
            waiting = {n: [] for n in waiting}
            if not streams:
                return
            continue
        end = min(items[-1][0] for items in waiting.values())
        block: list[Item] = []
        for n, items in waiting.items():
            cut = bisect_right(items, end, key=itemgetter(0))
            block += items[:cut]
            waiting[n] = items[cut:]
        block.sort(key=itemgetter(0))
        yield block
