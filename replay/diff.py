"""`cmdlog diff`: what two states of an application hold otherwise, table by table and row by row.

One rule: rows are read once, in the order of their keys, from both sides at the same time, and never gathered: memory does not
grow with the tables. All partitions of a side are one stream, so sides with different numbers of partitions compare.

Rows are matched by primary key, over the columns that both sides have, and compared with their types: 1 is not 1.0. A replicated
table stands in every partition; equal copies count once, since two partitions hold the same row only of such a table, and a copy
that differs shows. Tables without a primary key, or with another one on the other side, are compared as multisets of rows.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final, Literal

import apsw
from sortedcontainers import SortedKeyList

from procedures.state import rows_of
from replay.errors import ReplayError
from replay.states import States

Kind = Literal["added", "removed", "changed"]
KINDS: Final[tuple[Kind, ...]] = ("added", "removed", "changed")
Row = tuple[Any, ...]
Typed = tuple[Row, Row]  # types, values: what two rows are compared by
_TABLES: Final = (
    "SELECT name FROM sqlite_schema WHERE type = 'table' AND substr(name, 1, 8) <> '_cmdlog_' AND substr(name, 1, 7) <> 'sqlite_'"
)
_COLUMNS: Final = "SELECT name, type, pk FROM pragma_table_xinfo(?) ORDER BY cid"
_STRICT: Final = "SELECT strict FROM pragma_table_list WHERE schema = 'main' AND name = ?"
_KEYS: Final = "SELECT coalesce(sum(length(keys)), 0) / 16 FROM _cmdlog_keys"
_RANK: Final[Mapping[type, int]] = {type(None): 0, int: 1, float: 1, str: 2, bytes: 3}  # SQLite's order of storage classes


class DiffRefused(ReplayError):
    """There is nothing to be compared."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Shape:
    """A table as one side declares it."""

    columns: Mapping[str, str]  # name -> declared type, "" when its values may have any
    key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """A difference: a row of `TableDiff.columns` on each side, None = there is none."""

    kind: Kind
    old: Row | None
    new: Row | None


@dataclass(slots=True)
class TableDiff:
    """What came of one table."""

    name: str
    left: Shape | None  # None: the side does not have the table
    right: Shape | None
    key: tuple[str, ...]  # (): rows have no identity
    columns: tuple[str, ...]  # of both sides; the key's first
    rows: list[int] = field(default_factory=lambda: [0, 0])  # left, right
    counts: Counter[Kind] = field(default_factory=Counter)
    examples: list[Change] = field(default_factory=list)

    @property
    def only(self) -> dict[str, list[str]]:
        """Columns that only one side has."""
        left, right = (shape.columns if shape else {} for shape in (self.left, self.right))
        if self.left is None or self.right is None:
            return {"left": [], "right": []}
        return {"left": [name for name in left if name not in right], "right": [name for name in right if name not in left]}

    @property
    def equal(self) -> bool:
        same_table = (self.left is None) == (self.right is None)
        return same_table and not self.counts.total() and not any(self.only.values())


@dataclass(frozen=True, slots=True)
class DiffReport:
    """What two sides hold otherwise."""

    tables: Sequence[TableDiff]
    keys: tuple[int, int] | None = None  # idempotency keys of both sides, if they were asked for

    @property
    def equal(self) -> bool:
        return all(table.equal for table in self.tables) and (self.keys is None or self.keys[0] == self.keys[1])


Sink = Callable[[TableDiff], Callable[[Change], None]]


def no_sink(_table: TableDiff) -> Callable[[Change], None]:
    """Takes no changes."""
    return lambda _change: None


def diff(
    left: States, right: States, *, tables: Sequence[str] = (), limit: int, sink: Sink = no_sink, with_keys: bool = False
) -> DiffReport:
    """Compares all tables, or those named; keeps `limit` examples of each and gives all changes to `sink`.

    Raises: DiffRefused when a named table is on neither side, or the partitions of a side declare one differently.
    """
    shapes = [_shapes(side) for side in (left, right)]
    known = sorted(shapes[0].keys() | shapes[1].keys())
    if strange := [name for name in tables if name not in known]:
        raise DiffRefused(f"there is no table {strange[0]} on either side; there are: {', '.join(known) or 'none'}")
    found = []
    for name in [name for name in known if name in tables or not tables]:
        table = _table(name, shapes[0].get(name), shapes[1].get(name))
        found.append(table)
        take = sink(table)
        for change in _changes(table, left, right):
            table.counts[change.kind] += 1
            if len(table.examples) < limit:
                table.examples.append(change)
            take(change)
    return DiffReport(found, (_keys(left), _keys(right)) if with_keys else None)


def _keys(side: States) -> int:
    return sum(int(rows_of(connection, _KEYS)[0][0]) for connection in side.connections.values())


def _shapes(side: States) -> dict[str, Shape]:
    """Table -> how it is declared. Raises: DiffRefused when two partitions disagree."""
    found: dict[str, Shape] = {}
    for partition, connection in side.connections.items():
        for (name,) in rows_of(connection, _TABLES):
            shape = _shape(connection, name)
            if found.setdefault(name, shape) != shape:
                raise DiffRefused(f"{side.path}: partition {partition} declares table {name} otherwise than another one")
    return found


