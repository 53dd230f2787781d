"""Digest of the rows that a batch changed, from SQLite's pre-update hook.

The hook reports each change as it happens: table, row before, row after. What counts is the *net* change of the batch: for every
key that was touched, the row before the first change and the row after the last. Rows are sorted by table and key, so the digest
does not depend on the order in which SQLite changed them; it is the same with or without savepoints and rolled-back calls, on
every machine and Python.

SQLite also reports changes that it then takes back: of a statement that fails half-way, of a call that is rolled back. After
either, the rows that were touched are read again instead of trusting the events.

A text that is no UTF-8 (of `CAST(blob AS TEXT)`, or `char()` of half a pair) cannot be read in Python. The batch then has one
fixed digest, and no delta is made of it: whether digests are switched on must not decide what a call answers.

What was touched is reported to `changes.Changes` as well, if there is one: right after the batch, with the rows as they were
before it. Of the framework's tables the idempotency keys take part in that; they are no part of the digest here.

The session extension uses the same hook. What it costs, and other ways that were measured, is in DECISIONS.md (2).
"""

from __future__ import annotations

import hashlib
import marshal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, NamedTuple

import apsw

from procedures.native import accelerator
from procedures.storage.changed_keys import Changes

INTERNAL: Final = "_cmdlog_"  # tables of the framework, which are no part of the digest
NAMED_CALLS: Final = ("_cmdlog_keys", "_cmdlog_sessions")  # whose rows delta snapshots hold; their keys are row ids
EMPTY: Final = 0x9E3779B97F4A7C15  # digest of a batch that changed no rows; 0 is kept for "switched off"
UNREADABLE: Final = EMPTY ^ 1  # of one that touched a row with a text that is no UTF-8
MARSHAL_VERSION: Final = 2  # binary floats, and no references or interned strings, which differ between processes

_TABLES: Final = (  # a table without a key may be there until the end of a schema record, which refuses it
    "SELECT name FROM sqlite_master AS t WHERE type = 'table' AND EXISTS (SELECT 1 FROM pragma_table_info(t.name) WHERE pk > 0)"
)

Row = tuple[Any, ...]
Rows = dict[Any, Row | None]  # key -> row, None = there is none
Entry = tuple[Any, Row | None]  # key, row


@dataclass(frozen=True, slots=True)
class ChangedRow:
    """One row that a batch changed, for the report of a divergence."""

    table: str
    key: Row  # values of its primary key
    old: Row | None  # None: inserted
    new: Row | None  # None: deleted


class RowCheck(NamedTuple):
    """What judges the changed rows of a table."""

    judge: Callable[[apsw.PreUpdate, Row], None]  # a change, and the row after it; raises what the row is refused with
    at: int = 0
    here: set[Any] | None = None  # a row that has one of these in column `at` need not be judged


class TouchedRows:
    """The touched rows of one table: before the first and after the last change of the batch.

    `accelerator.TouchedRows` is the same in C.
    """

    __slots__ = ("first", "key_of", "last", "name", "read")

    def __init__(self, name: str, read: str, places: tuple[int, ...]) -> None:
        """`read`: SQL that reads a row by its key; `places`: columns of the key."""
        self.name, self.read = name, read
        self.key_of: Callable[[Row], Any] = itemgetter(*places)  # one column: its value; else a tuple
        self.first: Rows = {}
        self.last: Rows = {}

    def net_bytes(self) -> bytes | None:
        """What `_net_bytes` returns; None: it has to make it."""
        return None


_Touched = TouchedRows if accelerator is None else accelerator.TouchedRows


def touched_rows(connection: apsw.Connection, name: str) -> TouchedRows:
    """The rows of a table that nothing has touched yet."""
    sql = "SELECT name, cid FROM pragma_table_xinfo(?) WHERE pk > 0 ORDER BY pk"  # table_info leaves generated columns out
    columns: list[tuple[str, int]] = connection.execute(sql, (name,)).fetchall()  # type: ignore[assignment] # what it asks for
    where = " AND ".join(f'"{column}" IS ?' for column, _ in columns)
    read = f'SELECT * FROM "{name}" WHERE {where}'  # noqa: S608 - names that the schema holds
    found: TouchedRows = _Touched(name, read, tuple(cid for _, cid in columns))
    return found


def _changed(table: TouchedRows) -> list[Entry]:
    """(key, row) of the net changes, by key."""
    first = table.first
    rows = [entry for entry in table.last.items() if first[entry[0]] != entry[1]]
    try:
        rows.sort()  # keys differ, so rows are never compared
    except TypeError:  # keys of several types in one column
        rows.sort(key=lambda entry: marshal.dumps(entry[0], MARSHAL_VERSION))
    return rows


def _net_bytes(table: TouchedRows) -> bytes:
    """What the net changes of a table add to the digest; b"" when there are none."""
    rows = _changed(table)
    return marshal.dumps((table.name, rows), MARSHAL_VERSION) if rows else b""


