"""Statements that differ in nothing but their values have one form: it is compiled, checked and prepared once.

A statement that a procedure builds in each call, `select(t).where(t.c.id == 5)`, holds its values itself. `structure_keys` tells
its structure from them; here they are given to the form's closure by name, like parameters.

Exact numbers are why the key alone does not suffice: how many digits a value has may decide what is compiled
(`procedures.numeric.shapes`). So statements over them share a form only where their values are of the same kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Final

from sqlalchemy import Insert, Update
from sqlalchemy.sql import operators, visitors
from sqlalchemy.sql.elements import BindParameter

from procedures.numeric.numeric_types import is_exact, numeric_of_literal
from procedures.statements.compiled import Compiled
from procedures.statements.prepared import Run

COLUMN_CHOICES_MAX: Final = 64  # per form; more than a program writes, fewer than one could make
_LARGE: Final = 10**18


@dataclass(slots=True)
class StatementForm:
    """What the statements of one structure have in common."""

    statement: Any  # one of them, for another choice of columns; None where there is none
    compiled: Compiled  # with its literals as parameters
    run: Run  # they are given by name; for any choice of columns that was asked for
    places: tuple[tuple[str, int], ...]  # name -> which literal
    column_choices: dict[frozenset[str], Run] = field(default_factory=dict)
    found: int = 0  # how often a statement of this form was looked for

    def values_of(self, literals: Sequence[BindParameter[Any]]) -> dict[str, Any]:
        """The values that one of these statements holds, by name."""
        found = {}
        for name, place in self.places:
            literal = literals[place]
            found[name] = literal.value if literal.callable is None else literal.effective_value
        return found

    def add_columns(self, names: frozenset[str], run: Run) -> None:
        """From now on executions with exactly these names run so."""
        if not self.column_choices:
            self.run = _choosing(self.column_choices, self.run)
        elif len(self.column_choices) >= COLUMN_CHOICES_MAX:
            self.column_choices.pop(next(iter(self.column_choices)))
        self.column_choices[names] = run


def _choosing(choices: dict[frozenset[str], Run], otherwise: Run) -> Run:
    return lambda params: choices.get(frozenset(params), otherwise)(params)


def with_values_named(compiled: Compiled, literals: Sequence[BindParameter[Any]]) -> tuple[Compiled, Any] | None:
    """The compiled statement with its literals as parameters, and the places of their values.

    Returns: None if a value cannot be traced to its place in the statement; then it must not be shared.
    """
    if compiled.own_sql:
        return None
    places = tuple((name, _place_in(literals, parameter)) for name, parameter in compiled.literals.items())
    if any(place < 0 for _, place in places):
        return None
    names = frozenset(compiled.literals)
    constants = {
        name: value for name, value in compiled.constants.items() if compiled.keys[name] not in names
    }  # of columns left out
    return replace(compiled, constants=constants, required=compiled.required | names), places


def _place_in(literals: Sequence[BindParameter[Any]], parameter: BindParameter[Any]) -> int:
    """Compilers copy parameters, and a copy knows what it is a copy of."""
    copied = parameter._cloned_set  # noqa: SLF001 - SQLAlchemy's own way to find them
    return next((place for place, literal in enumerate(literals) if literal in copied), -1)


def may_choose_columns(statement: object) -> bool:
    """Whether the names of the parameters say which columns are set."""
    return isinstance(statement, Insert | Update)


@dataclass(frozen=True, slots=True)
class ValueKinds:
    """How the statements of one structure must agree in their values in order to share a form."""

    counts: bool  # whether the kinds of values count at all
    exactly: frozenset[int] = frozenset()  # literals whose very value is compiled in

    def kinds_of(self, literals: Sequence[BindParameter[Any]]) -> Any:
        """What must be equal."""
        if not self.counts:
            return ()
        return tuple(
            bind.effective_value if place in self.exactly else None if bind.required else _kind(bind.effective_value)
            for place, bind in enumerate(literals)
        )


def value_kinds(statement: Any, compiled: Compiled, literals: Sequence[BindParameter[Any]]) -> ValueKinds:
    """Whether the compiler has looked at values: it may have, where exact numbers are."""
    parts = list(visitors.iterate(statement))
    columns = (column for table in compiled.tables for column in table.columns)
    if not any(map(_is_of_numbers, parts)) and not any(map(_is_of_numbers, columns)):
        return ValueKinds(counts=False)
    return ValueKinds(counts=True, exactly=frozenset(_rounding_places(parts, literals)))


def _is_of_numbers(part: Any) -> bool:
    return is_exact(getattr(part, "type", None)) or getattr(part, "operator", None) in (operators.truediv, operators.floordiv)


def _rounding_places(parts: Iterable[Any], literals: Sequence[BindParameter[Any]]) -> Iterable[int]:
    """The n of round(x, n) is written into the text."""
    for part in parts:
        if part.__visit_name__ == "function" and part.name.lower() == "round":
            yield from (_place_in(literals, n) for n in list(part.clauses)[1:] if isinstance(n, BindParameter))


def _kind(value: Any) -> Any:
    if isinstance(value, list | tuple | set | frozenset):
        return type(value), frozenset(map(_kind, value))
    if type(value) is int:
        return len(str(abs(value))) if abs(value) < _LARGE else _LARGE
    if isinstance(value, Decimal):
        try:
            type_ = numeric_of_literal(value)
        except (TypeError, ValueError):  # refused when it is compiled
            return str(value)
        return type_.precision, type_.scale
    return type(value)
