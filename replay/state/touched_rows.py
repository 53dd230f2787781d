"""Which call of a batch touched which rows, and what each call did to them.

One rule: nothing here is on the path of an ordinary replay. It is switched on for a batch that is run again, for a partition in
which calls were set aside, and for the comparison of two replays.

SQLite's pre-update hook reports each change as it happens; the executor says before each call which one it is. A call that
failed has changed nothing, whatever was reported meanwhile. Changes of a statement that then fails within a call that continues
are reported as well: so the notes show when rows began to differ, but do not prove what they hold. That is read from the tables.
"""

from __future__ import annotations

import base64
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any, ClassVar, Final

import apsw

from procedures.numeric.marks import marked_numerics, numeric_digits, stored_integer

INTERNAL: Final = "_cmdlog_"  # tables of the framework
COLUMN_TYPES: Final = "SELECT name, type FROM pragma_table_xinfo(?)"

Key = tuple[str, tuple[Any, ...]]  # table, values of its primary key
Row = tuple[Any, ...]


class Tables:
    """Names and keys of a connection's tables, read when they are first asked for. Not inside a hook: SQLite cannot be asked."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        names = [str(row[0]) for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        self._columns = {name: self._read_columns(name) for name in names if not name.startswith(INTERNAL)}
        self._scales = {name: _scales(connection, name) for name in self._columns}
        self._key_of = {name: _tuple_getter(_key_columns(of)) for name, of in self._columns.items()}

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def key(self, name: str, row: Row) -> tuple[Any, ...]:
        """Values of the primary key, in its order."""
        return self._key_of[name](row)

    def named_row(self, name: str, row: Row | None) -> dict[str, Any] | None:
        """Column -> value, fit for JSON."""
        if row is None:
            return None
        return {column: self._shown(name, column, value) for (column, _), value in zip(self._columns[name], row, strict=False)}

    def named_key(self, key: Key) -> dict[str, Any]:
        name, values = key
        return {column: self._shown(name, column, value) for column, value in zip(self._key_columns(name), values, strict=True)}

    def _shown(self, name: str, column: str, value: Any) -> Any:
        scale = self._scales[name].get(column)
        return plain(value) if scale is None else numeric_digits(value, scale)

    def key_from_named(self, name: str, named: Mapping[str, Any]) -> Key | None:
        """The inverse of `named_key`; None when the table no longer exists."""
        if name not in self or set(named) != set(self._key_columns(name)):
            return None
        blobs = {column for column, declared in self._connection.execute(COLUMN_TYPES, (name,)) if declared == "BLOB"}
        return name, tuple(
            base64.b64decode(named[column]) if column in blobs and isinstance(named[column], str)
            else stored_integer(named[column]) if column in self._scales[name] and isinstance(named[column], str)
            else named[column]
            for column in self._key_columns(name)
        )  # fmt: skip

    def read(self, connection: apsw.Connection, key: Key) -> Row | None:
        """The row as the connection sees it; None when there is none, or no such table."""
        where = " AND ".join(f'"{column}" IS ?' for column in self._key_columns(key[0]))
        try:
            rows = connection.execute(f'SELECT * FROM "{key[0]}" WHERE {where}', key[1]).fetchall()  # noqa: S608 - names of the schema
        except apsw.SQLError:
            return None
        return rows[0] if rows else None

    def _key_columns(self, name: str) -> list[str]:
        columns = self._columns[name]
        return [columns[at][0] for at in _key_columns(columns)]

    def _read_columns(self, name: str) -> list[tuple[str, int]]:
        sql = "SELECT name, pk FROM pragma_table_xinfo(?) WHERE hidden <> 1 ORDER BY cid"
        return [(str(column), int(str(rank))) for column, rank in self._connection.execute(sql, (name,))]


def _scales(connection: apsw.Connection, name: str) -> dict[str, int]:
    return {column: scale for column, (_, scale) in marked_numerics(connection, name).items()}


class CallHook(ABC):
    """Records which rows change on a connection, by call. Give `begin_call` to the engine as its `progress`."""

    HOOK: ClassVar[str]  # its name, next to the row digest's

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self.tables = Tables(connection)
        self._at = -1  # the call that runs
        self._forget()
        connection.preupdate_hook(self._note_update, id=self.HOOK)

    def begin_call(self, position: int) -> None:
        """The call at this position runs next."""
        if position <= self._at:  # the batch is run again, with savepoints
            self._forget()
        self._at = position

    @contextmanager
    def schema_change(self) -> Iterator[None]:
        """Inside, tables and rows change that no call touches: they may have other keys with each step, so nothing is noted."""
        self.close()
        try:
            yield
        finally:
            self.tables, self._at = Tables(self._connection), -1
            self._forget()
            self._connection.preupdate_hook(self._note_update, id=self.HOOK)

    def close(self) -> None:
        self._connection.preupdate_hook(None, id=self.HOOK)

    @abstractmethod
    def _note_update(self, update: apsw.PreUpdate) -> None:
        """A row changes; also one of the framework's tables."""

    @abstractmethod
    def _forget(self) -> None:
        """Forgets a batch that does not count, or has ended."""


