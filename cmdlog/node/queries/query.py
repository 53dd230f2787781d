"""Ad-hoc SELECTs on a frozen state, beside the sites.

One rule: read-only by construction: the file is opened read-only, an authorizer refuses everything but reading, and limits of
rows, bytes and time end what would pin the site's write-ahead file.

SQLite looks at a deadline between two steps of its machine, and one step may be a single call of `instr` that takes days, or make
forty values of the greatest length. So a server runs queries in processes of their own (`querypool`), which the kernel ends; the
limits here make that the exception. Embedded use runs them in the calling process: its SQL is the application's own.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, TypeVar

import apsw

from cmdlog.errors import InvalidParameters
from cmdlog.node.outcome import NotReady
from cmdlog.procedure_calls import QueryParameters
from cmdlog.results import QueryResult
from cmdlog.wal.process_limits import address_limit
from procedures.numeric.functions import UNITS
from procedures.numeric.marks import marked_numerics, numeric_digits
from procedures.statements.raised import sqlite_text
from procedures.storage.authorizer import Authorizer, Mode
from procedures.storage.state import open_reader, rows_of
from procedures.storage.stored_values import stored_value
from replay.state.state_lock import is_shut

if TYPE_CHECKING:
    from cmdlog.node.settings import Settings

__all__ = ["QueryLimit", "QueryLimits", "QueryRefused", "QueryResult", "RunQuery", "limits_of", "run_query"]

T = TypeVar("T")

STEPS_BETWEEN_LOOKS: Final = 10_000  # of SQLite's virtual machine, about 1 ms, between looks at the deadline
GATE_LOOK_S: Final = 0.005  # between two looks whether the site lets readers in again
CACHE_KIBIBYTES: Final = 8 << 10  # of pages: a query runs once, and its memory is for sorting
COMPOUND: Final = re.compile(r"\b(?:UNION|INTERSECT|EXCEPT)\b", re.IGNORECASE)
VALUE_BYTES: Final = 32  # that any value takes, at least, in a result of values
ESCAPED_BYTES_MAX: Final = 6  # of a character in JSON: \u0001

OF_THE_CALLER: Final = (
    apsw.SQLError,
    apsw.AuthError,
    apsw.MismatchError,
    apsw.RangeError,
    apsw.ConstraintError,
    apsw.ReadOnlyError,
    apsw.BindingsError,
    apsw.IncompleteExecutionError,
    apsw.ExecTraceAbort,
    TypeError,
    ValueError,  # text in the tables that is not UTF-8
    OverflowError,
)
"""What a statement can do wrong; any other error is the machine's or the file's."""


class QueryRefused(InvalidParameters, ValueError):
    """The statement is no SELECT that may run here; `str()` says why. Over HTTP it is the problem of the parameter `sql`."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message, problems=[("sql", message)])


class QueryLimit(QueryRefused):
    """The statement needs more time, rows, bytes or memory than one query may have; `str()` names the setting."""

    code = "query_limit"


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """What one query may have."""

    rows_max: int
    bytes_max: int
    timeout_s: float
    wal_bytes_max: int


RunQuery = Callable[[Mapping[int, str], str, QueryParameters, QueryLimits], T]
"""State file of each partition, SQL, parameters, limits -> rows, in whatever form."""


def limits_of(settings: Settings) -> QueryLimits:
    """The limits that the settings state."""
    return QueryLimits(
        rows_max=settings.query_rows_max,
        bytes_max=settings.query_bytes_max,
        timeout_s=settings.query_timeout_s,
        wal_bytes_max=settings.wal_bytes_max,
    )


class RowStore(Protocol):
    """Where the rows of a result go."""

    rows: int

    def add_row(self, row: Sequence[Any], bytes_max: int) -> bool:
        """Keeps a row; False when all rows take more than that. Raises: QueryRefused, for a number that JSON has no text for."""

    def end_rows(self, bytes_max: int) -> bool:
        """No more rows of this statement: whether all take no more than that."""


class RowValues:
    """Rows as values, in the process that asked."""

    def __init__(self, values: list[Sequence[Any]]) -> None:
        self._values = values
        self.rows = self._bytes = 0

    def add_row(self, row: Sequence[Any], bytes_max: int) -> bool:
        """See `RowStore`."""
        size = VALUE_BYTES * len(row)
        for value in row:
            kind = type(value)
            if kind is bytes:
                size += len(value)
            elif kind is str:
                size += len(value) if value.isascii() else len(value.encode())
            elif kind is float and not isfinite(value):
                refuse_infinity()
        self._values.append(row)
        self.rows, self._bytes = self.rows + 1, self._bytes + size
        return self._bytes <= bytes_max

    def end_rows(self, bytes_max: int) -> bool:
        """See `RowStore`."""
        return self._bytes <= bytes_max


def refuse_infinity() -> NoReturn:
    """Raises: QueryRefused."""
    raise QueryRefused("the result contains an infinity, which JSON cannot express")


