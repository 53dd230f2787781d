"""Numeric columns of a declared table: the type by which each is stored, and what else of the declaration speaks of them.

Text in a CHECK, a generated column or an index would see the stored integers; only a comparison with zero means the same there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import CheckConstraint, Column, ColumnClause, DefaultClause, Table, TextClause, text
from sqlalchemy.sql import ClauseElement, visitors
from sqlalchemy.sql.visitors import replacement_traverse

from procedures.errors import DefinitionError
from procedures.numeric.numeric_types import ScaledNumeric, declared_numeric, hides_numeric, is_exact


def set_stored_types(table: Table, partition_by: str | None) -> None:
    """Gives every Numeric column the type by which it is stored, an exact integer.

    Raises:
        DefinitionError: a Numeric without an exact form, and text about it whose numbers would not be its units.
    """
    exact = {}
    for column in table.columns:
        declared: Any = column.type
        # A type that may be a Numeric is refused; one that is none stays; a Numeric gets its stored type, and may not route.
        if hides_numeric(declared):
            raise DefinitionError(
                f"column {table.name}.{column.name}: {declared!r} wraps or varies a Numeric, whose decimals are then not known; "
                "use Numeric(p, s) itself, and convert in Python"
            )
        if not is_exact(declared):
            continue
        try:
            column.type = exact[column.name] = declared_numeric(declared)
            _scale_default(column, exact[column.name])
        except (DefinitionError, TypeError, ValueError) as error:
            raise DefinitionError(f"column {table.name}.{column.name}: {error}") from None
        if column.name == partition_by:
            raise DefinitionError(
                f"table {table.name!r} cannot be partitioned by {column.name}, a Numeric: calls are routed by the text of a "
                "value, and 5 and 5.00 are two; partition by an Integer or a String"
            )
    _name_columns(table)
    _check_foreign_keys(table)


def set_exact_types(table: Table) -> None:
    """Gives the Numeric columns of a table that a migration describes the type by which they are stored.

    Raises: DefinitionError for a Numeric without an exact form.
    """
    for column in table.columns:
        if is_exact(column.type) and not isinstance(column.type, ScaledNumeric):
            declared: Any = column.type
            column.type = stored = declared_numeric(declared)
            _scale_default(column, stored)
    _name_columns(table)


def _check_foreign_keys(table: Table) -> None:
    """Refuses references, of this table and to it, between different decimals: SQLite compares the stored integers."""
    for known in table.metadata.tables.values():
        for key in known.foreign_keys:
            target = table.metadata.tables.get(key.target_fullname.rpartition(".")[0])
            if target is None or (table not in (known, target)):
                continue
            ends = (key.parent.type, key.column.type)
            decimals = {end.scale if isinstance(end, ScaledNumeric) else None for end in ends}
            if len(decimals) > 1:
                raise DefinitionError(
                    f"the foreign key {known.name}.{key.parent.name} is {ends[0]!r}, {key.target_fullname} is {ends[1]!r}; "
                    "SQLite compares the integers that are stored, so both need the same decimals"
                )


def with_columns(expression: Any, table: Table) -> Any:
    """`column("balance") + 1` speaks of the column of that name, with its type."""
    by_name = {column.name.lower(): column for column in table.columns}

    def named(element: Any, **_: Any) -> Any:
        is_name = isinstance(element, ColumnClause) and element.table is None and not element.is_literal
        return by_name.get(element.name.lower()) if is_name else None

    return replacement_traverse(expression, {}, named)


def _name_columns(table: Table) -> None:
    for constraint in table.constraints:
        if isinstance(constraint, CheckConstraint):
            constraint.sqltext = with_columns(constraint.sqltext, table)
    for column in table.columns:
        if column.computed is not None:
            column.computed.sqltext = with_columns(column.computed.sqltext, table)


def _scale_default(column: Column[Any], type_: ScaledNumeric) -> None:
    """A server default as units of the column's last decimal."""
    if isinstance(column.server_default, DefaultClause):
        given = column.server_default.arg
        written = str(given.text if isinstance(given, TextClause) else getattr(given, "value", given)).strip().strip("'")
        if written.upper() != "NULL":
            column.server_default = DefaultClause(text(type_.literal_processor(None)(written)))


def check_texts(table: Table) -> None:
    """Refuses SQL text of a table's constraints, generated columns and indexes that would see the stored integers.

    Raises: DefinitionError.
    """
    exact = {column.name: column.type for column in table.columns if isinstance(column.type, ScaledNumeric)}
    if not exact:
        return
    clauses: list[Any] = [c.sqltext for c in table.constraints if isinstance(c, CheckConstraint)]
    clauses += [column.computed.sqltext for column in table.columns if column.computed is not None]
    for index in table.indexes:
        clauses += [*index.expressions, index.dialect_options["sqlite"]["where"]]
    for clause in clauses:
        for part in visitors.iterate(clause) if isinstance(clause, ClauseElement) else ():
            if isinstance(part, TextClause):
                _check_text(table, part.text, exact)
            elif isinstance(part, ColumnClause) and part.is_literal:
                _check_text(table, part.name, exact)


def _check_text(table: Table, given: str, exact: Mapping[str, ScaledNumeric]) -> None:
    terms = [given] if _JOINS_TERMS.search(given) else _TERM_ENDS.split(given)
    left = " ; ".join(term for term in terms if not _SIGN_CHECK.fullmatch(term))
    for name, type_ in exact.items():
        if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", left, re.IGNORECASE):
            raise DefinitionError(
                f"table {table.name!r}: the text <{given}> uses {name}, a {type_}, of which SQLite holds units of "
                f"10^-{type_.scale}; as text it can be compared with 0 alone: write "
                f"CheckConstraint(column({name!r}) <= Decimal(…))"
            )


_TERM_ENDS: Final = re.compile(r"[()]|\b(?:AND|OR)\b", re.IGNORECASE)
_JOINS_TERMS: Final = re.compile(r"\b(?:BETWEEN|CASE)\b", re.IGNORECASE)  # whose AND, or whose parts, are no terms
_SIGN_CHECK: Final = re.compile(
    r"\s*(?:NOT\s+)?\"?[A-Za-z_]\w*\"?\s*(?:(?:<=|>=|<>|!=|==?|<|>)\s*0(?:\.0*)?|IS(?:\s+NOT)?\s+NULL)\s*",
    re.ASCII | re.IGNORECASE,
)
"""A comparison with zero or NULL, which are the same in any units."""
