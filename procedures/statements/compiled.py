"""SQLAlchemy statements as SQLite gets them.

`compile_statement` is pure: SQLAlchemy → SQL text, names of its parameters, conversions where a column type needs them. What runs
it is in `statement_runs`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Boolean, ColumnElement, Insert, Integer, Select, TextClause, Update
from sqlalchemy.dialects.sqlite.dml import OnConflictDoUpdate
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.sql import ClauseElement, visitors
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.dml import UpdateBase
from sqlalchemy.sql.elements import BindParameter
from sqlalchemy.sql.selectable import CompoundSelect
from sqlalchemy.sql.sqltypes import NullType

from procedures.declaration.columns.column_defaults import Make, values_left_out
from procedures.declaration.dialect import DIALECT, Processor, bind_processor_of, result_processor_of
from procedures.declaration.grouped_operands import is_condition
from procedures.errors import StatementRefused
from procedures.numeric.compiler import ExactCompiler
from procedures.numeric.raw_text import holds_own_sql
from procedures.numeric.shapes import NumericRefused

VERBS = ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH", "VALUES", "REPLACE")
_QUOTED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|\[[^\]]*\]|--[^\n]*|/\*.*?\*/", re.DOTALL)


@dataclass(frozen=True, slots=True)
class InsertedKey:
    """Where the key of the one row that an INSERT adds comes from."""

    names: tuple[str, ...]
    values: tuple[tuple[str | None, Any], ...]  # keyword that gives it, and the value without that keyword
    numbered: int  # which of them is a number that SQLite may give; -1: none


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
    tables: tuple[Any, ...]  # SQLAlchemy tables that it names
    own_sql: bool  # it has parts whose SQL the application writes
    literals: Mapping[str, BindParameter[Any]]  # keyword -> where its value stands in the statement
    places: Mapping[Any, int]  # column of the statement -> which one of the result it is
    inserted: InsertedKey | None  # of an INSERT of one row
    made: tuple[tuple[str, Make], ...]  # keyword -> function of the transaction, for a column that the statement leaves out

    def expanded(self, sql: str, names: Iterable[str]) -> Compiled:
        """The text for lists of certain lengths: every value is given, and converted before."""
        keys = {name: name for name in names}
        return replace(
            self, sql=sql, constants={}, keys=keys, required=frozenset(keys), binds={}, expand=None, inserted=None, made=()
        )


def compile_statement(statement: object, *, column_keys: Sequence[str] | None = None) -> Compiled:
    """SQL text of a SQLAlchemy Core statement.

    Args:
        column_keys: columns that an INSERT or UPDATE sets from parameters of their names; None: all, if it names none itself.

    Raises:
        StatementRefused: it is no statement, or does what no procedure may do.
    """
    compiled, own_sql = _checked(statement, column_keys)
    filled, made = values_left_out(compiled)
    rendered = {name: compiled.escaped_bind_names.get(name, name) for name in compiled.bind_names.values()}
    keys = {rendered[name]: parameter.key if parameter.required else name for parameter, name in compiled.bind_names.items()}
    constants = {
        rendered[name]: filled.get(name, parameter.effective_value)
        for parameter, name in compiled.bind_names.items()
        if not parameter.required and parameter not in compiled.post_compile_params
    }
    added = {*filled, *(name for name, _ in made)}
    literals = {
        name: parameter for parameter, name in compiled.bind_names.items() if not parameter.required and name not in added
    }
    return Compiled(
        sql=compiled.string,
        constants=constants,
        keys=keys,
        required=frozenset(parameter.key for parameter in compiled.bind_names if parameter.required),
        binds={
            rendered[name]: processor
            for parameter, name in compiled.bind_names.items()
            if (processor := bind_processor_of(parameter.type)) is not None
        },
        results=_result_processors(compiled),
        expand=compiled if compiled.post_compile_params else None,
        raw_text=own_sql or compiled.raw_text,
        tables=tuple(compiled.tables),
        own_sql=own_sql,
        literals=literals,
        places=_places(compiled),
        inserted=_inserted_key(compiled.statement, compiled, rendered, keys, constants),
        made=made,
    )


def _checked(statement: object, column_keys: Sequence[str] | None) -> tuple[ExactCompiler, bool]:
    """The statement as SQLAlchemy compiles it, and whether parts of it are SQL that the application writes."""
    if not isinstance(statement, ClauseElement):
        raise StatementRefused(
            f"tx.execute takes a SQLAlchemy statement, not {type(statement).__name__}; wrap SQL text in sqlalchemy.text(…)"
        )
    if getattr(statement, "_with_options", ()):
        raise StatementRefused("options() has no effect: there is no Session; select the columns that you want")
    try:
        own_sql = holds_own_sql(statement)
        compiled = _compile(statement, column_keys)
    except NumericRefused as error:
        raise StatementRefused(str(error)) from None
    except SQLAlchemyError as error:
        raise StatementRefused(f"SQLAlchemy cannot compile the statement: {error}") from None
    if not isinstance(compiled, ExactCompiler):
        raise StatementRefused("schema statements are not for procedures; declare tables with Database.table")
    check_text(compiled.string)
    if compiled.literal_execute_params:
        raise StatementRefused("literal_execute is not for procedures; every value is bound")
    return compiled, own_sql


def _compile(statement: ClauseElement, column_keys: Sequence[str] | None) -> Any:
    if column_keys is None:
        column_keys = _columns_of_plain_change(statement)
    if column_keys is None:
        return statement.compile(dialect=DIALECT)
    # Nothing is read back for the columns that are left out, unless the statement says RETURNING itself.
    executemany = not getattr(statement, "_returning", ())
    return statement.compile(dialect=DIALECT, column_keys=column_keys, for_executemany=executemany)


def _columns_of_plain_change(statement: Any) -> list[str] | None:
    """All columns of a bare INSERT or UPDATE but the generated ones, which SQLAlchemy would set; None: it names its own."""
    if not isinstance(statement, Insert | Update) or not any(
        getattr(column, "computed", None) is not None for column in statement.table.columns
    ):
        return None
    named = statement._values or statement._multi_values or getattr(statement, "select", None) is not None  # noqa: SLF001 - what it sets
    return None if named else [column.key for column in statement.table.columns if column.computed is None]


def _places(compiled: SQLCompiler) -> dict[Any, int]:
    places: dict[Any, int] = {}
    for place, column in enumerate(compiled._result_columns):  # noqa: SLF001 - as in `_result_processors`
        for meant in column.objects:
            if isinstance(meant, ColumnElement):
                places.setdefault(meant, place)
    return places


def _inserted_key(
    statement: object, compiled: SQLCompiler, rendered: Mapping[str, str], keys: Mapping[str, str], constants: Mapping[str, Any]
) -> InsertedKey | None:
    state: Any = compiled.compile_state
    if not isinstance(statement, Insert) or statement.select is not None or state._has_multi_parameters:  # noqa: SLF001 - what VALUES holds
        return None
    given = state._dict_parameters or {}  # noqa: SLF001 - as above
    names = {parameter.key: rendered[name] for parameter, name in compiled.bind_names.items()}
    columns: list[Any] = list(statement.table.primary_key)
    values: list[tuple[str | None, Any]] = []
    for column in columns:
        value = given.get(column, given.get(column.key))
        name = names.get(value.key if isinstance(value, BindParameter) else column.key) if _is_bound(value) else None
        values.append((None, None) if name is None else (keys[name], constants.get(name)))
    # Of a row that a conflict updates SQLite would name the number of an earlier INSERT.
    elsewhere = any(isinstance(part, OnConflictDoUpdate) and not _keeps_key(part, columns) for part in _post_values(statement))
    if elsewhere:
        values = [(None, None)] * len(columns)
    may_be_numbered = len(columns) == 1 and isinstance(columns[0].type, Integer) and not elsewhere
    return InsertedKey(tuple(column.key for column in columns), tuple(values), 0 if may_be_numbered else -1)


def _post_values(statement: Insert) -> Iterable[Any]:
    clause = statement._post_values_clause  # noqa: SLF001 - as above
    return () if clause is None else visitors.iterate(clause)


def _keeps_key(conflict: OnConflictDoUpdate, key: list[Any]) -> bool:
    """Whether the row that a conflict updates is the one with the key that the INSERT gives."""
    names = {column.key for column in key}
    target = {getattr(element, "key", element) for element in conflict.inferred_target_elements or ()}
    changed = {getattr(column, "key", column) for column in conflict.update_values_to_set}
    return target == names and not changed & names


def _is_bound(value: Any) -> bool:
    return value is None or isinstance(value, BindParameter)


def _result_processors(compiled: SQLCompiler) -> tuple[Processor, ...]:
    columns = compiled._result_columns  # noqa: SLF001 - the only place where SQLAlchemy states the types of a result
    processors = tuple(result_processor_of(_type_of(column)) for column in columns)
    return processors if any(processors) else ()


def _type_of(column: Any) -> Any:
    """That of a column of the result; SQLAlchemy gives some conditions none."""
    if isinstance(column.type, NullType) and any(map(is_condition, column.objects)):
        return Boolean()
    return column.type


def check_text(sql: str) -> None:
    """Refuses what the authorizer cannot see or sees too late.

    Raises:
        StatementRefused: another verb than reading and changing rows, several statements, or OR ROLLBACK.
    """
    bare = _QUOTED.sub(" ", sql).strip()
    verb = bare.split(None, 1)[0].upper() if bare else ""
    if verb.startswith("("):
        raise StatementRefused("SQLite takes no parentheses around the parts of a UNION; write select(part.subquery())")
    if verb.split("(")[0] not in VERBS:
        raise StatementRefused(f"{verb or 'an empty text'} is not for procedures; they read and change rows")
    if ";" in bare:
        raise StatementRefused("one statement at a time, without a semicolon")
    if re.search(r"\bOR\s+ROLLBACK\b", bare, re.IGNORECASE):
        raise StatementRefused("OR ROLLBACK would end the whole batch; use OR ABORT, or tx.abort")


def is_statement(value: object) -> bool:
    """Whether a module-level value is a statement to run (and not a table, a column or a clause)."""
    return isinstance(value, Select | CompoundSelect | UpdateBase | TextClause)


def sql_of(statement: object) -> str:
    """The text of a statement as a bundle records it."""
    return compile_statement(statement).sql
