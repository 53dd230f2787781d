"""What a table declares beside its types: arguments of columns, constraints and indexes, and which of them have an effect here.

One rule: what SQLite, or SQLAlchemy for it, or a state without a Session, would silently leave out is refused with a sentence.
An option that is accepted has an effect, or is a note for readers (`comment`, `doc`, `info`, the name of an Enum), or says what
holds anyway (`native_uuid=False`).
"""

from __future__ import annotations

from typing import Any, Final

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
    types,
)
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.sql.base import NO_ARG
from sqlalchemy.sql.ddl import ExecutableDDLElement

from procedures.declaration.columns.column_defaults import check_defaults
from procedures.declaration.columns.column_types import check_type
from procedures.declaration.dialect import DIALECT
from procedures.errors import DefinitionError

_CONSTRAINTS = (PrimaryKeyConstraint, UniqueConstraint, CheckConstraint, ForeignKeyConstraint)
_CONFLICTS: Final = ("ABORT", "FAIL", "IGNORE", "REPLACE", "ROLLBACK")  # the last one is refused with a reason of its own
_RESERVED: Final = ("sqlite_", "_cmdlog_")


def check_options(table: Table, partition_by: str | None) -> None:
    """Raises: DefinitionError for what would be accepted and then ignored, or fail at the first row."""
    # By column, then the table and what is made beside it; the first that has no effect is named with where it is.
    for column in table.columns:
        try:
            check_type(column.type)
            _check_arguments(column)
            check_defaults(column, routes=column.name == partition_by)
            _check_effects(column)
            _check_type(column.type, table)
        except DefinitionError as error:
            raise DefinitionError(f"column {table.name}.{column.name}: {error}") from None
    try:
        for constraint in table.constraints:
            _check_constraint(table, constraint)
        _check_indexes(table)
        _check_dialects("", table)
        for name in table.dialect_kwargs:
            raise DefinitionError(f"{name}: cmdlog chooses how a table is stored")
        if table.schema is not None:
            raise DefinitionError(f"schema={table.schema!r}: a state has one schema; leave it out")
        for event in ("before_create", "after_create", "before_drop", "after_drop"):
            if any(isinstance(listener, ExecutableDDLElement) for listener in getattr(table.dispatch, event)):
                raise DefinitionError(f"DDL at {event}: the log states how a table is made, and nothing listens; leave it out")
    except DefinitionError as error:
        raise DefinitionError(f"table {table.name!r}: {error}") from None
    kind = None if partition_by is None else table.columns[partition_by].type
    if isinstance(kind, types.Float | types.JSON):
        raise DefinitionError(
            f"table {table.name!r} cannot be partitioned by {partition_by}: no call is routed by a {kind!r}; partition by an "
            "Integer or a String"
        )


def _check_arguments(column: Column[Any]) -> None:
    if column.key != column.name:
        raise DefinitionError(f"key={column.key!r}: a column has one name; use label() in the statement")
    if column.system:
        raise DefinitionError("system=True: SQLite has no system columns")
    if column.server_onupdate is not None and column.computed is None:
        raise DefinitionError("server_onupdate: nothing in SQLite sets it; write onupdate=lambda tx: …")
    numbered = _is_numbered(column)
    if column.autoincrement is False and numbered:
        raise DefinitionError("autoincrement=False: SQLite numbers a single Integer key that is left out; leave the argument out")
    if column.autoincrement is True and not numbered:
        raise DefinitionError("autoincrement=True: only a single Integer key is numbered; give the value")
    _check_dialects("the column: ", column)
    for key in column.foreign_keys:
        _check_dialects("its foreign key: ", key)
        _check_conflicts(key, ())


def _is_numbered(column: Column[Any]) -> bool:
    return list(column.table.primary_key.columns) == [column] and isinstance(column.type, Integer)


