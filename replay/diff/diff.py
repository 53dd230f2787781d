"""`cmdlog diff`: differences between two states of an application, table by table and row by row.

One rule: rows are read once, in the order of their keys, from both sides at the same time, and never gathered: memory does not
grow with the tables. All partitions of a side are one stream, so sides with different numbers of partitions compare.

Rows are matched by primary key, over the columns that both sides have, and compared with their types: 1 is not 1.0. A replicated
table is in every partition; equal copies count once, since two partitions hold the same row only of such a table, and a copy
that differs shows. Tables without a primary key, or with another one on the other side, are compared as multisets of rows.

Idempotency keys and numbers of client sessions are one set of names per side, whatever its partitions: a recovery into another
number of partitions puts copies of a name wherever its retry may be routed. Of a session those numbers count that are above its
highest floor. SQLite keeps the set in a temporary file, so memory does not grow with it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final, Literal

import apsw

from procedures.declaration.schema import TABLE_NAME
from procedures.idempotency.known_outcome import split_keys
from procedures.idempotency.session_calls import ENDED, call_names
from procedures.idempotency.session_row import known_floors, stored_rows
from procedures.numeric.marks import marked_numerics
from procedures.storage.state import rows_of
from replay.diff.rows import STEP_MAX, STEP_MIN, Ordered, Row, order_of, read_ordered
from replay.diff.state_reader import States
from replay.errors import ReplayError

Kind = Literal["added", "removed", "changed"]
KINDS: Final[tuple[Kind, ...]] = ("added", "removed", "changed")
Typed = tuple[Row, Row]  # types, values: what two rows are compared by
_TABLES: Final = (
    "SELECT name FROM sqlite_schema WHERE type = 'table' AND substr(name, 1, 8) <> '_cmdlog_' AND substr(name, 1, 7) <> 'sqlite_'"
)
_COLUMNS: Final = 'SELECT name, type, pk, "notnull" FROM pragma_table_xinfo(?) ORDER BY cid'
_STRICT: Final = "SELECT strict FROM pragma_table_list WHERE schema = 'main' AND name = ?"
_ROWS: Final = "SELECT keys FROM _cmdlog_keys WHERE idx > 0"
_MAKE: Final = "CREATE TABLE known (key BLOB PRIMARY KEY, sides INTEGER NOT NULL) WITHOUT ROWID"
_PUT: Final = "INSERT INTO known VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET sides = sides | excluded.sides"
_COUNT: Final = "SELECT sides, count(*) FROM known GROUP BY sides"


class DiffRefused(ReplayError):
    """There is nothing to compare."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Shape:
    """A table as one side declares it."""

    columns: Mapping[str, str]  # name -> declared type, "numeric(p,s)" for an exact decimal, "" when its values may have any
    key: tuple[str, ...]
    required: frozenset[str]  # columns without NULL


@dataclass(frozen=True, slots=True)
class RowChange:
    """A difference: a row of `TableDiff.columns` on each side, None = there is none."""

    kind: Kind
    old: Row | None
    new: Row | None


@dataclass(slots=True)
class TableDiff:
    """The comparison of one table."""

    name: str
    left: Shape | None  # None: the side does not have the table
    right: Shape | None
    key: tuple[str, ...]  # (): rows have no identity
    columns: tuple[str, ...]  # of both sides; the key's first
    factors: tuple[Row, Row] | None = None  # of each side's columns, for exact decimals of other scales on the other; None: 1
    rows: list[int] = field(default_factory=lambda: [0, 0])  # left, right
    counts: Counter[Kind] = field(default_factory=Counter)
    examples: list[RowChange] = field(default_factory=list)

    @property
    def exact(self) -> bool:
        """Whether equal rows are the same rows: types are fixed, the same on both sides, and the key is a key."""
        if self.left is None or self.right is None or not self.key:
            return False
        pairs = [(self.left.columns[name], self.right.columns[name]) for name in self.columns]
        return all(one and one == other for one, other in pairs) and self.left.required & self.right.required >= set(self.key)

    @property
    def only(self) -> dict[str, list[str]]:
        """Columns that only one side has."""
        left, right = (shape.columns if shape else {} for shape in (self.left, self.right))
        if self.left is None or self.right is None:
            return {"left": [], "right": []}
        return {"left": [name for name in left if name not in right], "right": [name for name in right if name not in left]}

    @property
    def same_columns(self) -> bool:
        """Whether both sides declare it, and its columns, alike; their order does not count."""
        return self.left is not None and self.right is not None and self.left.columns == self.right.columns

    def equal_numbers(self, change: RowChange) -> bool:
        """Whether the rows differ only in how many digits their exact decimals keep: 1.50 of one side is 1.500 of the other."""
        if change.old is None or change.new is None or self.factors is None:
            return False
        old, new = map(_scaled, (change.old, change.new), self.factors)
        return [*map(type, old), *old] == [*map(type, new), *new]

    @property
    def equal(self) -> bool:
        same_table = (self.left is None) == (self.right is None)
        return same_table and not self.counts.total() and not any(self.only.values())


