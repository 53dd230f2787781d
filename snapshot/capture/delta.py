"""A delta: the rows that changed since another snapshot, and how they are put into a copy of it.

One rule: a delta is exactly at its cut, the batch after which it began. The keys that changed since the base's cut are known
by then (`procedures.storage.changed_keys`); between later batches a step reads some of these rows and writes them down. A row
that a later batch touches before its turn has come is written as it was before that batch, which the pre-update hook has
reported.

The file holds, per table with changed rows, `"<table>"`: the rows to put, whole, without generated columns; and
`"_cmdlog_gone_<table>"`: the keys of those that are gone. Both are plain heaps without keys or types, written from front to back
and sorted when they are read: a tree in the order of its key would be rewritten page by page. `_cmdlog_meta` says its position.

To apply one, keys that are gone are deleted, then every row is put with REPLACE. A row that conflicts with one that is put, by
its key or another unique column, is an older version of a row that is itself changed or gone: the rows after a cut are
consistent among themselves. So values that were swapped between unique columns need no second pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, Final
from urllib.parse import quote

import apsw

from procedures.storage.changed_keys import Changes, Part, Rows
from procedures.storage.state import PartitionState, Position, rows_of
from procedures.storage.state_file import connect
from snapshot.capture.capture import Capture, CapturePacing
from snapshot.errors import SnapshotDamaged

META_TABLE: Final = "_cmdlog_meta"
GONE: Final = "_cmdlog_gone_"
PART_KEYS: Final = 1 << 14  # of a set of keys that are written down: it grows, and is freed, within 1 ms
STEP_ROWS_MAX: Final = 1024
ROW_SECONDS_FIRST: Final = 20e-6  # of one row, before anything is measured
DESTINATION_CACHE_KIB: Final = 1024  # a heap is written at its end alone
APPLY_CACHE_KIB: Final = 64 << 10  # as a site has
_POSITION: Final = f"SELECT idx, term, checksum, txn_id FROM main.{META_TABLE}"  # noqa: S608 - a name of ours

Row = tuple[Any, ...]


class _DeltaTable:
    """One table of the delta: how its rows are read from the state, and written down."""

    __slots__ = ("done", "gone", "key_of", "pick", "put", "read")

    def __init__(self, source: apsw.Connection, target: apsw.Connection, name: str) -> None:
        columns = rows_of(source, "SELECT name, cid, pk, hidden FROM pragma_table_xinfo(?) ORDER BY cid", (name,))
        plain = [(column, cid) for column, cid, _, hidden in columns if not hidden]
        keys = [(column, cid) for column, cid, pk, _ in sorted(columns, key=itemgetter(2)) if pk]
        self.read = f"SELECT * FROM {_q(name)} WHERE {' AND '.join(f'{_q(column)} IS ?' for column, _ in keys)}"  # noqa: S608
        self.key_of: Callable[[Row], Any] = itemgetter(*(cid for _, cid in keys))  # one column: its value; else a tuple
        picked = itemgetter(*(cid for _, cid in plain))
        self.pick: Callable[[Row], Row] = picked if len(plain) > 1 else lambda row: (picked(row),)
        self.put = _create_heap(target, name, [column for column, _ in plain])
        self.gone = _create_heap(target, GONE + name, [column for column, _ in keys])
        self.done: list[set[Any]] = [set()]  # keys that are written down

    def mark(self, key: Any) -> None:
        if len(self.done[-1]) >= PART_KEYS:
            self.done.append(set())
        self.done[-1].add(key)


class DeltaCapture(Capture):
    """The copy of the rows that changed."""

    kind = "delta"

    def __init__(self, state: PartitionState, changes: Changes, parts: Sequence[Part], path: str) -> None:
        """`parts` hold the keys that may have changed since the base's cut; `changes` has just made its cut."""
        super().__init__(state, path, CapturePacing(unit_s=ROW_SECONDS_FIRST, units_max=STEP_ROWS_MAX))
        self._changes, self._parts = changes, parts
        self._position, self._schemas = state.position, changes.schemas
        self._rows = 0
        self._tables: dict[str, _DeltaTable] = {}
        self._keys = self._all_keys()
        self._begin_or_fail()

    def _copy_some(self, units: int) -> bool:
        if self._changes.schemas != self._schemas:
            raise SnapshotDamaged("the tables themselves were changed during the capture")
        if not self._write_some(units) and not self._free_some():
            self._complete()
        return True

    def _begin_capture(self) -> None:
        self._create(cache_kib=DESTINATION_CACHE_KIB).execute("BEGIN")
        self._write(META_TABLE, rows_of(self._state.connection, f"SELECT * FROM {META_TABLE}"), [])  # noqa: S608
        self._changes.watch = self._before

    def _all_keys(self) -> Iterator[tuple[str, Any]]:
        """Every (table, key) that may have changed; some of them twice."""
        for part in self._parts:
            for name, keys in part.items():
                for key in keys:
                    yield name, key

    def _write_some(self, rows: int) -> bool:
        """Reads and writes down the rows of some more keys; False when there are no more."""
        asked = list(islice(self._keys, rows))
        for name in dict.fromkeys(name for name, _ in asked):
            self._copy(name, [key for of, key in asked if of == name])
        return bool(asked)

    def _copy(self, name: str, keys: list[Any]) -> None:
        """Writes the rows of these keys, which no batch after the cut has touched, unless they are already written."""
        table = self._table(name)
        found: list[Row] = []
        gone: list[Any] = []
        read, execute = table.read, self._state.connection.execute
        for key in keys:
            if any(key in done for done in table.done):
                continue
            table.mark(key)
            row = execute(read, key if type(key) is tuple else (key,)).fetchall()
            if not row:
                gone.append(key)
                continue
            actual = table.key_of(row[0])  # it may equal the key in the column's collation only, and take its place
            if actual == key or not any(actual in done for done in table.done):
                table.mark(actual)
                found += row
        self._write(name, found, gone)

    def _before(self, name: str, rows: Rows) -> None:
        """A batch after the cut touched these rows, which were so before: those not yet written are written now."""
        try:
            hit: set[Any] = set()
            for part in self._parts:
                if name in part:
                    hit |= rows.keys() & part[name]
            if hit:
                self._write_before(name, hit, rows)
        except (apsw.Error, OSError) as error:
            self._fail(error)

    def _write_before(self, name: str, hit: set[Any], rows: Rows) -> None:
        table = self._table(name)
        for done in table.done:
            hit -= done
        for key in hit:
            table.mark(key)
        before = [(key, rows[key]) for key in hit]
        self._write(name, [row for _, row in before if row is not None], [key for key, row in before if row is None])

    def _table(self, name: str) -> _DeltaTable:
        assert self._target is not None
        table = self._tables.get(name)
        if table is None:
            table = self._tables[name] = _DeltaTable(self._state.connection, self._target, name)
        return table

    def _write(self, name: str, rows: Sequence[Row], gone: Sequence[Any]) -> None:
        table = self._table(name)
        assert self._target is not None
        if rows:
            self._target.executemany(table.put, map(table.pick, rows))
        if gone:
            self._target.executemany(table.gone, [key if type(key) is tuple else (key,) for key in gone])
        self._rows += len(rows) + len(gone)

    def _free_some(self) -> bool:
        """Nothing is left to write: what was written is forgotten, in steps as well; False when all of it is."""
        self._changes.watch = None
        for table in self._tables.values():
            if table.done:
                table.done.pop()
                return True
        return False

    def _complete(self) -> None:
        assert self._target is not None
        self._target.execute("COMMIT")
        self._close()
        self._done = True

    def _close(self) -> None:
        if self._changes.watch == self._before:
            self._changes.watch = None
        super()._close()