def _check_effects(column: Column[Any]) -> None:
    if any(sign < " " for sign in column.name):
        raise DefinitionError("a name has no control characters, such as a line break")
    if column._insert_sentinel:  # noqa: SLF001 - nothing else says so
        raise DefinitionError("insert_sentinel: it is for a Session, which there is none of; leave it out")
    numbered = _is_numbered(column)
    if column.autoincrement == "ignore_fk" and not numbered:
        raise DefinitionError("autoincrement='ignore_fk': only a single Integer key is numbered; give the value")
    if column.computed is not None and (column.default is not None or column.onupdate is not None):
        raise DefinitionError("a generated column has its expression's value; leave default and onupdate out")
    written = {
        "on_conflict_primary_key": list(column.table.primary_key.columns) == [column],
        "on_conflict_not_null": not column.nullable and not numbered,
        "on_conflict_unique": any(
            isinstance(constraint, UniqueConstraint) and list(constraint.columns) == [column]
            for constraint in column.table.constraints
        ),
    }
    _check_conflicts(column, [name for name, is_written in written.items() if is_written])
    if str(column.dialect_options["sqlite"]["on_conflict_not_null"]).upper() == "REPLACE" and column.server_default is None:
        raise DefinitionError("sqlite_on_conflict_not_null='REPLACE' puts the server_default in; declare one")


def _check_dialects(what: str, item: Any) -> None:
    for name in item.dialect_kwargs:
        if not name.startswith("sqlite_"):
            raise DefinitionError(f"{what}{name} is of another database and would have no effect; leave it out")


def _check_conflicts(item: Any, effective: Any) -> None:
    """`effective`: the options of the item that SQLite looks at."""
    for given, value in item.dialect_kwargs.items():
        option = given.removeprefix("sqlite_")
        if value is None or not option.startswith("on_conflict"):
            continue
        if option not in effective:
            raise DefinitionError(f"{given}: SQLite would not look at it here; leave it out")
        if str(value).upper() not in _CONFLICTS:
            raise DefinitionError(f"{given}={value!r}: one of ABORT, FAIL, IGNORE and REPLACE")


def _check_type(type_: Any, table: Table) -> None:
    if isinstance(type_, TypeDecorator) and not isinstance(type_, types.Interval):
        _check_decorator(type_)
        type_ = type_.impl_instance
    if isinstance(type_, types.String | types.LargeBinary) and not isinstance(type_, Enum):
        _check_length(type_)
    if isinstance(type_, types.VARBINARY) and type_.length is not None:
        raise DefinitionError(f"VARBINARY({type_.length}): its length is not judged; declare LargeBinary(n)")
    if isinstance(type_, types.NumericCommon) and type_.decimal_return_scale is not None:
        raise DefinitionError("decimal_return_scale: a value comes back with the decimals that it has; leave it out")
    if isinstance(type_, types.Boolean) and type_.name is not None and not type_.create_constraint:
        raise DefinitionError("Boolean(name=…) names a CHECK; write create_constraint=True as well, or leave the name out")
    if not isinstance(type_, types.JSON) and type_.should_evaluate_none:
        raise DefinitionError("evaluates_none() is for a Session, which there is none of; leave it out")
    if isinstance(type_, Enum):
        type_.validate_strings = True  # or a text that is no member is stored, and fails the call that reads it
        _check_enum(type_, table)


def _check_decorator(type_: TypeDecorator[Any]) -> None:
    inner: Any = type_.impl_instance
    dialect: Any = DIALECT  # its `type_descriptor` has no annotations
    chosen = repr(type_.load_dialect_impl(dialect))
    if chosen not in (repr(inner), repr(dialect.type_descriptor(inner))):
        raise DefinitionError(f"{type(type_).__name__}: load_dialect_impl chooses {chosen} for SQLite; write it as impl")


def _check_length(type_: Any) -> None:
    if type_.length is not None and (type(type_.length) is not int or type_.length < 1):
        raise DefinitionError(f"{type(type_).__name__}({type_.length!r}): a length is a whole number from 1")


