"""Values that a row gets where a statement leaves a column out: `default`, `onupdate`, `server_default`, `Identity`.

One rule: a replay must get the same value. So a constant is one that its column stores, a function takes the
transaction (`default=lambda tx: tx.now`), an expression depends on its arguments alone, an Identity follows the largest number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import apsw
from sqlalchemy import Column, Identity, Integer, select
from sqlalchemy.schema import CreateColumn
from sqlalchemy.sql import schema as sqlalchemy_schema
from sqlalchemy.sql import visitors
from sqlalchemy.sql.functions import next_value

from procedures.declaration.columns.column_types import limit_of
from procedures.declaration.columns.held_values import value_check
from procedures.declaration.dialect import DIALECT, bind_processor_of
from procedures.errors import DefinitionError, StatementRefused
from procedures.numeric.columns import with_columns
from procedures.numeric.numeric_types import ScaledNumeric
from procedures.storage.authorizer import FUNCTIONS

if TYPE_CHECKING:
    from sqlalchemy.sql.compiler import SQLCompiler

Make = Callable[[Any], Any]  # transaction -> value

_NO_SEQUENCES: Final = "SQLite has no sequences; an INTEGER primary key numbers its rows, see Identity()"
_CONSTANT: Final = re.compile(
    r"\(?\s*(?:[+-]?[0-9]+(?:\.[0-9]+)?|'(?:[^']|'')*'|NULL|TRUE|FALSE)\s*\)?", re.ASCII | re.IGNORECASE
)


def default_text(column: Column[Any]) -> str:
    """The server default as DDL has it."""
    compiler: Any = CreateColumn(column).compile(dialect=DIALECT)
    return str(compiler.get_column_default_string(column)).strip()


def check_constant(column: Column[Any]) -> None:
    """Raises: DefinitionError for a server default that is no number or quoted text."""
    if column.server_default is not None and not _CONSTANT.fullmatch(default_text(column)):
        raise DefinitionError("server_default must be a constant: a number or a quoted text; for others write default=")


def check_defaults(column: Column[Any], *, routes: bool) -> None:
    """Checks everything that gives the column a value by itself; `routes`: rows are partitioned by it.

    Raises: DefinitionError, saying what to write instead.
    """
    for name, default in (("default", column.default), ("onupdate", column.onupdate)):
        if default is not None:
            if routes:
                raise DefinitionError(f"{name}: rows are partitioned by this column, so the caller gives its value")
            _check_default(column, name, default)
    if column.identity is not None:
        _check_identity(column, column.identity, routes=routes)
    elif column.server_default is not None and column.computed is None:
        if isinstance(getattr(column.server_default, "arg", None), next_value):
            raise DefinitionError(f"server_default: {_NO_SEQUENCES}")
        check_constant(column)
        _check_stored(column)


def _check_default(column: Column[Any], name: str, default: Any) -> None:
    if default.is_sequence:
        raise DefinitionError(f"{name}: {_NO_SEQUENCES}")
    if default.is_callable:
        code = getattr(default.arg, "__code__", None)
        if (
            code is not None and code.co_filename == sqlalchemy_schema.__file__
        ):  # SQLAlchemy's wrapper of a function without arguments
            raise DefinitionError(
                f"{name}={getattr(default.arg, '__name__', '…')} takes no argument, so a replay would get another value; "
                f"write a function of the transaction: {name}=lambda tx: tx.now (or tx.uuid(), [], …)"
            )
    elif default.is_clause_element:
        default.arg = with_columns(default.arg, column.table)
        _check_expression(column, name, default.arg)
    else:
        _check_scalar(column, f"{name}={default.arg!r}", default.arg)


def _check_expression(column: Column[Any], name: str, expression: Any) -> None:
    for element in visitors.iterate(expression):
        called = str(getattr(element, "name", "")).lower()
        if element.__visit_name__ == "sequence" or isinstance(element, next_value):
            raise DefinitionError(f"{name}: {_NO_SEQUENCES}")
        if element.__visit_name__ == "function" and called not in FUNCTIONS:
            raise DefinitionError(f"{name}: {called}() does not depend on its arguments alone; write {name}=lambda tx: tx.now")
    try:
        compiled: Any = select(expression).compile(dialect=DIALECT)
    except StatementRefused as error:
        raise DefinitionError(f"{name}: {error}") from None
    if compiled.raw_text and any(isinstance(other.type, ScaledNumeric) for other in column.table.columns):
        raise DefinitionError(f"{name}: SQL text may not be exact in a table with a Numeric; write column('…') + 1, func.…")
    if isinstance(column.type, ScaledNumeric):
        raise DefinitionError(f"{name}: an expression for {column.type} has no checked decimals; give a Decimal, or lambda tx: …")


def _check_scalar(column: Column[Any], given: str, value: Any) -> None:
    to_sqlite = bind_processor_of(column.type)
    try:
        stored = value if to_sqlite is None else to_sqlite(value)
        found = _stored_as_default(column, stored)
    except (TypeError, ValueError, LookupError, ArithmeticError, apsw.Error) as error:
        raise DefinitionError(f"{given} is no value of a {column.type!r}: {error}") from None
    limit = limit_of(column.type)
    if found is not None and limit is not None and not limit[0](found):
        raise DefinitionError(f"{given}: {limit[1]}")


def _stored_as_default(column: Column[Any], stored: Any) -> Any:
    connection = apsw.Connection(":memory:")
    kind = DIALECT.type_compiler_instance.process(column.type)
    connection.execute(f"CREATE TABLE t (c {kind}) STRICT")
    return connection.execute("INSERT INTO t VALUES (?) RETURNING c", (stored,)).fetchall()[0][0]


def _check_stored(column: Column[Any]) -> None:
    """A server default must be what the column would store, or the first row that gets it fails or reads as something else."""
    connection = apsw.Connection(":memory:")
    text, kind = default_text(column), DIALECT.type_compiler_instance.process(column.type)
    wrong = f"server_default={text} is no value of a {column.type!r} as it is stored; write default="
    try:
        connection.execute(f"CREATE TABLE t (k INTEGER PRIMARY KEY, c {kind} DEFAULT {text}) STRICT")
        found = connection.execute("INSERT INTO t (k) VALUES (1) RETURNING c").fetchall()[0][0]
    except apsw.Error as error:
        raise DefinitionError(f"{wrong} ({error})") from None
    check = value_check(column.type)
    if why := check(found) if check is not None else "":
        raise DefinitionError(f"{wrong} ({why})")


def _check_identity(column: Column[Any], identity: Identity, *, routes: bool) -> None:
    keys = list(column.table.primary_key.columns)
    if keys != [column] or not isinstance(column.type, Integer):
        raise DefinitionError("Identity() belongs to the only column of an Integer primary key, which SQLite numbers")
    if routes:
        raise DefinitionError("Identity(): rows are partitioned by this column, so the caller gives its value")
    if identity.always:
        raise DefinitionError("Identity(always=True): a row may always state its own number; write Identity()")
    if identity.start not in (None, 1) or identity.increment not in (None, 1):
        raise DefinitionError("Identity(start, increment): a number is one more than the largest; write Identity()")
    for name in ("minvalue", "maxvalue", "cycle", "cache", "order", "nominvalue", "nomaxvalue", "on_null"):
        if getattr(identity, name, None) is not None:
            raise DefinitionError(f"Identity({name}=…): a number is one more than the largest, up to 2^63-1; write Identity()")


def values_left_out(compiled: SQLCompiler) -> tuple[Mapping[str, Any], tuple[tuple[str, Make], ...]]:
    """What a compiled INSERT or UPDATE fills in for columns that it leaves out.

    Returns:
        (parameter → constant, (parameter, function of the transaction) in the order of the statement).
    """
    constants: dict[str, Any] = {}
    functions: list[tuple[str, Make]] = []
    prefetched = [(column, column.default) for column in compiled.insert_prefetch]
    prefetched += [(column, column.onupdate) for column in compiled.update_prefetch]
    for column, default in prefetched:
        given: Any = default
        if given.is_callable:
            functions.append((str(column.key), given.arg))
        elif compiled.post_compile_params:  # the values are laid out again for each length of a list
            functions.append((str(column.key), _constant(given.arg)))
        else:
            constants[str(column.key)] = given.arg
    return constants, tuple(functions)


def _constant(value: Any) -> Make:
    return lambda _tx: value