def apply_deltas(image: str, deltas: Sequence[str], position: Position) -> None:
    """Puts the deltas into the image, in their order; it is then at `position`. Not durable.

    A crash in between leaves nothing that looks like a state file: the caller gives it its name afterwards. Raises:
    SnapshotDamaged when they do not fit each other; apsw.FullError, apsw.IOError.
    """
    connection = connect(image, apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_URI)
    try:
        # A rollback is not wanted either: after a failure the file goes as a whole.
        # The sync goes first: else the next one, which ends the image's mode WAL, syncs the whole copy.
        for pragma in ("synchronous = OFF", "journal_mode = OFF", "foreign_keys = OFF", "ignore_check_constraints = ON"):
            connection.execute(f"PRAGMA {pragma}").fetchall()
        connection.execute(f"PRAGMA cache_size = -{APPLY_CACHE_KIB}")
        for delta in deltas:
            _apply(connection, delta)
        found = rows_of(connection, _POSITION)
        if found != [(position.index, position.term, position.checksum, position.txn_id)]:
            raise SnapshotDamaged(f"{image} is at {found} with its deltas, but should be at {position}")
    except (apsw.SQLError, apsw.ConstraintError, apsw.CorruptError, apsw.NotADBError) as error:
        raise SnapshotDamaged(f"the deltas {', '.join(deltas)} do not fit their base: {error}") from error
    finally:
        connection.close(True)


def _apply(connection: apsw.Connection, delta: str) -> None:
    connection.execute("ATTACH ? AS delta", (f"file:{quote(delta)}?mode=ro&immutable=1",))
    connection.execute("BEGIN")
    for (name,) in rows_of(connection, "SELECT name FROM delta.sqlite_schema WHERE type = 'table' ORDER BY name"):
        if not name.startswith(GONE):
            _apply_table(connection, name)
    connection.execute("COMMIT")
    connection.execute("DETACH delta")


def _apply_table(connection: apsw.Connection, name: str) -> None:
    columns = rows_of(connection, "SELECT name, pk FROM pragma_table_info(?, 'main') ORDER BY cid", (name,))
    stored = rows_of(connection, "SELECT name FROM pragma_table_info(?, 'delta') ORDER BY cid", (name,))
    if not columns or [row[0] for row in columns] != [row[0] for row in stored]:
        raise SnapshotDamaged(f"table {name} has the columns {columns} in the base and {stored} in the delta")
    all_of = ", ".join(_q(column) for column, _ in columns)
    key_columns = [_q(column) for column, pk in sorted(columns, key=itemgetter(1)) if pk]
    keys = ", ".join(key_columns)
    lookup = f"({keys})" if len(key_columns) > 1 else keys
    connection.execute(f"DELETE FROM main.{_q(name)} WHERE {lookup} IN (SELECT {keys} FROM delta.{_q(GONE + name)})")  # noqa: S608
    connection.execute(
        f"INSERT OR REPLACE INTO main.{_q(name)} ({all_of}) SELECT {all_of} FROM delta.{_q(name)} ORDER BY {keys}"  # noqa: S608
    )


def _create_heap(target: apsw.Connection, name: str, columns: Sequence[str]) -> str:
    """Makes the table; returns the statement that adds a row."""
    target.execute(f"CREATE TABLE {_q(name)} ({', '.join(map(_q, columns))})")
    return f"INSERT INTO {_q(name)} VALUES ({', '.join('?' * len(columns))})"  # noqa: S608


def _q(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
