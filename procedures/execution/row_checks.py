"""What each written row must hold, beside what SQLite itself checks: the limits of its types, and a value that belongs here.

One rule: it is decided where every change is seen, in SQLite's pre-update hook, however the row was written (bound values,
INSERT … SELECT, SQL text, an upsert, a cascade). SQLite has changed the row by then, so a refused row ends its call, even if
the procedure catches the error. A value that an UPDATE leaves as it was is not judged again: it may be older than the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

import apsw

from procedures.declaration.columns.column_types import limit_of
from procedures.declaration.database import Database, TableInfo
from procedures.declaration.row_placement import owner_reader
from procedures.errors import RowRefused
from procedures.statements.call_state import CallState
from procedures.storage.row_digest import RowCheck

Row = tuple[Any, ...]
Judge = Callable[[apsw.PreUpdate, Row], None]  # a change, and the row after it; raises RowRefused
HOOK: Final = "row-checks"
KNOWN_MAX: Final = 1 << 16  # partitioning values of a table that need not be hashed again


def columns_by_table(connection: apsw.Connection) -> dict[str, list[str]]:
    """Table → the columns that it has, in the order in which a change reports their values."""
    found: dict[str, list[str]] = {}
    rows = connection.execute(
        "SELECT t.name, c.name FROM sqlite_master AS t, pragma_table_xinfo(t.name) AS c WHERE t.type = 'table' "
        "ORDER BY t.name, c.cid"
    )
    for table, column in rows:
        found.setdefault(str(table), []).append(str(column))
    return found


def row_checks(database: Database, state: CallState, connection: apsw.Connection, partitions: int | None) -> dict[str, RowCheck]:
    """Table → check of its rows on the state's partition, which also adds to `state.refused` what it raises.

    Tables without one are left out, and columns that the state lacks, whose order need not be that of the declaration.

    Args:
        partitions: how many there are; None: rows may be written where they do not belong.
    """
    held, refused, partition = columns_by_table(connection), state.refused, state.partition
    checks = {}
    for name, info in database.tables.items():
        places = {column: at for at, column in enumerate(held.get(name, ()))}
        # A table's limits, its place, both, or neither.
        limits = _limits_check(info, refused, places)
        if info.partition_by in places and partitions is not None and partitions > 1:
            placed = _place_check(info, refused, places[str(info.partition_by)], partition, partitions)
            checks[name] = placed if limits is None else RowCheck(_both(limits, placed.judge))
        elif limits is not None:
            checks[name] = RowCheck(limits)
    return checks


def _both(first: Judge, second: Judge) -> Judge:
    def judge_row(update: apsw.PreUpdate, new: Row) -> None:
        first(update, new)
        second(update, new)

    return judge_row


def _limits_check(info: TableInfo, refused: list[RowRefused], places: Mapping[str, int]) -> Judge | None:
    table = info.table
    found = [(places[column.name], column.name, limit_of(column.type)) for column in table.columns if column.name in places]
    limits = [(at, name, *limit) for at, name, limit in found if limit is not None]
    if not limits:
        return None

    def check_limits(update: apsw.PreUpdate, new: Row) -> None:
        for at, name, fits, says in limits:
            value = new[at]
            if value is not None and not fits(value) and not _was_so(update, at, value):
                _refuse(refused, f"column {table.name}.{name}: {says}", {name: value})

    return check_limits


def _place_check(info: TableInfo, refused: list[RowRefused], at: int, partition: int, partitions: int) -> RowCheck:
    """Whether a row is where calls with its partitioning value run; else no later call would find it."""
    table, column, owner_of = info.table, info.partition_by, owner_reader(info, partitions)
    here: set[Any] = set()  # values that were found to belong here

    def check_place(update: apsw.PreUpdate, new: Row) -> None:
        value = new[at]
        if value in here or _was_so(update, at, value):
            return
        owner = owner_of(value)
        if owner != partition:
            belongs = "has no partition" if owner is None else f"belongs to partition {owner}"
            _refuse(
                refused,
                f"table {table.name}: the row, by its {column}, {belongs}, and this call runs on partition {partition}; "
                f"route the procedure by what it writes into {column}, or write the row in a call of its own",
                {str(column): value},
            )
        if len(here) >= KNOWN_MAX:
            here.clear()
        here.add(value)

    return RowCheck(check_place, at, here)


def _was_so(update: apsw.PreUpdate, at: int, value: Any) -> bool:
    """Whether the row had the value before. It is looked at last: building that row costs as much as the rest of a check."""
    old = update.old
    return old is not None and bool(old[at] == value)


def _refuse(refused: list[RowRefused], message: str, params: Mapping[str, Any]) -> NoReturn:
    refused.append(RowRefused(message, params))
    raise refused[0]


class RowChecker:
    """Judges the changes on one connection where no digest looks at them. Owned by the executor.

    Where no table has a check, SQLite reports no changes.
    """

    __slots__ = ("_checks", "_connection")

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._checks: Mapping[str, RowCheck] = {}

    @property
    def checks(self) -> Mapping[str, RowCheck]:
        """The checks of the running catalog."""
        return self._checks

    @checks.setter
    def checks(self, checks: Mapping[str, RowCheck]) -> None:
        if bool(checks) != bool(self._checks):
            self._connection.preupdate_hook(self._note_update if checks else None, id=HOOK)
        self._checks = checks

    def suspend(self) -> None:
        """Changes until `resume` are not judged."""
        self._connection.preupdate_hook(None, id=HOOK)

    def resume(self) -> None:
        self._connection.preupdate_hook(self._note_update if self._checks else None, id=HOOK)

    def _note_update(self, update: apsw.PreUpdate) -> None:
        check = self._checks.get(update.table_name)
        if check is None:
            return
        try:
            new = update.new
            if new is not None:
                check.judge(update, new)
        except UnicodeDecodeError:
            return  # as where digests are on: whether they are must not decide what a call answers