def _check_enum(type_: Any, table: Table) -> None:
    if not type_.enums:
        raise DefinitionError("Enum() has no members; name them, or their class")
    if type_.length != type_._default_length:  # noqa: SLF001 - nothing else says whether it was given
        raise DefinitionError(f"Enum(length={type_.length}): only its members fit; leave length out")
    given = {
        "schema": type_.schema is not None,
        "metadata": type_.metadata is not None and type_.metadata is not table.metadata,  # a column gives it that
        "inherit_schema": type_._inherit_schema is True,  # noqa: SLF001 - reading the public one warns
        "create_type": not type_.create_type,
        "quote": getattr(type_.name, "quote", None) is not None,
        "sort_key_function": type_._sort_key_function is not NO_ARG,  # noqa: SLF001 - nothing else says so
    }
    for name, is_given in given.items():
        if is_given:
            raise DefinitionError(f"Enum({name}=…): SQLite stores its texts and has no type of its name; leave {name} out")


def _check_constraint(table: Table, constraint: Any) -> None:
    if not isinstance(constraint, _CONSTRAINTS):
        raise DefinitionError(f"SQLite has no {type(constraint).__name__}; check it in the procedure")
    if constraint.deferrable or constraint.initially:
        raise DefinitionError("a deferrable constraint would fail at the end of a batch, not in its call")
    _check_dialects("", constraint)
    if isinstance(constraint, CheckConstraint) and constraint.dialect_kwargs.get("sqlite_on_conflict") is not None:
        raise DefinitionError("sqlite_on_conflict of a CHECK: SQLite always aborts; leave it out")
    follows = isinstance(constraint, PrimaryKeyConstraint | UniqueConstraint)
    _check_conflicts(constraint, ("on_conflict",) if follows else ())
    if isinstance(constraint, UniqueConstraint) and not list(constraint.columns):
        raise DefinitionError("UniqueConstraint() has no columns; name them")
    if isinstance(constraint, ForeignKeyConstraint):
        _check_reference(table, constraint)


def _check_reference(table: Table, constraint: ForeignKeyConstraint) -> None:
    if constraint.match:
        raise DefinitionError(f"SQLite ignores MATCH {constraint.match}; leave match= out")
    try:
        target = constraint.referred_table
    except SQLAlchemyError as error:
        raise DefinitionError(f"{error}; declare the table that it refers to first") from None
    if target.metadata is not table.metadata:
        raise DefinitionError(f"its foreign key refers to {target.name!r}, a table of another database")
    if constraint.use_alter:
        raise DefinitionError("use_alter: SQLite adds no constraint later; declare the other table first, and leave it out")
    if any(key.link_to_name for key in constraint.elements):
        raise DefinitionError("link_to_name: a column has one name; leave it out")
    kind = DIALECT.type_compiler_instance.process
    for key in constraint.elements:
        ends = kind(key.parent.type), kind(key.column.type)
        if ends[0] != ends[1]:
            raise DefinitionError(
                f"its foreign key {key.parent.name} is stored as {ends[0]}, and {key.target_fullname} as {ends[1]}; "
                "give both the same type"
            )


def _check_indexes(table: Table) -> None:
    """SQLite has one set of names for all tables and indexes of a state."""
    known = {other.name.lower() for other in table.metadata.tables.values()}
    known |= {
        str(index.name).lower() for other in table.metadata.tables.values() if other is not table for index in other.indexes
    }
    for index in sorted(table.indexes, key=lambda index: str(index.name)):
        name = str(index.name)
        _check_dialects(f"index {name!r}: ", index)
        if name.lower().startswith(_RESERVED):
            raise DefinitionError(f"index {name!r}: names with {_RESERVED[0]} and {_RESERVED[1]} are not for applications")
        if name.lower() in known:
            raise DefinitionError(f"index {name!r}: there is a table or an index of that name; give it another")
        known.add(name.lower())