@dataclass(frozen=True, slots=True)
class DiffReport:
    """All differences between two sides."""

    tables: Sequence[TableDiff]
    keys: NamesDiff | None = None  # if they were asked for
    sessions: NamesDiff | None = None  # numbers of their calls; likewise

    @property
    def equal(self) -> bool:
        return all(table.equal for table in self.tables) and all(of is None or of.equal for of in (self.keys, self.sessions))


Sink = Callable[[TableDiff], Callable[[RowChange], None]]


def no_sink(_table: TableDiff) -> Callable[[RowChange], None]:
    """Discards all changes."""
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
            if table.equal_numbers(change):
                continue
            table.counts[change.kind] += 1
            if len(table.examples) < limit:
                table.examples.append(change)
            take(change)
    return DiffReport(found, *((compare_keys(left, right), compare_sessions(left, right)) if with_keys else ()))


def _shapes(side: States) -> dict[str, Shape]:
    """Table -> how it is declared. Raises: DiffRefused when two partitions disagree, or a table has a name that none can have."""
    found: dict[str, Shape] = {}
    for partition, connection in side.connections.items():
        for (name,) in rows_of(connection, _TABLES):
            if not TABLE_NAME.fullmatch(name):  # it may come from another machine, and files are named by it
                raise DiffRefused(f"{side.path}: partition {partition} has a table {name!r:.100}, which cannot be declared")
            shape = _shape(connection, name)
            if found.setdefault(name, shape) != shape:
                raise DiffRefused(f"{side.path}: partition {partition} declares table {name} differently from another one")
    return found


def _shape(connection: apsw.Connection, table: str) -> Shape:
    strict = rows_of(connection, _STRICT, (table,)) == [(1,)]
    columns = rows_of(connection, _COLUMNS, (table,))
    types = {name: declared.upper() if strict and declared.upper() != "ANY" else "" for name, declared, *_ in columns}
    types |= {name: f"numeric({p},{s})" for name, (p, s) in marked_numerics(connection, table).items()}
    key = tuple(name for name, _, at, _ in sorted(columns, key=itemgetter(2)) if at)
    required = {name for name, *_, needed in columns if needed}
    if len(key) == 1 and types[key[0]] == "INTEGER":  # it is the row's number
        required |= {*key}
    return Shape(types, key, frozenset(required))


def _scale(shape: Shape | None, column: str) -> int | None:
    """Digits after the point of an exact decimal."""
    kind = shape.columns[column] if shape is not None else ""
    return int(kind[:-1].rpartition(",")[2]) if kind.startswith("numeric(") else None


def _factors(left: Shape | None, right: Shape | None, columns: Sequence[str]) -> tuple[Row, Row] | None:
    """By what exact decimals of each side are multiplied to have as many digits as the other side's."""
    scales = [(_scale(left, name), _scale(right, name)) for name in columns]
    pairs = [(a, b) if a is not None and b is not None else (0, 0) for a, b in scales]
    if all(a == b for a, b in pairs):
        return None
    return tuple(10 ** max(b - a, 0) for a, b in pairs), tuple(10 ** max(a - b, 0) for a, b in pairs)


def _scaled(row: Row, factors: Row) -> Row:
    return tuple(value * by if by > 1 and type(value) is int else value for value, by in zip(row, factors, strict=True))


def _table(name: str, left: Shape | None, right: Shape | None) -> TableDiff:
    one, other = left or right, right or left
    assert one is not None
    assert other is not None
    key = one.key if one.key == other.key else ()
    columns = (*key, *(column for column in one.columns if column in other.columns and column not in key))
    return TableDiff(name, left, right, key, columns, _factors(left, right, columns))


# -- rows in order -------------------------------------------------------------------------------------------------------