class CallRows(CallHook):
    """Which calls touched each row."""

    HOOK = "touched"

    def take_positions(self, statuses: Sequence[int]) -> dict[Key, list[int]]:
        """Row -> positions of the calls that touched it, ascending, of the batch that has just ended; forgets them."""
        found = {
            key: [at for at in positions if at < len(statuses) and not statuses[at]] for key, positions in self._touched.items()
        }
        self._at = -1
        self._forget()
        return {key: positions for key, positions in found.items() if positions}

    def _note_update(self, update: apsw.PreUpdate) -> None:
        name = update.table_name
        if name not in self.tables:
            return
        for row in (update.old, update.new):
            if row is not None:
                positions = self._touched.setdefault((name, self.tables.key(name, row)), [])
                if not positions or positions[-1] != self._at:
                    positions.append(self._at)

    def _forget(self) -> None:
        self._touched: dict[Key, list[int]] = {}


def routed(procedures: Sequence[Any], number: int, params: Sequence[Any]) -> str | None:
    """The value that sent a call to its partition, as text; None when it ran everywhere."""
    at = procedures[number].partition_at
    return None if at is None or at >= len(params) else repr(params[at])


def positions_of(touched: Mapping[Key, Sequence[int]], keys: Collection[Key]) -> dict[int, list[Key]]:
    """Position -> those of the keys that the call touched."""
    found: dict[int, list[Key]] = {}
    for key in touched.keys() & keys if len(keys) < len(touched) else [key for key in touched if key in keys]:
        for at in touched[key]:
            found.setdefault(at, []).append(key)
    return dict(sorted(found.items()))


def plain(value: Any) -> Any:
    """A value of SQLite as JSON has it: bytes as base64, infinity as text."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value


def _key_columns(columns: Sequence[tuple[str, int]]) -> list[int]:
    """Numbers of the columns of the primary key, in its order."""
    return sorted((at for at, (_, rank) in enumerate(columns) if rank), key=lambda at: columns[at][1])


def _tuple_getter(at: Sequence[int]) -> Callable[[Row], tuple[Any, ...]]:
    if len(at) == 1:
        only = at[0]
        return lambda row: (row[only],)
    return itemgetter(*at)


class Steps:
    """The versions of one row through a batch."""

    __slots__ = ("before", "behind")

    def __init__(self, before: Row | None) -> None:
        self.before = before
        self.behind: list[tuple[int, Row | None]] = []  # position of the call -> the row after it; ascending

    def add_step(self, position: int, row: Row | None) -> None:
        if self.behind and self.behind[-1][0] == position:
            self.behind[-1] = position, row
        else:
            self.behind.append((position, row))


Trails = dict[Key, Steps]


class RowTrail(CallHook):
    """The versions of every row."""

    HOOK = "trail"

    def take_rows(self, statuses: Sequence[int], positions: Sequence[int]) -> Trails:
        """The rows that the calls of the batch that has just ended touched; forgets them.

        `positions` are the positions in the batch of the calls that were run, in order. A call that failed has changed nothing.
        """
        rows, self._at = self._rows, -1
        self._forget()
        found = {}
        for key, steps in rows.items():
            steps.behind = [(positions[at], row) for at, row in steps.behind if not statuses[at]]
            if steps.behind:
                found[key] = steps
        return found

    def _note_update(self, update: apsw.PreUpdate) -> None:
        name = update.table_name
        if name not in self.tables:
            return
        old, new = update.old, update.new
        before = (name, self.tables.key(name, old)) if old is not None else None
        if new is None:
            self._step(before, old, None)
            return
        key = name, self.tables.key(name, new)
        if before is not None and before != key:  # the row moves to another key
            self._step(before, old, None)
            old = None
        self._step(key, old, new)

    def _step(self, key: Key | None, before: Row | None, behind: Row | None) -> None:
        if key is None:
            return
        steps = self._rows.get(key)
        if steps is None:
            steps = self._rows[key] = Steps(before)
        steps.add_step(self._at, behind)

    def _forget(self) -> None:
        self._rows: Trails = {}
