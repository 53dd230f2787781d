"""Ad-hoc SELECTs on a frozen state, beside the sites.

One rule: read-only by construction: the file is opened read-only, an authorizer refuses everything but reading, and limits of
rows and time end what would pin the site's write-ahead file.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import apsw

from procedures.guard import Mode
from procedures.state import open_reader

STEPS_BETWEEN_LOOKS: Final = 10_000  # of SQLite's virtual machine, about 1 ms, between looks at the deadline


class QueryRefused(ValueError):
    """The statement is no SELECT that may run here, or it broke a limit; `str()` says which."""


@dataclass(frozen=True, slots=True)
class QueryResult:
    columns: list[str]
    rows: list[Sequence[Any]]  # partitions in order, concatenated
    as_of: dict[int, int]  # partition -> TxnId of the state that was read
    truncated: bool = False


def run_query(
    paths: Mapping[int, str], sql: str, params: Sequence[Any], *, rows_max: int, timeout_s: float
) -> QueryResult:
    """Reads one partition after the other. Raises: QueryRefused."""
    deadline = time.monotonic() + timeout_s
    columns: list[str] = []
    rows: list[Sequence[Any]] = []
    as_of: dict[int, int] = {}
    for partition, path in paths.items():
        connection, guard = open_reader(path)
        with contextlib.closing(connection):
            connection.set_progress_handler(lambda: time.monotonic() > deadline, STEPS_BETWEEN_LOOKS)
            with connection:
                as_of[partition] = connection.execute("SELECT txn_id FROM _cmdlog_meta").get
                guard.mode = Mode.PROCEDURE
                try:
                    columns = _read(connection, sql, params, rows, rows_max)
                except apsw.InterruptError:
                    raise QueryRefused(f"the query ran longer than query_timeout_s={timeout_s:g}") from None
                except (apsw.Error, TypeError, ValueError) as error:
                    raise QueryRefused(str(error)) from None
                finally:
                    guard.mode = Mode.FRAMEWORK
    return QueryResult(columns, rows, as_of)


def _read(
    connection: apsw.Connection, sql: str, params: Sequence[Any], rows: list[Sequence[Any]], rows_max: int
) -> list[str]:
    columns: list[str] = []

    def note(_cursor: apsw.Cursor, statement: str, _bindings: Any) -> bool:
        if not connection.readonly("main"):
            raise QueryRefused("only SELECT may run here")
        return True

    cursor = connection.cursor()
    cursor.exec_trace = note
    for row in cursor.execute(sql, tuple(params)):
        if not columns:
            columns = [str(entry[0]) for entry in cursor.get_description()]
        if len(rows) >= rows_max:
            raise QueryRefused(f"the result has more than query_rows_max={rows_max} rows; add a LIMIT")
        rows.append(row)
    return columns
