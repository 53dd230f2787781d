"""The authorizer: what SQLite may compile while a procedure's statement is being prepared.

SQLite asks it once per statement, at prepare, and again when a schema change makes it prepare again. Three modes: the
framework's own statements pass; a procedure's may read and change rows of user tables and call functions from an
allow-list; a schema record may create, alter and drop user tables and indexes. Of the tables that SQLite has by itself, two are
allowed.

The allow-list holds functions whose result depends on their arguments alone, on every machine: no clock, no chance, no
connection history (`changes`, `last_insert_rowid`), no libm beyond what IEEE 754 fixes.

A procedure cannot reach a framework statement in APSW's statement cache: each of its texts is prepared again under the
authorizer before it may run (`statements.probe`).
"""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Any, Final

import apsw

from procedures.errors import StatementRefused
from procedures.numeric.functions import NAMES as _NUMERIC

NEW_TABLE: Final = "_cmdlog_new_"  # and the name of the table that a migration writes again
TABLE_FUNCTIONS: Final = frozenset(("json_each", "json_tree"))
"""Tables of SQLite itself that a statement may read: a new version of SQLite adds none to them."""
NAMES_KEPT: Final = 4096  # a name costs 60 us the first time
_CLOCK = "the clock differs between replicas and replays: use tx.now"
_CHANCE = "chance differs between replicas and replays: use tx.random, or tx.uuid()"
_LIBM = "its last digits differ between machines: use integers, or Numeric columns"
_CONNECTION = "it depends on the connection's history: use the result of tx.execute, or RETURNING"
_NAMES_BY_ALTERNATIVE = {
    _CLOCK: "current_date current_time current_timestamp date datetime julianday now strftime time timediff unixepoch",
    _CHANCE: "gen_random_uuid random randomblob uuid",
    _LIBM: "acos acosh asin asinh atan atan2 atanh cos cosh degrees exp ln log log10 log2 pi pow power radians sin sinh tan tanh",
    _CONNECTION: "changes last_insert_rowid total_changes",
    "procedures load no extension: compute it in Python": "load_extension",
}
_ALTERNATIVES = {name: alternative for alternative, names in _NAMES_BY_ALTERNATIVE.items() for name in names.split()}
_SCALARS = """abs ceil ceiling char coalesce concat concat_ws floor format glob hex if ifnull iif instr length like
    likelihood likely lower ltrim max min mod nullif octet_length printf quote replace round rtrim sign sqrt substr substring
    trim trunc typeof unhex unicode unistr unlikely upper zeroblob"""
_AGGREGATES = """avg count cume_dist dense_rank first_value group_concat lag last_value lead median nth_value ntile
    percent_rank percentile percentile_cont percentile_disc rank row_number string_agg sum total"""
_JSON = """-> ->> json json_array json_array_insert json_array_length json_error_position json_extract json_group_array
    json_group_object json_insert json_object json_patch json_pretty json_quote json_remove json_replace json_set json_type
    json_valid"""
FUNCTIONS: Final = frozenset(f"{_SCALARS} {_AGGREGATES} {_JSON}".split()) | _NUMERIC
"""SQL functions that a procedure's statement may call."""
_DDL = frozenset(
    (
        apsw.SQLITE_CREATE_TABLE,
        apsw.SQLITE_CREATE_INDEX,
        apsw.SQLITE_DROP_TABLE,
        apsw.SQLITE_DROP_INDEX,
        apsw.SQLITE_ALTER_TABLE,
        apsw.SQLITE_REINDEX,
    )
)
_OF_ALTER_TABLE = frozenset(  # SQLite's own, which run inside it and cannot be called
    f"sqlite_{name}" for name in ("rename_table", "rename_column", "rename_test", "rename_quotefix", "drop_column", "fail")
)
_CHANGES = frozenset((apsw.SQLITE_INSERT, apsw.SQLITE_UPDATE, apsw.SQLITE_DELETE))
_ACTIONS: dict[int | str, int | str] = apsw.mapping_authorizer_function  # code -> name, and back


class Mode(Enum):
    """The owner of the statement that is being prepared."""

    FRAMEWORK = 0
    PROCEDURE = 1
    SCHEMA = 2


@dataclass(slots=True)
class TablesSeen:
    """Tables that the statements prepared since `Authorizer.watch` read and change."""

    reads: set[str] = field(default_factory=set)
    changes: set[str] = field(default_factory=set)
    columns: set[tuple[str, str]] = field(default_factory=set)  # (table, column) that are read or set; an INSERT names none


def _action(code: int) -> str:
    return str(_ACTIONS.get(code, code)).removeprefix("SQLITE_")


def alternative_to(function: str) -> str:
    """What a procedure does instead of calling an SQL function that is not allowed; "" where nothing better is known."""
    return _ALTERNATIVES.get(function.lower(), "")


def is_internal(table: str) -> bool:
    """Tables of the framework, which no procedure sees, and all of SQLite but those that are listed."""
    name = table.lower()
    return name not in TABLE_FUNCTIONS and (name.startswith(("sqlite_", "_cmdlog_")) or _is_built_in(name))