def _changes(table: TableDiff, left: States, right: States) -> Iterator[RowChange]:
    """All differences, by key."""
    pair = _pair_rows if table.key else _pair_multisets
    for old, new in _joined(table, _ordered(table, table.left, left), _ordered(table, table.right, right)):
        yield from pair(old, new)


def _ordered(table: TableDiff, shape: Shape | None, side: States) -> Ordered:
    if shape is None or not table.columns:
        return Ordered(())
    width, exact = len(table.key) or len(table.columns), table.exact
    holders = [connection for connection in side.connections.values() if _has(connection, table.name)]
    return Ordered(read_ordered(connection, table.name, table.columns, width, exact=exact) for connection in holders)


def _has(connection: apsw.Connection, table: str) -> bool:
    return bool(rows_of(connection, "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?", (table,)))


def _joined(table: TableDiff, left: Ordered, right: Ordered) -> Iterator[tuple[Counter[Typed], Counter[Typed]]]:
    """Rows of both sides under each key, as (types, row) with their number; nothing while both sides are equal."""
    step = STEP_MIN
    while left.more | right.more:
        if table.exact and left.more and right.more:
            passed, different = left.pass_equal(right, step)
            if passed:
                table.rows[0] += different
                table.rows[1] += different
                step = min(2 * step, STEP_MAX)
                continue
            step = STEP_MIN
        order = min(side.head for side in (left, right) if side.more)
        old, new = (Counter((tuple(map(type, row)), row) for row in side.take_rows(order)) for side in (left, right))
        table.rows[0] += len(old) if table.key else old.total()
        table.rows[1] += len(new) if table.key else new.total()
        yield old, new


def _pair_rows(old: Counter[Typed], new: Counter[Typed]) -> Iterator[RowChange]:
    """Under one primary key: copies of a row count once, and rows that only one side has are paired with those that only the
    other has."""
    if old.keys() == new.keys():
        return
    for before, after in itertools.zip_longest(_sorted(old.keys() - new.keys()), _sorted(new.keys() - old.keys())):
        yield RowChange("added" if before is None else "removed" if after is None else "changed", before, after)


def _pair_multisets(old: Counter[Typed], new: Counter[Typed]) -> Iterator[RowChange]:
    """Equal rows count as often as they occur."""
    for (_, row), count in (old - new).items():
        yield from itertools.repeat(RowChange("removed", row, None), count)
    for (_, row), count in (new - old).items():
        yield from itertools.repeat(RowChange("added", None, row), count)


def _sorted(rows: Iterable[Typed]) -> list[Row]:
    return sorted((row for _, row in rows), key=order_of)


@dataclass(frozen=True, slots=True)
class NamesDiff:
    """How many names both sides, or only one of them, have."""

    left: int
    right: int
    left_alone: int
    right_alone: int

    @property
    def equal(self) -> bool:
        return not self.left_alone and not self.right_alone


def compare_keys(left: States, right: States) -> NamesDiff:
    """Compares the keys of all partitions of both sides."""
    return _compare(_keys(left), _keys(right))


def compare_sessions(left: States, right: States) -> NamesDiff:
    """Compares the numbers above their floors of the sessions that all partitions of both sides know."""
    return _compare(_numbers(left), _numbers(right))


def _compare(left: Iterable[bytes], right: Iterable[bytes]) -> NamesDiff:
    with closing(apsw.Connection("")) as known:
        known.execute(_MAKE)
        with known:
            for bit, side in ((1, left), (2, right)):
                known.executemany(_PUT, ((name, bit) for name in side))
        counts = {int(str(sides)): int(str(count)) for sides, count in known.execute(_COUNT)}
    both = counts.get(3, 0)
    return NamesDiff(counts.get(1, 0) + both, counts.get(2, 0) + both, counts.get(1, 0), counts.get(2, 0))


def _keys(side: States) -> Iterator[bytes]:
    for connection in side.connections.values():
        for (keys,) in connection.execute(_ROWS):
            yield from split_keys(bytes(keys))


def _numbers(side: States) -> Iterator[bytes]:
    floors: dict[bytes, int] = {}
    for connection in side.connections.values():
        for session, floor in known_floors(stored_rows(connection)).items():
            floors[session] = max(floor, floors.get(session, 0))
    for connection in side.connections.values():
        for row in stored_rows(connection):
            calls = [(row.sessions[ordinal], number) for ordinal, number in zip(row.ordinals, row.numbers, strict=True)]
            yield from call_names(call for call in calls if call[1] > floors.get(call[0], ENDED))
