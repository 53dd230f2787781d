"""SQLAlchemy statements, compiled once and then run on APSW directly.

`compile_statement` is pure: SQLAlchemy → SQL text, names of its parameters, conversions where a column type needs them.
`Runs` binds the compiled forms to one connection: a dict from statement to a closure that runs it. A procedure's hot path
is that one lookup; what can be decided once (order of parameters, row type, which tables it touches) is decided when a
statement is met first.

Measured here, three statements a call: 9.4 us a call for a bare cursor loop, 55 us through SQLAlchemy's own execution.
Parameters are bound by position (`itemgetter` over the keyword arguments): a tenth faster than by name.
"""

from __future__ import annotations

import re
from collections import namedtuple
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import apsw
from sqlalchemy import Select, TextClause
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.sql import ClauseElement
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.dml import UpdateBase
from sqlalchemy.sql.selectable import CompoundSelect

from procedures.declaration.columns.column_defaults import Make, values_left_out
from procedures.declaration.dialect import DIALECT, Processor, StateDialect, bind_processor_of, result_processor_of
from procedures.declaration.procedure import Access
from procedures.declaration.scalar_codecs import INT_MAX
from procedures.errors import StatementRefused
from procedures.execution.rows import SHARED, WRITTEN, Result, Rows, Written
from procedures.numeric.compiler import ExactCompiler
from procedures.numeric.numeric_types import ScaledNumeric
from procedures.numeric.raw_text import holds_own_sql
from procedures.numeric.shapes import NumericRefused
from procedures.storage.authorizer import Authorizer, Mode, TablesSeen
from procedures.storage.state import rows_of

if TYPE_CHECKING:
    from procedures.declaration.database import Database
    from procedures.execution.context import CallState, Transaction

ROWS_NUMBERED_MAX = 1 << 32  # more than one statement adds; so that its own rows do not lead to the last number
STATEMENTS_MAX = 4096  # per procedure class; code that builds statements per call must not eat the memory
VERBS = ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH", "VALUES", "REPLACE")
_QUOTED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|\[[^\]]*\]|--[^\n]*|/\*.*?\*/", re.DOTALL)

Run = Callable[[dict[str, Any]], Result]


@dataclass(frozen=True, slots=True)
class Compiled:
    """A statement as SQLite gets it."""

    sql: str
    constants: dict[str, Any]  # rendered name -> value that the statement itself holds
    keys: dict[str, str]  # rendered name -> keyword under which the caller gives it
    required: frozenset[str]  # keywords without a value of their own
    binds: dict[str, Processor]  # rendered name -> conversion, only where one is needed
    results: tuple[Processor, ...]  # per column; () when none converts
    expand: SQLCompiler | None  # a list inside IN (…): the text depends on its length
    raw_text: bool  # parts of it are SQL text
    tables: tuple[Any, ...]  # SQLAlchemy tables that it names; under the exact dialect alone
    made: tuple[tuple[str, Make], ...] = ()  # keyword -> function of the transaction, for a column that the statement leaves out


def compile_statement(statement: object, dialect: StateDialect = DIALECT) -> Compiled:
    """SQL text of a SQLAlchemy Core statement, as the dialect of its database has it.

    Raises:
        StatementRefused: it is no statement, or does what no procedure may do.
    """
    if not isinstance(statement, ClauseElement):
        raise StatementRefused(
            f"tx.execute takes a SQLAlchemy statement, not {type(statement).__name__}; wrap SQL text in sqlalchemy.text(…)"
        )
    if getattr(statement, "_with_options", ()):
        raise StatementRefused("options() is for a Session, which there is none of; select the columns that you want")
    try:
        own_sql = dialect is DIALECT and holds_own_sql(statement)
        compiled = statement.compile(dialect=dialect)
    except NumericRefused as error:
        raise StatementRefused(str(error)) from None
    except SQLAlchemyError as error:
        raise StatementRefused(f"SQLAlchemy cannot compile the statement: {error}") from None
    if not isinstance(compiled, SQLCompiler):
        raise StatementRefused("schema statements are not for procedures; declare tables with Database.table")
    check_text(compiled.string)
    exact: Any = compiled if isinstance(compiled, ExactCompiler) else None
    if compiled.literal_execute_params:
        raise StatementRefused("literal_execute is not for procedures; every value is bound")
    filled, made = values_left_out(compiled)
    keys = {name: parameter.key if parameter.required else name for parameter, name in compiled.bind_names.items()}
    constants = {
        name: filled.get(name, parameter.effective_value)
        for parameter, name in compiled.bind_names.items()
        if not parameter.required and parameter not in compiled.post_compile_params
    }
    return Compiled(
        sql=compiled.string,
        constants=constants,
        keys=keys,
        required=frozenset(parameter.key for parameter in compiled.bind_names if parameter.required),
        binds={
            name: processor
            for parameter, name in compiled.bind_names.items()
            if (processor := bind_processor_of(parameter.type, dialect)) is not None
        },
        results=_result_processors(compiled, dialect),
        expand=compiled if compiled.post_compile_params else None,
        raw_text=exact is not None and (own_sql or exact.raw_text),
        tables=() if exact is None else tuple(exact.tables),
        made=made,
    )


