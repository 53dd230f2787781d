"""Tables of an application: the rules that make them replayable, and their DDL.

Rules, checked when a table is declared: a primary key that is never NULL (the session extension sees no other rows), of
one INTEGER column or in a WITHOUT ROWID table (a hidden rowid would leak into results), no AUTOINCREMENT, no default
taken from clock or chance, no conflict clause that ends the whole batch. The rules for single types,
defaults and arguments are in `column_types`, `column_defaults` and `column_options`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Column, Integer, Table
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.schema import CreateColumn, CreateIndex, CreateTable

from procedures.declaration.columns.column_options import check_options
from procedures.declaration.dialect import DIALECT
from procedures.errors import DefinitionError, StatementRefused
from procedures.numeric.columns import check_texts
from procedures.storage.authorizer import is_internal

TABLE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}", re.ASCII)
_BREAK = re.compile(r"""('(?:[^']|'')*'|"(?:[^"]|"")*")|[ \t]*\n[ \t]*""")


def check_table(table: Table, *, partition_by: str | None = None) -> None:
    """Refuses a table that cannot be replayed or digested.

    Raises:
        DefinitionError: naming table and column, and what to write instead.
    """
    name = table.name
    if not TABLE_NAME.fullmatch(name) or name.lower().startswith(("sqlite_", "cmdlog_")):
        raise DefinitionError(f"table {name!r}: a name is letters, digits and _, at most 63, and not sqlite_… or cmdlog_…")
    if is_internal(name):
        raise DefinitionError(f"table {name!r}: SQLite has one of this name, which no statement may read; choose another name")
    if not table.primary_key.columns:
        raise DefinitionError(f"table {name!r} needs a primary key: without one, digests cannot distinguish its rows")
    for column in table.columns:
        try:
            _check_column(column)
        except DefinitionError as error:
            raise DefinitionError(f"column {name}.{column.name}: {error}") from None
    check_options(table, partition_by)
    create_indexes(table)
    if re.search(r"\bROLLBACK\b", create_table(table).upper()):
        raise DefinitionError(f"table {name!r}: ON CONFLICT ROLLBACK would end the whole batch; use ABORT")


def _check_column(column: Column[Any]) -> None:
    if column.primary_key and column.nullable:
        raise DefinitionError("a primary key is NOT NULL")
    if column.computed is not None and not column.computed.persisted:
        raise DefinitionError("a generated column must be stored: Computed(..., persisted=True)")


def _has_rowid_key(table: Table) -> bool:
    columns = list(table.primary_key.columns)
    return len(columns) == 1 and isinstance(columns[0].type, Integer)


def create_table(table: Table, *, columns: Sequence[Column[Any]] | None = None) -> str:
    """CREATE TABLE … STRICT, WITHOUT ROWID unless its key is one INTEGER column. `columns`: some of its own, in this order."""
    check_texts(table)
    create = CreateTable(table)
    if columns is not None:
        create.columns = [CreateColumn(column) for column in columns]
    try:
        text = str(create.compile(dialect=DIALECT))
    except (SQLAlchemyError, StatementRefused, TypeError) as error:
        raise DefinitionError(f"table {table.name!r}: {error}") from None
    return f"{_one_line(text)} {'STRICT' if _has_rowid_key(table) else 'STRICT, WITHOUT ROWID'}"


def column_definition(column: Column[Any]) -> str:
    """The column as `create_table` writes it."""
    return _one_line(str(CreateColumn(column).compile(dialect=DIALECT)))


def _one_line(text: str) -> str:
    """Without the line breaks that SQLAlchemy writes; one in a quoted text belongs to it."""
    return _BREAK.sub(lambda found: found[1] or " ", text).strip()


def create_statements(tables: Iterable[Table]) -> list[str]:
    """DDL of all tables in the order of their declaration, each followed by its indexes by name."""
    statements = []
    for table in tables:
        statements.append(create_table(table))
        statements += create_indexes(table).values()
    return statements


def create_indexes(table: Table) -> dict[str, str]:
    """Name → CREATE INDEX. Raises: DefinitionError."""
    check_texts(table)  # an index may have been added to a table that was declared before
    try:
        return {
            str(index.name): str(CreateIndex(index).compile(dialect=DIALECT)).strip()
            for index in sorted(table.indexes, key=lambda index: str(index.name))
        }
    except (SQLAlchemyError, StatementRefused, TypeError) as error:
        raise DefinitionError(f"an index of table {table.name!r}: {error}") from None
