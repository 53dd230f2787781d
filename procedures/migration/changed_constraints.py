"""What else of a table speaks of a column whose values are now stored in another form: checks, generated columns, indexes.

One rule: SQL text sees stored numbers, so text of former units would say something else. The declaration has each rule as an
expression; it is compiled again by the types that the columns have at this moment. A rule that the declaration has not is no rule
that could be said again: it is dropped before, and made again afterwards, by the migration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from sqlalchemy import (
    BindParameter,
    CheckConstraint,
    Column,
    ColumnClause,
    Computed,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    Table,
    Text,
    literal,
)
from sqlalchemy.sql.visitors import iterate, replacement_traverse

from procedures.declaration.create_text import ColumnText, TableText, constraint_name, constraint_words, names_of, text_key
from procedures.declaration.dialect import DIALECT
from procedures.declaration.schema import column_definition, create_indexes
from procedures.errors import DefinitionError
from procedures.migration.column_change import expressions_of, numeric_of, with_expressions
from procedures.migration.table_edit import TableEdit
from procedures.numeric.columns import set_exact_types
from procedures.numeric.numeric_types import ScaledNumeric

STORED: Final[Mapping[str, Any]] = {"INTEGER": Integer, "TEXT": Text, "REAL": Float, "BLOB": LargeBinary}
"""A type for columns whose declaration is not known."""


def restate_rules(edit: TableEdit, before: TableText, name: str, declared: Table | None) -> None:
    """Every rule that speaks of the column, as it is said of the table as the edit has it now.

    Raises: DefinitionError for one that the declaration has not.
    """
    rules = _Rules(before, declared), _Rules(edit.table, declared)
    for text in edit.table.constraints:
        if constraint_words(text)[0] == "CHECK" and name in names_of(text):
            edit.replace_constraint(text, _restated(text, rules[0].checks(), rules[1].checks(), name))
    for column in edit.table.columns:
        spoken = [part for part in expressions_of(column) if name in names_of(part)]
        if spoken:
            now = rules[1].column(column)
            if now is None or len(expressions_of(now)) != len(expressions_of(column)):
                raise _unknown(spoken[0], name)
            edit.change_column(with_expressions(column, expressions_of(now)))
    former, now_made = (rule.indexes() for rule in rules)
    for index in edit.indexes:
        if index in now_made and text_key(former.get(index, "")) != text_key(now_made[index]):
            edit.replace_index(index, now_made[index])


def _restated(text: str, former: list[str], now: list[str], name: str) -> str:
    """The same rule in the other units: the one that was said so, else the one of that name."""
    for was, says in zip(former, now, strict=True):
        if text_key(was) == text_key(text):
            return says
    found = [says for says in now if constraint_name(text) and constraint_name(says) == constraint_name(text)]
    if not found:
        raise _unknown(text, name)
    return found[0]


def _unknown(text: str, name: str) -> DefinitionError:
    return DefinitionError(
        f"<{text}> speaks of column {name!r} as it was stored before, and the declaration has no such rule from which it could "
        "be written again; drop it in the migration before the column changes (op.drop_constraint, op.drop_column), and make it "
        "again afterwards"
    )


class _Rules:
    """The rules of a declaration, said of columns as a table has them."""

    def __init__(self, held: TableText, declared: Table | None) -> None:
        self._names, self._declared = set(held.column_names), declared
        self._table = Table(held.name, MetaData())
        for text in held.columns:
            source = None if declared is None else declared.columns.get(text.name)
            self._table.append_column(Column(text.name, _type_of(text, source), *self._items_of(source)))
        for check in self._declared_checks():
            self._table.append_constraint(CheckConstraint(_by_name(check.sqltext), name=check.name))
        set_exact_types(self._table)

    def checks(self) -> list[str]:
        """The checks of the table, in the order of the declaration."""
        compiler = DIALECT.ddl_compiler(DIALECT, None)
        made = [found for found in self._table.constraints if isinstance(found, CheckConstraint)]
        return [" ".join(str(compiler.process(check)).split()) for check in sorted(made, key=_order)]

    def column(self, text: ColumnText) -> ColumnText | None:
        """A column as it would be declared here; None where the declaration has none of that name."""
        if self._declared is None or text.name not in self._declared.columns:
            return None
        return ColumnText(text.name, column_definition(self._table.columns[text.name]))

    def indexes(self) -> dict[str, str]:
        """Name → CREATE INDEX."""
        for index in () if self._declared is None else self._declared.indexes:
            where = index.dialect_options["sqlite"]["where"]
            parts: list[Any] = list(index.expressions)
            if all(self._knows(part) for part in [*parts, *([] if where is None else [where])]):
                found = [replacement_traverse(part, {}, self._own) for part in parts]
                only = {} if where is None else {"sqlite_where": replacement_traverse(where, {}, self._own)}
                Index(index.name, *found, unique=index.unique, _table=self._table, **only)
        return create_indexes(self._table)

    def _declared_checks(self) -> Iterator[Any]:
        found = () if self._declared is None else self._declared.constraints
        made = sorted((each for each in found if isinstance(each, CheckConstraint)), key=_order)
        return (check for check in made if self._knows(check.sqltext))

    def _items_of(self, source: Any) -> Iterator[Any]:
        """A column's own checks, and what it is computed from."""
        if source is None:
            return
        for check in sorted(source.constraints, key=_order):
            if isinstance(check, CheckConstraint) and self._knows(check.sqltext):
                yield CheckConstraint(_by_name(check.sqltext), name=check.name)
        if source.computed is not None and self._knows(source.computed.sqltext):
            yield Computed(_by_name(source.computed.sqltext), persisted=True)

    def _knows(self, expression: Any) -> bool:
        """Whether the table has all columns that it names."""
        return all(part.name in self._names for part in iterate(expression) if isinstance(part, Column))

    def _own(self, element: Any, **_: Any) -> Any:
        return self._table.columns[element.name] if isinstance(element, Column) else _unbound(element)


def _type_of(text: ColumnText, source: Any) -> Any:
    """The type by which the values of a column are stored at this moment."""
    numeric = numeric_of(text)
    if numeric is not None:
        return numeric
    if source is not None and not isinstance(source.type, ScaledNumeric):
        return source.type
    return STORED.get(text.type, Text)


def _by_name(expression: Any) -> Any:
    """An expression that is bound neither to the declared table nor, in its numbers, to the decimals of that."""

    def named(element: Any, **_: Any) -> Any:
        if isinstance(element, Column):
            return ColumnClause(element.name)
        return _unbound(element)

    return replacement_traverse(expression, {}, named)


def _unbound(element: Any) -> Any:
    exact = isinstance(element, BindParameter) and isinstance(element.type, ScaledNumeric | Numeric)
    return literal(element.value) if exact and not isinstance(element.type, Float) else None


def _order(constraint: Any) -> Any:
    return constraint._creation_order  # noqa: SLF001 - the order in which SQLAlchemy writes them