def _result_processors(compiled: SQLCompiler, dialect: StateDialect) -> tuple[Processor, ...]:
    columns = compiled._result_columns  # noqa: SLF001 - the only place where SQLAlchemy states the types of a result
    processors = tuple(result_processor_of(column.type, dialect) for column in columns)
    return processors if any(processors) else ()


def check_text(sql: str) -> None:
    """Refuses what the authorizer cannot see or sees too late.

    Raises:
        StatementRefused: another verb than reading and changing rows, several statements, or OR ROLLBACK.
    """
    bare = _QUOTED.sub(" ", sql).strip()
    verb = bare.split(None, 1)[0].upper() if bare else ""
    if verb.split("(")[0] not in VERBS:
        raise StatementRefused(f"{verb or 'an empty text'} is not for procedures; they read and change rows")
    if ";" in bare:
        raise StatementRefused("one statement at a time, without a semicolon")
    if re.search(r"\bOR\s+ROLLBACK\b", bare, re.IGNORECASE):
        raise StatementRefused("OR ROLLBACK would end the whole batch; use OR ABORT, or tx.abort")


def is_statement(value: object) -> bool:
    """Whether a module-level value is a statement to run (and not a table, a column or a clause)."""
    return isinstance(value, Select | CompoundSelect | UpdateBase | TextClause)


def sql_of(statement: object, dialect: StateDialect = DIALECT) -> str:
    """The text of a statement as a bundle records it."""
    return compile_statement(statement, dialect).sql


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
        cursor.execute(sql, _Anything(), can_cache=False)
    except apsw.ExecTraceAbort:
        pass
    except apsw.AuthError:
        raise StatementRefused(f"{guard.denied}: {sql}") from None
    finally:
        guard.mode = before
        guard.seen = None
        cursor.close()
    return Probe(found["columns"], tuple(name or "" for name in found["parameters"]), found["readonly"], seen)


class _Anything(dict[str, None]):
    """Bindings for a statement that will not run: every name is there."""

    def __missing__(self, _name: str) -> None:
        return None


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
        program: list[tuple[Any, ...]] = connection.cursor().execute(f"EXPLAIN {sql}", _Anything(), can_cache=False).fetchall()
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