def _shape(connection: apsw.Connection, table: str) -> Shape:
    strict = rows_of(connection, _STRICT, (table,)) == [(1,)]
    columns = rows_of(connection, _COLUMNS, (table,))
    types = {name: declared.upper() if strict and declared.upper() != "ANY" else "" for name, declared, _ in columns}
    return Shape(types, tuple(name for name, _, at in sorted(columns, key=itemgetter(2)) if at))


def _table(name: str, left: Shape | None, right: Shape | None) -> TableDiff:
    one, other = left or right, right or left
    assert one is not None
    assert other is not None
    key = one.key if one.key == other.key else ()
    columns = (*key, *(column for column in one.columns if column in other.columns and column not in key))
    return TableDiff(name, left, right, key, columns)


# -- rows in order -------------------------------------------------------------------------------------------------------


def _changes(table: TableDiff, left: States, right: States) -> Iterator[Change]:
    """All differences, by key."""
    sides = [_groups(table, at, states) for at, states in enumerate((left, right))]
    pair = _pair_rows if table.key else _pair_multisets
    for old, new in _joined(*sides):
        yield from pair(old, new)


def _groups(table: TableDiff, at: int, side: States) -> Iterator[tuple[Row, Counter[Typed]]]:
    """(order, rows with their number) of every key, in order."""
    shape = (table.left, table.right)[at]
    if shape is None or not table.columns:
        return
    width = len(table.key) or len(table.columns)
    streams = [_ordered(connection, table, width) for connection in side.connections.values() if _has(connection, table.name)]
    for order, rows in itertools.groupby(_merged(streams), key=itemgetter(0)):
        found = Counter((tuple(map(type, row)), row) for _, row in rows)
        table.rows[at] += len(found) if table.key else found.total()
        yield order, found


def _has(connection: apsw.Connection, table: str) -> bool:
    return bool(rows_of(connection, "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?", (table,)))


def _ordered(connection: apsw.Connection, table: TableDiff, width: int) -> Iterator[tuple[Row, Row]]:
    """(order, row) of one partition. BINARY is the one collation that both sides and Python share."""
    names = [_quoted(name) for name in table.columns]
    order = ", ".join(f"{name} COLLATE BINARY" for name in names[:width])
    sql = f"SELECT {', '.join(names)} FROM {_quoted(table.name)} ORDER BY {order}"  # noqa: S608 - quoted names of the schema
    for row in connection.execute(sql):
        yield _order(row[:width]), row


def _order(values: Row) -> Row:
    """What sorts as SQLite sorts these values."""
    rank = _RANK
    return tuple([(rank[type(value)], value) for value in values])


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _merged(streams: Sequence[Iterator[tuple[Row, Row]]]) -> Iterable[tuple[Row, Row]]:
    """The rows of all partitions in one order."""
    if len(streams) == 1:
        return streams[0]
    return _interleaved(streams)


def _interleaved(streams: Sequence[Iterator[tuple[Row, Row]]]) -> Iterator[tuple[Row, Row]]:
    heads: SortedKeyList[tuple[Row, int, Row]] = SortedKeyList(key=itemgetter(0, 1))
    for n, stream in enumerate(streams):
        for order, row in itertools.islice(stream, 1):
            heads.add((order, n, row))
    while heads:
        order, n, row = heads.pop(0)
        yield order, row
        for following, next_row in itertools.islice(streams[n], 1):
            heads.add((following, n, next_row))


_Group = tuple[Row, Counter[Typed]]


def _joined(left: Iterator[_Group], right: Iterator[_Group]) -> Iterator[tuple[Counter[Typed], Counter[Typed]]]:
    """Rows of both sides under each key; those that only one side has meet none."""
    none: Counter[Typed] = Counter()
    one, other = next(left, None), next(right, None)
    while one is not None or other is not None:
        if one is not None and (other is None or one[0] < other[0]):
            yield one[1], none
            one = next(left, None)
        elif other is not None and (one is None or other[0] < one[0]):
            yield none, other[1]
            other = next(right, None)
        elif one is not None and other is not None:
            yield one[1], other[1]
            one, other = next(left, None), next(right, None)


def _pair_rows(old: Counter[Typed], new: Counter[Typed]) -> Iterator[Change]:
    """Under one primary key: copies of a row count once, and what one side alone has is paired with what the other alone has."""
    if old.keys() == new.keys():
        return
    for before, after in itertools.zip_longest(_sorted(old.keys() - new.keys()), _sorted(new.keys() - old.keys())):
        yield Change("added" if before is None else "removed" if after is None else "changed", before, after)


def _pair_multisets(old: Counter[Typed], new: Counter[Typed]) -> Iterator[Change]:
    """Equal rows count as often as they are there."""
    for (_, row), count in (old - new).items():
        yield from itertools.repeat(Change("removed", row, None), count)
    for (_, row), count in (new - old).items():
        yield from itertools.repeat(Change("added", None, row), count)


def _sorted(rows: Iterable[Typed]) -> list[Row]:
    return sorted((row for _, row in rows), key=_order)
