"""Numbers that SQLite gives new rows: one more than the largest, and never one that it would draw by chance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import apsw

from procedures.guard.authorizer import Authorizer, Mode
from procedures.guard.probe import AnyBindings
from procedures.results.changes import Inserted, Result
from procedures.statements.compiled import Compiled
from procedures.statements.prepared import Run
from procedures.storage.state import rows_of
from procedures.wire.scalar_codecs import INT_MAX

ROWS_NUMBERED_MAX = 1 << 32  # more than one statement adds; so that its own rows do not lead to the last number


@dataclass(frozen=True, slots=True)
class Numbered:
    """A change that may leave the number of a new row to SQLite."""

    table: str
    column: str
    parameter: int  # which bound value is the number, from 1; it is left to SQLite when that is NULL. 0: it may be always
    free_from: int  # no row may have this number or a larger one


def find_numbered(connection: apsw.Connection, guard: Authorizer, sql: str) -> Numbered | None:
    """Whether SQLite gives the new row of a change its INTEGER key, derived from the program into which it compiles the text."""
    before, guard.mode = guard.mode, Mode.FRAMEWORK
    try:
        program: list[tuple[Any, ...]] = connection.cursor().execute(f"EXPLAIN {sql}", AnyBindings(), can_cache=False).fetchall()
        roots = {first: second for _, code, first, second, *_ in program if code == "OpenWrite"}
        for at, (_, code, cursor, register, *_) in enumerate(program):
            if code == "NewRowid" and cursor in roots:  # others belong to tables that live as long as the statement
                return _numbered(connection, program, at, roots[cursor], register)
    except UnicodeDecodeError:  # of a constant in the program; such a text gives its keys itself
        return None
    finally:
        guard.mode = before
    return None


def _numbered(connection: apsw.Connection, program: list[tuple[Any, ...]], at: int, root: int, register: int) -> Numbered | None:
    asked = "SELECT m.name, c.name FROM sqlite_master AS m, pragma_table_info(m.name) AS c WHERE m.rootpage = ? AND c.pk = 1"
    table, column = rows_of(connection, asked, (root,))[0]
    if program[at - 1][1:3] != ("NotNull", register):
        return Numbered(table, column, 0, INT_MAX - ROWS_NUMBERED_MAX)
    sources = [(code, first) for _, code, first, second, *_ in program[:at] if second == register and code in _SOURCES]
    if len(sources) != 1:  # several rows, or a number that is computed: most of them state it, and may do so up to the end
        return Numbered(table, column, 0, INT_MAX)
    code, first = sources[0]
    return Numbered(table, column, first, INT_MAX) if code == "Variable" else None


_SOURCES = ("Variable", "Integer", "Int64")  # instructions that fill a register with one value


def numbering_run(cursor: apsw.Cursor, run: Run, numbered: Numbered, compiled: Compiled, names: tuple[str, ...]) -> Run:
    """For a change that leaves the number to SQLite: one more than the largest. After the last one it would draw by chance."""
    execute, table = cursor.execute, numbered.table
    asked = f'SELECT 1 FROM "{table}" WHERE "{numbered.column}" >= {numbered.free_from} LIMIT 1'  # noqa: S608 - names that the schema holds
    name = names[numbered.parameter - 1] if numbered.parameter else ""
    key, constant = compiled.keys.get(name, name), compiled.constants.get(name)

    last_number = cursor.connection.last_insert_rowid

    def run_numbered(params: dict[str, Any]) -> Result:
        if name and params.get(key, constant) is not None:
            return run(params)
        if execute(asked).fetchall():
            raise apsw.ConstraintError(
                f"table {table}: a row has {numbered.free_from} or more, so numbers (up to {INT_MAX}) run out; give one"
            )
        result = run(params)
        return result.with_number(last_number()) if isinstance(result, Inserted) and result.rowcount else result

    return run_numbered