class Runs(dict[object, Run]):
    """Statement → closure that runs it on one connection, for the procedures of one database with one kind of access.

    `runs[statement]` is the whole hot path; a statement met for the first time is compiled, checked and probed.
    """

    def __init__(self, database: Database, access: Access, cursor: apsw.Cursor, guard: Authorizer, state: CallState) -> None:
        super().__init__()
        self._database = database
        self._access = access
        self._cursor = cursor
        self._guard = guard
        self._state = state
        self.tx: Transaction | None = None  # the one that runs statements now

    def __missing__(self, statement: object) -> Run:
        compiled = compile_statement(statement, self._database.dialect)
        run = self._run(compiled, compiled.sql) if compiled.expand is None else self._expanding(compiled)
        run = self._making(run, compiled.made) if compiled.made else run
        if len(self) >= STATEMENTS_MAX:
            self.clear()
        self[statement] = run
        return run

    def _making(self, run: Run, made: tuple[tuple[str, Make], ...]) -> Run:
        """For columns whose default is a function: called once for each execution, in the order of the columns."""

        def run_making(params: dict[str, Any]) -> Result:
            tx = self.tx
            return run({name: make(tx) for name, make in made if name not in params} | params)

        return run_making

    def _run(self, compiled: Compiled, sql: str) -> Run:
        facts = probe(self._cursor.connection, self._guard, sql)
        self._check_tables(facts)
        if compiled.raw_text or any(not self._is_declared(table) for table in compiled.tables):
            self._check_raw_text(facts)
        if facts.columns:
            run = _reading(self._cursor, compiled, sql, facts.parameters, _rows_class(facts.columns))
            if facts.readonly:
                return run
            run = _marking(run, self._state)
        else:
            run = _writing(self._cursor, compiled, sql, facts.parameters, self._state)
        numbered = find_numbered(self._cursor.connection, self._guard, sql)
        return run if numbered is None else _numbering(self._cursor, run, numbered, compiled, facts.parameters)

    def _check_tables(self, facts: Probe) -> None:
        """Holds the statement to what its procedure may touch; see `Access`."""
        tables = self._database.tables
        if unknown := sorted((facts.seen.reads | facts.seen.changes) - tables.keys()):
            raise StatementRefused(f"table {unknown[0]} is not declared in database {self._database.name!r}")
        if self._access is Access.READ and not facts.readonly:
            raise StatementRefused("a read_only procedure changes nothing; drop read_only=True")
        changed = sorted(name for name in facts.seen.changes if tables[name].replicated)
        if changed and self._access in (Access.SINGLE, Access.EACH):
            raise StatementRefused(
                f"table {changed[0]} is replicated: only a procedure with partition_by=None changes it, on all partitions"
            )
        local = sorted(name for name in facts.seen.reads | facts.seen.changes if not tables[name].replicated)
        if local and self._access is Access.EVERYWHERE:
            raise StatementRefused(
                f"table {local[0]} is partitioned: a writing procedure with partition_by=None touches replicated tables "
                "alone, because its partitions would decide differently; partition_by=EACH lets each write rows of its own"
            )

    def _is_declared(self, table: Any) -> bool:
        known = self._database.tables.get(table.name)
        return known is not None and known.table is table._deannotate()  # noqa: SLF001 - as statements on classes name it

    def _check_raw_text(self, facts: Probe) -> None:
        """SQL text, and a table that is not the declared one, would see the integers that stand for exact numbers."""
        for table in sorted(facts.seen.reads | facts.seen.changes):
            exact = {c.name: c.type for c in self._database.tables[table].table.columns if isinstance(c.type, ScaledNumeric)}
            inserted = (table, "") in facts.seen.columns and table in facts.seen.changes and not facts.readonly
            for name, type_ in exact.items():
                if (table, name) in facts.seen.columns or inserted:
                    raise StatementRefused(
                        f"the statement has parts in SQL text, or not of the declared tables, and uses {table}.{name}, a "
                        f"{type_}, of which SQLite holds units of 10^-{type_.scale}; write those parts as SQLAlchemy "
                        f"expressions of db.tables[{table!r}].table"
                    )

    def _expanding(self, compiled: Compiled) -> Run:
        """A list inside IN (…): text by its length, each prepared once."""
        expand = compiled.expand
        if expand is None:
            raise AssertionError("only called for statements with lists")
        by_text: dict[str, Run] = {}

        def run(params: dict[str, Any]) -> Result:
            _check_names(compiled, params)
            state = expand.construct_expanded_state(params)
            text = state.statement
            found = by_text.get(text)
            if found is None:
                names = {name: name for name in state.parameters}
                plain = Compiled(
                    text, {}, names, frozenset(names), {}, compiled.results, None, compiled.raw_text, compiled.tables
                )
                found = by_text[text] = self._run(plain, text)
                if len(by_text) > 64:
                    by_text.pop(next(iter(by_text)))
            values = dict(state.parameters)
            for name, processor in {**compiled.binds, **state.processors}.items():  # the latter are of the lists alone
                if name in values and processor is not None:
                    values[name] = processor(values[name])
            return found(values)

        return run


Pick = Callable[[dict[str, Any]], Any]


def _misfit(compiled: Compiled, params: Mapping[str, Any]) -> TypeError:
    """Names the keyword arguments that are missing or unknown."""
    known = set(compiled.keys.values())
    if missing := sorted(compiled.required - params.keys()):
        return TypeError(f"the statement needs a value for {', '.join(missing)}")
    unknown = ", ".join(sorted(params.keys() - known))
    return TypeError(f"the statement has no parameter {unknown}; it has {', '.join(sorted(known)) or 'none'}")