def run_query(
    paths: Mapping[int, str],
    sql: str,
    params: QueryParameters,
    limits: QueryLimits,
    *,
    cancelled: Callable[[], bool] = lambda: False,
    store: RowStore | None = None,
) -> QueryResult:
    """Reads one partition after the other; the rows go into `store`, without one into the result.

    Raises: QueryRefused, QueryLimit; NotReady, when a partition cannot be read.
    """
    deadline = time.monotonic() + limits.timeout_s
    result = QueryResult([], [], {})
    store = store or RowValues(result.rows)
    for partition, path in paths.items():
        _wait_at_gate(partition, path, limits, deadline, cancelled)
        try:
            connection, guard = open_reader(path)
        except apsw.Error as error:
            raise NotReady(f"partition {partition} cannot be read at present: {error}") from None
        with contextlib.closing(connection):
            pinned = _Pinned(path, limits.wal_bytes_max)
            look = _StatementWatch(deadline, pinned, cancelled)
            connection.set_progress_handler(look, STEPS_BETWEEN_LOOKS)
            connection.limit(apsw.SQLITE_LIMIT_LENGTH, limits.bytes_max)
            connection.pragma("cache_size", -CACHE_KIBIBYTES)
            connection.pragma("temp_store", 2)  # memory, which has a limit; a temporary file would fill the disk
            try:
                _read_partition(connection, guard, partition, _Statement(sql, params, limits, store), result)
            except QueryRefused:  # ours, which is a ValueError, too
                raise
            except apsw.InterruptError:
                raise look.reason(limits) from None
            except (apsw.NoMemError, MemoryError):
                raise out_of_memory() from None
            except apsw.TooBigError:
                raise QueryLimit(f"a value has more than query_bytes_max={limits.bytes_max} bytes") from None
            except OF_THE_CALLER as error:
                raise QueryRefused(guard.denied or sqlite_text(error)) from None
            except apsw.Error as error:
                raise NotReady(f"partition {partition} cannot be read at present: {error}") from None
    return result


def _wait_at_gate(partition: int, path: str, limits: QueryLimits, deadline: float, cancelled: Callable[[], bool]) -> None:
    """Waits while earlier readers keep the site from emptying a long log. Raises: QueryLimit, NotReady."""
    while is_shut(path):
        if cancelled():
            raise QueryLimit("the query was cancelled")
        if time.monotonic() > deadline:
            raise NotReady(
                f"partition {partition} takes no query at present: earlier ones keep its SQLite WAL, "
                f"which is near wal_bytes_max={limits.wal_bytes_max}, from being emptied"
            )
        time.sleep(GATE_LOOK_S)


def out_of_memory() -> QueryLimit:
    """The error of a query whose process found no memory: its own limit, or one of the operating system."""
    limit = address_limit()
    return QueryLimit(
        "the query needs more memory than query_memory_bytes_max" + (f", or than its process may have: {limit}" if limit else "")
    )


class _StatementWatch:
    """SQLite's progress handler: whether the statement has to end, and why."""

    def __init__(self, deadline: float, pinned: _Pinned, cancelled: Callable[[], bool]) -> None:
        self._deadline, self._pinned, self._cancelled = deadline, pinned, cancelled

    def __call__(self) -> bool:
        return time.monotonic() > self._deadline or self._pinned.too_long() or self._cancelled()

    def reason(self, limits: QueryLimits) -> QueryLimit:
        if self._cancelled():
            return QueryLimit("the query was cancelled")
        if self._pinned.too_long():
            return QueryLimit(f"the site's log grew beyond wal_bytes_max={limits.wal_bytes_max} meanwhile")
        return QueryLimit(f"the query ran longer than query_timeout_s={limits.timeout_s:g}")


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


@dataclass(frozen=True, slots=True)
class _Statement:
    sql: str
    params: QueryParameters
    limits: QueryLimits
    store: RowStore


