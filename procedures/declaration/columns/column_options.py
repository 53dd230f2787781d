"""What a table declares beside its types: arguments of columns, constraints and indexes, and which of them have an effect here.

One rule: what SQLite, or SQLAlchemy for it, would silently leave out is refused with a sentence. Notes for readers (`comment`,
`doc`, `info`) stay with the declaration.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    CheckConstraint,
    Column,
    Enum,
    ForeignKeyConstraint,
    Integer,
    PrimaryKeyConstraint,
    Table,
    TypeDecorator,
    UniqueConstraint,
)
from sqlalchemy.exc import SQLAlchemyError

from procedures.declaration.columns.column_defaults import check_defaults
from procedures.declaration.columns.column_types import check_type
from procedures.declaration.columns.option_effects import check_effects
from procedures.errors import DefinitionError

_CONSTRAINTS = (PrimaryKeyConstraint, UniqueConstraint, CheckConstraint, ForeignKeyConstraint)


def check_options(table: Table, partition_by: str | None) -> None:
    """Raises: DefinitionError for what would be accepted and then ignored, or fail at the first row."""
    for column in table.columns:
        try:
            check_type(column.type)
            stored: Any = column.type.impl_instance if isinstance(column.type, TypeDecorator) else column.type
            if isinstance(stored, Enum):
                stored.validate_strings = True  # or a text that is no member is stored, and fails the call that reads it
            _check_arguments(column)
            check_defaults(column, routes=column.name == partition_by)
        except DefinitionError as error:
            raise DefinitionError(f"column {table.name}.{column.name}: {error}") from None
    for constraint in table.constraints:
        _check_constraint(table, constraint)
    for index in table.indexes:
        _check_dialects(f"index {index.name!r}", index)
    _check_dialects(f"table {table.name!r}", table)
    if table.dialect_kwargs:
        raise DefinitionError(f"table {table.name!r}: {next(iter(table.dialect_kwargs))}: cmdlog chooses how a table is stored")
    check_effects(table, partition_by)


def _check_arguments(column: Column[Any]) -> None:
    if column.key != column.name:
        raise DefinitionError(f"key={column.key!r}: a column has one name; use label() in the statement")
    if column.system:
        raise DefinitionError("system=True: SQLite has no system columns")
    if column.server_onupdate is not None and column.computed is None:
        raise DefinitionError("server_onupdate: nothing in SQLite sets it; write onupdate=lambda tx: …")
    numbered = list(column.table.primary_key.columns) == [column] and isinstance(column.type, Integer)
    if column.autoincrement is False and numbered:
        raise DefinitionError("autoincrement=False: SQLite numbers a single Integer key that is left out; leave the argument out")
    if column.autoincrement is True and not numbered:
        raise DefinitionError("autoincrement=True: only a single Integer key is numbered; give the value")
    _check_dialects("the column", column)
    for key in column.foreign_keys:
        _check_dialects("its foreign key", key)


def _check_dialects(what: str, item: Any) -> None:
    for name in item.dialect_kwargs:
        if not name.startswith("sqlite_"):
            raise DefinitionError(f"{what}: {name} is of another database and would have no effect; leave it out")


def _check_constraint(table: Table, constraint: Any) -> None:
    kind = type(constraint).__name__
    if not isinstance(constraint, _CONSTRAINTS):
        raise DefinitionError(f"table {table.name!r}: SQLite has no {kind}; check it in the procedure")
    if constraint.deferrable or constraint.initially:
        raise DefinitionError(f"table {table.name!r}: a deferrable constraint would fail at the end of a batch, not in its call")
    _check_dialects(f"table {table.name!r}", constraint)
    if isinstance(constraint, ForeignKeyConstraint):
        if constraint.match:
            raise DefinitionError(f"table {table.name!r}: SQLite ignores MATCH {constraint.match}; leave match= out")
        _check_target(table, constraint)


def _check_target(table: Table, constraint: ForeignKeyConstraint) -> None:
    try:
        target = constraint.referred_table
    except SQLAlchemyError as error:
        raise DefinitionError(f"table {table.name!r}: {error}; declare the table that it refers to first") from None
    if target.metadata is not table.metadata:
        raise DefinitionError(f"table {table.name!r}: its foreign key refers to {target.name!r}, a table of another database")
