"""Tables of an application: the rules that make them replayable, their DDL, and the way from an older set of tables.

Rules, checked when a table is declared: a primary key that is never NULL (the session extension sees no other rows), of
one INTEGER column or in a WITHOUT ROWID table (a hidden rowid would leak into results), no AUTOINCREMENT, no default
taken from clock or chance, no conflict clause that ends the whole batch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import CheckConstraint, Column, ColumnClause, DefaultClause, ForeignKeyConstraint, Integer, Table, TextClause, UniqueConstraint, text
from sqlalchemy.exc import CompileError
from sqlalchemy.schema import CreateColumn, CreateIndex, CreateTable
from sqlalchemy.sql.visitors import replacement_traverse

from procedures.declaration.dialect import DIALECT, StateDialect
from procedures.declaration.numeric_types import ScaledNumeric, TextNumeric, declared_numeric, is_exact
from procedures.errors import DefinitionError, SchemaConflict

TABLE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}", re.ASCII)
_CONSTANT = re.compile(r"\(?\s*(?:[+-]?[0-9]+(?:\.[0-9]+)?|'(?:[^']|'')*'|NULL|TRUE|FALSE)\s*\)?", re.ASCII | re.IGNORECASE)
_INTEGERS = (Integer,)


def set_stored_types(table: Table, partition_by: str | None, *, as_text: bool) -> None:
    """Gives every Numeric column the type by which it is stored: an exact integer, or digits as text.

    Raises:
        DefinitionError: a Numeric without an exact form, and text about it whose numbers would not be its units.
    """
    exact = {}
    for column in table.columns:
        if not is_exact(column.type) or isinstance(column.type, TextNumeric):
            continue
        if as_text:
            column.type = TextNumeric(column.type.precision, column.type.scale)
            continue
        try:
            column.type = exact[column.name] = declared_numeric(column.type)
            _scale_default(column)
        except (DefinitionError, TypeError, ValueError) as error:
            raise DefinitionError(f"column {table.name}.{column.name}: {error}") from None
        if column.name == partition_by:
            raise DefinitionError(
                f"table {table.name!r} cannot be partitioned by {column.name}, a Numeric: calls are routed by the text of a value, "
                "and 5 and 5.00 are two; partition by an Integer or a String"
            )
    if exact:
        _name_columns(table)
        _check_texts(table, exact)


def _name_columns(table: Table) -> None:
    """`column("balance")` in a CHECK or a generated column is the column of that name, with its type."""

    def named(element: Any, **_: Any) -> Any:
        is_name = isinstance(element, ColumnClause) and element.table is None and not element.is_literal
        return table.columns[element.name] if is_name and element.name in table.columns else None

    for constraint in table.constraints:
        if isinstance(constraint, CheckConstraint):
            constraint.sqltext = replacement_traverse(constraint.sqltext, {}, named)
    for column in table.columns:
        if column.computed is not None:
            column.computed.sqltext = replacement_traverse(column.computed.sqltext, {}, named)


def _scale_default(column: Column[Any]) -> None:
    """A server default as units of the column's last decimal."""
    if isinstance(column.server_default, DefaultClause):
        given = column.server_default.arg
        written = str(given.text if isinstance(given, TextClause) else getattr(given, "value", given)).strip().strip("'")
        if written.upper() != "NULL":
            to_literal = column.type.literal_processor(DIALECT)
            column.server_default = DefaultClause(text(str(to_literal and to_literal(written))))


def _check_texts(table: Table, exact: Mapping[str, ScaledNumeric]) -> None:
    texts = [c.sqltext for c in table.constraints if isinstance(c, CheckConstraint)]
    texts += [column.computed.sqltext for column in table.columns if column.computed is not None]
    texts += [expression for index in table.indexes for expression in index.expressions if isinstance(expression, TextClause)]
    for clause in texts:
        if not isinstance(clause, TextClause):
            continue
        bare = _SIGN_CHECK.sub(" ", clause.text)
        for name, type_ in exact.items():
            if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", bare, re.IGNORECASE):
                raise DefinitionError(
                    f"table {table.name!r}: the text <{clause.text}> uses {name}, a {type_}, of which SQLite holds units of "
                    f"10^-{type_.scale}; as text it can be compared with 0 alone: write CheckConstraint(column({name!r}) <= Decimal(…))"
                )


_SIGN_CHECK = re.compile(r"\"?\b[A-Za-z_]\w*\"?\s*(?:<=|>=|<>|!=|<|>|=)\s*0(?:\.0*)?(?![\w.])", re.ASCII)
"""A comparison with zero, which is zero in any units."""