class _ExactColumns:
    """Beside the authorizer of one connection: how often a statement reads each exact column, while it is prepared.

    SQL sees the integers that stand for exact decimals. A query never shows or compares units as if they were the number: a plain
    result column is given as its digits (10.00). Wherever else such a column is read, SQL would work with units of its last
    decimal; so the text says so: `units(balance) > 1000`.
    """

    def __init__(self, connection: apsw.Connection, guard: Authorizer) -> None:
        self._guard = guard
        self._kinds = {
            (str(table), column): kind
            for (table,) in rows_of(connection, "SELECT name FROM sqlite_master WHERE type = 'table'")
            for column, kind in marked_numerics(connection, str(table)).items()
        }
        self._reads: Counter[tuple[str, str]] = Counter()
        self._asked = False  # units() was named last, so the column that is read next is its argument
        if self._kinds:
            connection.authorizer = self._count

    def _count(self, action: int, first: str | None, second: str | None, database: str | None, trigger: str | None) -> int:
        if action == apsw.SQLITE_READ and (first, second) in self._kinds and not self._asked:
            self._reads[first or "", second or ""] += 1
        self._asked = action == apsw.SQLITE_FUNCTION and second == UNITS
        return self._guard(action, first, second, database, trigger)

    def scales(self, cursor: apsw.Cursor, sql: str) -> dict[int, int]:
        """Position of each result column that is a plain exact column -> its decimals.

        Raises: ValueError when the statement reads such a column elsewhere without saying that units are meant.
        """
        if not self._reads:
            return {}
        found = {}
        plain: Counter[tuple[str, str]] = Counter()
        for position, (_, _, _, table, column) in enumerate(cursor.description_full):
            origin = (table or "", column or "")
            if origin in self._kinds:
                found[position] = self._kinds[origin][1]
                plain[origin] += 1
        if plain and COMPOUND.search(sql):  # SQLite names the origin of the first query's columns alone
            raise ValueError(
                f"a compound SELECT may not read {'.'.join(next(iter(plain)))}, an exact number; run its queries one by one"
            )
        if self._reads - plain:
            (table, column), _ = (self._reads - plain).most_common(1)[0]
            precision, scale = self._kinds[table, column]
            raise ValueError(
                f"{table}.{column} is a Numeric({precision}, {scale}), of which SQL sees units of 10^-{scale}: select it as a "
                f"plain column, or write {UNITS}({column}) where its units are meant, as in WHERE {UNITS}({column}) > {10**scale}"
            )
        return found


def _read_partition(
    connection: apsw.Connection, guard: Authorizer, partition: int, statement: _Statement, result: QueryResult
) -> None:
    """Adds a partition's rows, read in one transaction with its position."""
    with connection:
        result.as_of[partition] = connection.execute("SELECT txn_id FROM _cmdlog_meta").get
        exact = _ExactColumns(connection, guard)
        guard.mode = Mode.PROCEDURE
        try:
            result.columns[:] = _read(connection, statement, exact)
        finally:
            guard.mode = Mode.FRAMEWORK


def _read(connection: apsw.Connection, statement: _Statement, exact: _ExactColumns) -> list[str]:
    columns: list[str] = []
    scales: dict[int, int] = {}

    def note_statement(cursor: apsw.Cursor, text: str, _bindings: Any) -> bool:
        """Before each statement of the text runs."""
        if columns:
            raise QueryRefused("one SELECT at a time")
        _check_names(statement.params, cursor.bindings_names)
        columns.extend(str(entry[0]) for entry in cursor.get_description())
        if not columns or not cursor.is_readonly or cursor.is_explain:
            raise QueryRefused("only SELECT may run here")
        if ESCAPED_BYTES_MAX * sum(map(len, columns)) > limits.bytes_max:
            raise _too_long(limits)
        scales.update(exact.scales(cursor, text))
        return True

    limits, store = statement.limits, statement.store
    cursor = connection.cursor()
    cursor.exec_trace = note_statement
    # A statement in the cache was judged when it was prepared, perhaps for the framework.
    found = cursor.execute(statement.sql, _bound(statement.params), can_cache=False)  # up to the first row: columns are known
    rows_bytes_max = limits.bytes_max - ESCAPED_BYTES_MAX * sum(map(len, columns))
    for row in found:
        if store.rows >= limits.rows_max:
            raise QueryLimit(f"the result has more than query_rows_max={limits.rows_max} rows; add a LIMIT")
        if not store.add_row(_with_digits(row, scales) if scales else row, rows_bytes_max):
            raise _too_long(limits)
    if not store.end_rows(rows_bytes_max):
        raise _too_long(limits)
    return columns


def _too_long(limits: QueryLimits) -> QueryLimit:
    return QueryLimit(f"the result has more than query_bytes_max={limits.bytes_max} bytes; add a LIMIT, or read less")


class _NamedValues(dict[str, Any]):
    """Values by name, of which a statement needs each that it names."""

    def __missing__(self, name: str) -> NoReturn:
        raise QueryRefused(f"the statement has a parameter {name}, and params has no value for it")


def _bound(params: QueryParameters) -> Any:
    if isinstance(params, Mapping):
        return _NamedValues({name: stored_value(value) for name, value in params.items()})
    return tuple(map(stored_value, params))


def _check_names(params: QueryParameters, names: Sequence[str | None]) -> None:
    """Raises: QueryRefused for values by name that the statement does not name; APSW refuses what else does not fit."""
    if not isinstance(params, Mapping):
        return
    if unknown := sorted(params.keys() - set(names)):
        raise QueryRefused(f"the statement has no parameter {', '.join(unknown)}; it has {', '.join(map(str, names)) or 'none'}")


def _with_digits(row: Sequence[Any], scales: Mapping[int, int]) -> Sequence[Any]:
    return tuple(numeric_digits(value, scales[at]) if at in scales else value for at, value in enumerate(row))
