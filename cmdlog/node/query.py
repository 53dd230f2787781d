"""Ad-hoc SELECTs on a frozen state, beside the sites.

One rule: read-only by construction: the file is opened read-only, an authorizer refuses everything but reading, and limits of
rows and time end what would pin the site's write-ahead file.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import apsw

from cmdlog.results import QueryResult
from procedures.guard import Mode
from procedures.state import open_reader

__all__ = ["QueryRefused", "QueryResult", "run_query"]

STEPS_BETWEEN_LOOKS: Final = 10_000  # of SQLite's virtual machine, about 1 ms, between looks at the deadline
RESULT_BYTES_MAX: Final = 64 << 20  # of one result, and of any value on the way to it: the node holds them in memory


class QueryRefused(ValueError):
    """The statement is no SELECT that may run here, or it broke a limit; `str()` says which."""


def run_query(
    paths: Mapping[int, str], sql: str, params: Sequence[Any], *, rows_max: int, timeout_s: float, wal_bytes_max: int
) -> QueryResult:
    """Reads one partition after the other. Raises: QueryRefused."""
    deadline = time.monotonic() + timeout_s
    columns: list[str] = []
    rows: list[Sequence[Any]] = []
    as_of: dict[int, int] = {}
    for partition, path in paths.items():
        try:
            connection, guard = open_reader(path)
        except apsw.Error as error:
            raise QueryRefused(f"partition {partition} cannot be read: {error}") from None
        with contextlib.closing(connection):
            pinned = _Pinned(path, wal_bytes_max)
            connection.set_progress_handler(lambda: time.monotonic() > deadline or pinned.too_long(), STEPS_BETWEEN_LOOKS)  # noqa: B023
            connection.limit(apsw.SQLITE_LIMIT_LENGTH, RESULT_BYTES_MAX)
            with connection:
                as_of[partition] = connection.execute("SELECT txn_id FROM _cmdlog_meta").get
                guard.mode = Mode.PROCEDURE
                try:
                    columns = _read(connection, sql, params, rows, rows_max)
                except apsw.InterruptError:
                    if pinned.too_long():
                        raise QueryRefused(f"the site's log grew beyond wal_bytes_max={wal_bytes_max} meanwhile") from None
                    raise QueryRefused(f"the query ran longer than query_timeout_s={timeout_s:g}") from None
                except (apsw.Error, TypeError, ValueError, OverflowError) as error:
                    raise QueryRefused(str(error)) from None
                finally:
                    guard.mode = Mode.FRAMEWORK
    return QueryResult(columns, rows, as_of)


class _Pinned:
    """The write-ahead file that a reader keeps from being checkpointed: a file that was long before is not its doing."""

    def __init__(self, path: str, bytes_max: int) -> None:
        self._path = f"{path}-wal"
        self._bytes_max = max(bytes_max, self._size())

    def too_long(self) -> bool:
        return self._size() > self._bytes_max

    def _size(self) -> int:
        try:
            return os.stat(self._path).st_size
        except FileNotFoundError:
            return 0


def _read(connection: apsw.Connection, sql: str, params: Sequence[Any], rows: list[Sequence[Any]], rows_max: int) -> list[str]:
    columns: list[str] = []

    def note(cursor: apsw.Cursor, _statement: str, _bindings: Any) -> bool:
        """Before each statement of the text runs."""
        if columns:
            raise QueryRefused("one SELECT at a time")
        columns.extend(str(entry[0]) for entry in cursor.get_description())
        if not columns or not cursor.is_readonly or cursor.is_explain:
            raise QueryRefused("only SELECT may run here")
        return True

    cursor = connection.cursor()
    cursor.exec_trace = note
    room = RESULT_BYTES_MAX - sum(map(_bytes_of, rows))
    # A statement in the cache was judged when it was prepared, perhaps for the framework.
    for row in cursor.execute(sql, tuple(params), can_cache=False):
        if len(rows) >= rows_max:
            raise QueryRefused(f"the result has more than query_rows_max={rows_max} rows; add a LIMIT")
        room -= _bytes_of(row)
        if room < 0:
            raise QueryRefused(f"the result has more than {RESULT_BYTES_MAX} bytes; add a LIMIT, or read fewer columns")
        rows.append(row)
    return columns


def _bytes_of(row: Sequence[Any]) -> int:
    return sum(len(value) for value in row if isinstance(value, str | bytes))
