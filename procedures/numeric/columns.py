"""Numeric columns of a declared table: the type by which each is stored, and what else of the declaration speaks of them.

Text in a CHECK, a generated column or an index would see the stored integers; only a comparison with zero means the same there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import CheckConstraint, Column, ColumnClause, DefaultClause, Table, TextClause, text
from sqlalchemy.sql.visitors import replacement_traverse

from procedures.errors import DefinitionError, SchemaConflict
from procedures.numeric.numeric_types import ScaledNumeric, TextNumeric, declared_numeric, is_exact


def set_stored_types(table: Table, partition_by: str | None, *, as_text: bool) -> None:
    """Gives every Numeric column the type by which it is stored: an exact integer, or digits as text.

    Raises:
        DefinitionError: a Numeric without an exact form, and text about it whose numbers would not be its units.
    """
    exact = {}
    for column in table.columns:
        declared: Any = column.type
        if not is_exact(declared) or isinstance(declared, TextNumeric):
            continue
        if as_text:
            column.type = TextNumeric(declared.precision, declared.scale)
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


def _scale_default(column: Column[Any], type_: ScaledNumeric) -> None:
    """A server default as units of the column's last decimal."""
    if isinstance(column.server_default, DefaultClause):
        given = column.server_default.arg
        written = str(given.text if isinstance(given, TextClause) else getattr(given, "value", given)).strip().strip("'")
        if written.upper() != "NULL":
            column.server_default = DefaultClause(text(type_.literal_processor(None)(written)))


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
                    f"10^-{type_.scale}; as text it can be compared with 0 alone: write "
                    f"CheckConstraint(column({name!r}) <= Decimal(…))"
                )


_SIGN_CHECK: Final = re.compile(r"\"?\b[A-Za-z_]\w*\"?\s*(?:<=|>=|<>|!=|<|>|=)\s*0(?:\.0*)?(?![\w.])", re.ASCII)
"""A comparison with zero, which is zero in any units."""


def check_stored_form(table: Table, found: str) -> None:
    """Tells a table of a state in which Numeric is text, CREATE statement `found`, from any other difference.

    Raises: SchemaConflict, which names both ways out.
    """
    for column in table.columns:
        if isinstance(column.type, ScaledNumeric) and re.search(rf'[(,]\s*"?{re.escape(column.name)}"? TEXT', found):
            raise SchemaConflict(
                f"table {table.name!r}: the state holds {column.name} as text, as cmdlog stored every Numeric before they were "
                f"exact. To keep the table, declare the column {_as_text(column.type)} (from cmdlog import TextNumeric): it can "
                f"be read and written, not compared. To move, declare a new table with {column.type} and copy the rows in a "
                "procedure"
            )


def _as_text(type_: ScaledNumeric) -> str:
    return f"TextNumeric({type_.precision}, {type_.scale})"