def check_table(table: Table, dialect: StateDialect = DIALECT) -> None:
    """Refuses a table that cannot be replayed or digested.

    Raises:
        DefinitionError: naming table and column, and what to write instead.
    """
    name = table.name
    if not TABLE_NAME.fullmatch(name) or name.lower().startswith(("sqlite_", "cmdlog_")):
        raise DefinitionError(f"table {name!r}: a name is letters, digits and _, at most 63, and not sqlite_… or cmdlog_…")
    if not table.primary_key.columns:
        raise DefinitionError(f"table {name!r} needs a primary key: without one, digests cannot distinguish its rows")
    for column in table.columns:
        try:
            _check_column(column)
        except DefinitionError as error:
            raise DefinitionError(f"column {name}.{column.name}: {error}") from None
    for constraint in table.constraints:
        if isinstance(constraint, ForeignKeyConstraint | UniqueConstraint) and constraint.deferrable:
            raise DefinitionError(f"table {name!r}: a deferrable constraint would fail at the end of a batch, not in its call")
    if re.search(r"\bROLLBACK\b", create_table(table, dialect).upper()):
        raise DefinitionError(f"table {name!r}: ON CONFLICT ROLLBACK would end the whole batch; use ABORT")


def _check_column(column: Column[Any]) -> None:
    if column.primary_key and column.nullable:
        raise DefinitionError("a primary key is NOT NULL")
    if column.default is not None or column.onupdate is not None:
        raise DefinitionError("Python-side defaults do not run here; pass the value, or use a constant server_default")
    if column.computed is not None:
        if not column.computed.persisted:
            raise DefinitionError("a generated column must be stored: Computed(..., persisted=True)")
        return
    if column.server_onupdate is not None or column.identity is not None:
        raise DefinitionError("no server_onupdate and no Identity: numbers must come from parameters, tx or rows")
    if column.server_default is not None and not _CONSTANT.fullmatch(_default_text(column)):
        raise DefinitionError("server_default must be a constant: a number or a quoted text")


def _default_text(column: Column[Any]) -> str:
    compiler: Any = CreateColumn(column).compile(dialect=DIALECT)
    return str(compiler.get_column_default_string(column)).strip()


def _has_rowid_key(table: Table) -> bool:
    columns = list(table.primary_key.columns)
    return len(columns) == 1 and isinstance(columns[0].type, _INTEGERS)


def create_table(table: Table, dialect: StateDialect = DIALECT) -> str:
    """CREATE TABLE … STRICT, WITHOUT ROWID unless its key is one INTEGER column."""
    try:
        text = str(CreateTable(table).compile(dialect=dialect))
    except (CompileError, TypeError) as error:
        raise DefinitionError(f"table {table.name!r}: {error}") from None
    body = re.sub(r"[ \t]*\n[ \t]*", " ", text).strip()
    return f"{body} {'STRICT' if _has_rowid_key(table) else 'STRICT, WITHOUT ROWID'}"


def create_statements(tables: Iterable[Table], dialect: StateDialect = DIALECT) -> list[str]:
    """DDL of all tables in the order of their declaration, each followed by its indexes by name."""
    statements = []
    for table in tables:
        statements.append(create_table(table, dialect))
        statements += create_indexes(table, dialect).values()
    return statements


def create_indexes(table: Table, dialect: StateDialect = DIALECT) -> dict[str, str]:
    return {
        str(index.name): str(CreateIndex(index).compile(dialect=dialect)).strip()
        for index in sorted(table.indexes, key=lambda index: str(index.name))
    }


def plan_schema(existing: Mapping[str, str], tables: Iterable[Table], dialect: StateDialect = DIALECT) -> list[str]:
    """Statements that lead from the tables of a state to those of an application; [] when they agree.

    New tables and indexes are created, dropped ones stay (their rows may be wanted back), nothing else is guessed.

    Args:
        existing: name → CREATE statement of the state's tables and indexes (`PartitionState.schema`).

    Raises:
        SchemaConflict: a table that exists is declared differently.
    """
    statements = []
    for table in tables:
        wanted = create_table(table, dialect)
        found = existing.get(table.name)
        if found is None:
            statements.append(wanted)
        elif found != wanted:
            _check_numeric_form(table, found)
            raise SchemaConflict(
                f"table {table.name!r} differs from the state's: state has <{found}>, application has <{wanted}>; "
                "declare a new table and copy the rows in a procedure, or go back to the old declaration"
            )
        for name, statement in create_indexes(table, dialect).items():
            if name not in existing:
                statements.append(statement)
            elif existing[name] != statement:
                raise SchemaConflict(f"index {name!r} differs from the state's: <{existing[name]}> and <{statement}>")
    return statements


def _check_numeric_form(table: Table, found: str) -> None:
    """A table of a state in which every Numeric is text."""
    for column in table.columns:
        if isinstance(column.type, ScaledNumeric) and re.search(rf'[(,]\s*"?{re.escape(column.name)}"? TEXT', found):
            raise SchemaConflict(
                f"table {table.name!r}: the state holds {column.name} as text, as cmdlog stored every Numeric before it was exact. To "
                f"keep the table, declare the column {_as_text(column.type)} (from cmdlog import TextNumeric): it can be read and "
                f"written, not compared. To move, declare a new table with {column.type} and copy the rows in a procedure"
            )


def _as_text(type_: ScaledNumeric) -> str:
    return f"TextNumeric({type_.precision}, {type_.scale})"