def _check_names(compiled: Compiled, params: Mapping[str, Any]) -> None:
    if compiled.required - params.keys() or params.keys() - set(compiled.keys.values()):
        raise _misfit(compiled, params)


def _pick(names: tuple[str, ...], compiled: Compiled) -> tuple[Pick, int]:
    """How values come out of the keyword arguments in the order in which SQLite numbers the parameters.

    Returns:
        (pick, count): with a count, `pick` is bare and raises KeyError; the caller checks `len(params) == count` first. A
        count of -1 says that `pick` checks and converts by itself.
    """
    if compiled.constants or compiled.binds or any(compiled.keys.get(name) != name for name in names):
        return _converting_pick(names, compiled), -1
    if not names:
        return (lambda params: ()), 0
    if len(names) == 1:
        (only,) = names
        return (lambda params: (params[only],)), 1
    return itemgetter(*names), len(names)


def _converting_pick(names: tuple[str, ...], compiled: Compiled) -> Pick:
    slots = tuple((name, compiled.keys.get(name, name), compiled.binds.get(name)) for name in names)
    constants = compiled.constants

    def pick(params: dict[str, Any]) -> tuple[Any, ...]:
        _check_names(compiled, params)
        values = []
        for name, key, processor in slots:
            value = params[key] if key in params else constants[name]
            values.append(value if processor is None else processor(value))
        return tuple(values)

    return pick


def _rows_class(columns: tuple[str, ...]) -> type[Rows]:
    row_type = namedtuple("Row", columns, rename=True)  # type: ignore[misc] # the names are known at run time
    return type("Rows", (Rows,), {"__slots__": (), "row_type": row_type})


def _writing(cursor: apsw.Cursor, compiled: Compiled, sql: str, names: tuple[str, ...], state: CallState) -> Run:
    execute, changes = cursor.execute, cursor.connection.changes
    pick, count = _pick(names, compiled)

    def run(params: dict[str, Any]) -> Result:
        if len(params) != count and count >= 0:
            raise _misfit(compiled, params)
        try:
            values = pick(params)
        except KeyError:
            raise _misfit(compiled, params) from None
        state.wrote = state.at  # before it runs: OR FAIL may leave half a change behind
        execute(sql, values)
        rows = changes()
        return WRITTEN[rows] if rows < SHARED else Written(rows)

    return run


# `_writing` and `_reading` repeat their first lines: a shared function would cost a frame in every statement of every call.


def _reading(cursor: apsw.Cursor, compiled: Compiled, sql: str, names: tuple[str, ...], rows: type[Rows]) -> Run:
    execute, processors = cursor.execute, compiled.results
    pick, count = _pick(names, compiled)

    def run(params: dict[str, Any]) -> Result:
        if len(params) != count and count >= 0:
            raise _misfit(compiled, params)
        try:
            values = pick(params)
        except KeyError:
            raise _misfit(compiled, params) from None
        return rows(execute(sql, values))

    def run_converting(params: dict[str, Any]) -> Result:
        found = list.__iter__(run(params))  # type: ignore[arg-type] # it is Rows
        return rows(
            tuple(value if process is None else process(value) for process, value in zip(processors, row, strict=True))
            for row in found
        )

    return run_converting if processors else run


def _numbering(cursor: apsw.Cursor, run: Run, numbered: Numbered, compiled: Compiled, names: tuple[str, ...]) -> Run:
    """For a change that leaves the number to SQLite: one more than the largest. After the last one it would draw by chance."""
    execute, table = cursor.execute, numbered.table
    asked = f'SELECT 1 FROM "{table}" WHERE "{numbered.column}" >= {numbered.free_from} LIMIT 1'  # noqa: S608 - names that the schema holds
    name = names[numbered.parameter - 1] if numbered.parameter else ""
    key, constant = compiled.keys.get(name, name), compiled.constants.get(name)

    def run_numbered(params: dict[str, Any]) -> Result:
        if (not name or params.get(key, constant) is None) and execute(asked).fetchall():
            raise apsw.ConstraintError(
                f"table {table}: a row has {numbered.free_from} or more, so numbers (up to {INT_MAX}) run out; give one"
            )
        return run(params)

    return run_numbered


def _marking(fetch: Run, state: CallState) -> Run:
    """For INSERT … RETURNING and its like."""

    def run(params: dict[str, Any]) -> Result:
        state.wrote = state.at
        return fetch(params)

    return run