@lru_cache(maxsize=NAMES_KEPT)
def _is_built_in(table: str) -> bool:
    """Whether an empty database has such a table. SQLite registers most of them when they are first named, so it is asked.

    One that wants arguments is found, too: its columns are read before SQLite misses them.
    """
    asked: set[int] = set()

    def note_action(action: int, *_: object) -> int:
        asked.add(action)
        return apsw.SQLITE_OK

    with closing(apsw.Connection(":memory:")) as empty:
        empty.authorizer = note_action
        name = table.replace('"', '""')
        with suppress(apsw.SQLError):
            empty.execute(f'EXPLAIN SELECT * FROM "{name}"')  # noqa: S608 - the name is quoted
    return apsw.SQLITE_READ in asked


def _is_ours(table: str) -> bool:
    """Whether a schema record may not touch it; the new form of a table under way is the application's."""
    return table.lower().startswith("_cmdlog_") and not table.startswith(NEW_TABLE)


class Authorizer:
    """One connection's authorizer; `mode` is switched by the code that owns the connection."""

    __slots__ = ("denied", "mode", "seen")

    def __init__(self) -> None:
        self.mode = Mode.FRAMEWORK
        self.denied: str | None = None  # why the last statement was refused
        self.seen: TablesSeen | None = None

    def __call__(self, action: int, first: str | None, second: str | None, database: str | None, trigger: str | None) -> int:
        if self.mode is Mode.FRAMEWORK:
            return apsw.SQLITE_OK
        if self.mode is Mode.SCHEMA and action == apsw.SQLITE_PRAGMA and first == "quick_check":
            return apsw.SQLITE_IGNORE  # ADD COLUMN would read all rows, for a default that its declaration checks
        self.denied = self._judge(action, first or "", second or "", database)
        return apsw.SQLITE_OK if self.denied is None else apsw.SQLITE_DENY

    def _judge(self, action: int, first: str, second: str, database: str | None) -> str | None:
        """Why the action is denied; None if it is allowed."""
        if action in (apsw.SQLITE_SELECT, apsw.SQLITE_RECURSIVE):
            return None
        if action == apsw.SQLITE_FUNCTION:
            known = second.lower() in FUNCTIONS or (self.mode is Mode.SCHEMA and second.lower() in _OF_ALTER_TABLE)
            return None if known else f"function {second} does not depend on its arguments alone"
        if self.mode is Mode.SCHEMA:
            return self._judge_schema(action, first, second)
        if action == apsw.SQLITE_READ:
            return self._judge_table(first, second, "reads", database)
        if action in _CHANGES:
            return self._judge_table(first, second, "changes", database)
        return f"{_action(action)} is not for procedures"

    def _judge_table(self, table: str, column: str, verb: str, database: str | None) -> str | None:
        if is_internal(table):
            return f"table {table} is not for procedures"
        if database not in (None, "main"):
            return f"schema {database} is not for procedures"
        if self.seen is not None and table not in TABLE_FUNCTIONS:
            (self.seen.reads if verb == "reads" else self.seen.changes).add(table)
            self.seen.columns.add((table, column))
        return None

    def _judge_schema(self, action: int, first: str, second: str) -> str | None:
        if action in _DDL:
            named = second if action == apsw.SQLITE_ALTER_TABLE else first
            return f"table {named} is not for applications" if _is_ours(named) else None
        if action in _CHANGES or action in (apsw.SQLITE_READ, apsw.SQLITE_TRANSACTION):
            # SQLite's own bookkeeping in sqlite_master is part of every schema statement.
            internal = _is_ours(first) or action == apsw.SQLITE_TRANSACTION
            return f"{first} is not for applications" if internal else None
        return f"{_action(action)} is not for schema records"

    def watch(self) -> TablesSeen:
        """Starts to note tables; `seen = None` ends it."""
        self.seen = TablesSeen()
        return self.seen


@dataclass(frozen=True, slots=True)
class Probe:
    """What SQLite says about a text without running it."""

    columns: tuple[str, ...]
    parameters: tuple[str, ...]  # in the order of binding
    readonly: bool
    seen: TablesSeen


def probe(connection: apsw.Connection, guard: Authorizer, sql: str) -> Probe:
    """Prepares a text under the authorizer and looks at it; nothing runs.

    It is prepared again, past APSW's cache: a text that the framework has run itself is judged like any other.

    Raises:
        StatementRefused: the authorizer denies it.
        apsw.SQLError: SQLite cannot compile it.
    """
    found: dict[str, Any] = {}

    def inspect_statement(cursor: apsw.Cursor, _sql: str, _bindings: object) -> bool:
        found["columns"] = tuple(column[0] for column in cursor.get_description())
        found["parameters"] = cursor.bindings_names
        found["readonly"] = cursor.is_readonly
        return False

    cursor = connection.cursor()
    cursor.exec_trace = inspect_statement
    before, guard.mode = guard.mode, Mode.PROCEDURE
    seen = guard.watch()
    try:
        cursor.execute(sql, AnyBindings(), can_cache=False)
    except apsw.ExecTraceAbort:
        pass
    except apsw.AuthError:
        raise StatementRefused(f"{guard.denied}: {sql}") from None
    finally:
        guard.mode = before
        guard.seen = None
        cursor.close()
    return Probe(found["columns"], tuple(name or "" for name in found["parameters"]), found["readonly"], seen)


class AnyBindings(dict[str, None]):
    """Bindings for a statement that will not run: every name is there."""

    def __missing__(self, _name: str) -> None:
        return None