class RowLog:
    """The changes of the running batch on one connection. Owned by the executor.

    Attributes:
        unreadable: a row that was touched holds text that is no UTF-8, so what changed is not known.
        uncertain: SQLite undid something that it had reported; set by the code that sees it happen.
        changes: gets what each batch touched; set between two batches.
        checks: by table; set between two batches.
    """

    __slots__ = ("_connection", "_named", "_tables", "_touched", "changes", "checks", "uncertain", "unreadable")

    def __init__(self, connection: apsw.Connection) -> None:
        self.checks: Mapping[str, RowCheck] = {}
        self._connection = connection
        self._named: dict[str, Rows] = {name: {} for name in NAMED_CALLS}  # their touched rows, as they were before
        self.changes: Changes | None = None
        self._tables: dict[str, TouchedRows] = {}
        self._touched: dict[str, TouchedRows] = {}  # since the batch began
        self.uncertain = self.unreadable = False
        connection.preupdate_hook(self._make_hook())

    def begin_batch(self) -> None:
        """A batch begins; what was reported before is forgotten."""
        self._forget()
        if not self._tables:  # not in the hook, where SQLite cannot be asked
            rows = self._connection.execute(_TABLES).fetchall()
            self._tables = {str(name): touched_rows(self._connection, str(name)) for (name,) in rows}

    def tell_changes(self, changes: Changes) -> None:
        """The batch is committed."""
        if self.unreadable:
            changes.schema_changed()  # ends a delta under way, too, since rows are missing in what it gets now
        for name, table in self._touched.items():
            changes.add_rows(name, table.first)
        for name, rows in self._named.items():
            if rows:
                changes.add_rows(name, rows)

    def _forget(self) -> None:
        for table in self._touched.values():
            table.first.clear()
            table.last.clear()
        self._touched.clear()
        for rows in self._named.values():
            rows.clear()
        self.uncertain = self.unreadable = False

    def suspend(self) -> None:
        """What changes until `resume` is not reported."""
        self._connection.preupdate_hook(None)

    def resume(self) -> None:
        """Tables may have other columns since `suspend`; what was reported before is forgotten."""
        self.forget_tables()
        self._connection.preupdate_hook(self._make_hook())
        self.begin_batch()

    def forget_tables(self) -> None:
        """Tables may have other columns, in this transaction."""
        self._forget()
        self._tables = {}

    def schema_changed(self) -> None:
        """Tables have other columns from now on."""
        self.forget_tables()
        if self.changes is not None:
            self.changes.schema_changed()

    def digest(self) -> int:
        """64 bits, never 0. To be called before the framework changes its own tables."""
        if self.uncertain and not self.unreadable:
            self._read_again()
        if self.unreadable:
            return UNREADABLE
        hasher = hashlib.blake2b(digest_size=8)
        empty = True
        for name in sorted(self._touched):
            made = self._touched[name].net_bytes()
            if made is None:
                made = _net_bytes(self._touched[name])
            if made:
                empty = False
                hasher.update(made)
        return EMPTY if empty else int.from_bytes(hasher.digest()) or EMPTY

    def changed_rows(self) -> list[ChangedRow]:
        """The rows of the last batch, by table and key."""
        return [
            ChangedRow(name, key if type(key) is tuple else (key,), self._touched[name].first[key], new)
            for name in sorted(self._touched)
            for key, new in _changed(self._touched[name])
        ]

    def _make_hook(self) -> Callable[[apsw.PreUpdate], None]:
        touched = self._touched

        def note_update(update: apsw.PreUpdate) -> None:
            name = update.table_name
            table = touched.get(name)
            if table is None:
                if name.startswith(INTERNAL):
                    if name in NAMED_CALLS and self.changes is not None:
                        _note_named(self._named[name], update)
                    return
                table = touched[name] = self._tables[name]
            try:
                new, old = update.new, update.old
            except UnicodeDecodeError:
                self.unreadable = True
                return
            last = table.last
            if new is None:
                key = table.key_of(old or ())  # a change has a row before or after it
            else:
                key = table.key_of(new)
                if old is not None and table.key_of(old) != key:  # the row moves to another key
                    moved = table.key_of(old)
                    if moved not in last:
                        table.first[moved] = old
                    last[moved] = None
                    old = None
            if key not in last:
                table.first[key] = old
            last[key] = new
            if new is not None and (check := self.checks.get(name)) is not None:
                check.judge(update, new)

        return note_update if accelerator is None else accelerator.UpdateHook(self, touched, note_update)

    def _read_again(self) -> None:
        execute = self._connection.execute
        for table in self._touched.values():
            for key in table.last:
                found = execute(table.read, key if type(key) is tuple else (key,)).fetchall()
                table.last[key] = found[0] if found else None


def _note_named(rows: Rows, update: apsw.PreUpdate) -> None:
    old = update.old
    index = update.rowid_new if old is None else update.rowid
    if index not in rows:
        rows[index] = old
