"""Constructs of which no exact number may be part: those that are not known here, and those whose SQL an application writes.

What a construct does to a number cannot be seen in its SQL text. So each is known by name, or refused with exact numbers inside;
a class of the application, or one for which it registered SQL of its own (`@compiles`), is text (`Runs` refuses it together with
columns of exact numbers). The compiler itself notices the rest of the text (`ExactCompiler.raw_text`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy.sql import visitors
from sqlalchemy.sql.elements import ClauseElement, ColumnElement

from procedures.numeric.shapes import REMEDY, NumericRefused, holds_exact

_KNOWN_NAMES: Final = """select compound_select column table alias subquery cte lateral join label grouping bindparam binary unary
    select_statement_grouping clauselist expression_clauselist order_by_list element_list case cast function over funcfilter null
    true false tuple insert update delete on_conflict_do_update on_conflict_do_nothing label_reference textual_label_reference
    values scalar_values type_coerce typeclause rescaled frame_clause dmltargetcopy"""
_KNOWN: Final = frozenset(_KNOWN_NAMES.split())
_OURS: Final = ("sqlalchemy.", "procedures.numeric.")


def holds_own_sql(statement: Any) -> bool:
    """Whether parts of the statement are classes whose SQL is written by the application.

    Raises: NumericRefused for a construct in which this module does not know what an exact number becomes.
    """
    found = False
    for element in _parts(statement):
        kind = type(element)
        found |= (
            not kind.__module__.startswith(_OURS) or "_compiler_dispatcher" in vars(kind) or hasattr(kind, "_compiler_dispatcher")
        )
        if element.__visit_name__ not in _KNOWN and holds_exact(
            part for part in visitors.iterate(element) if part is not element and isinstance(part, ColumnElement)
        ):
            raise NumericRefused(f"{kind.__name__} is not defined for exact numbers; {REMEDY}")
    return found


def _parts(statement: Any) -> Iterator[Any]:
    """All parts of a statement, also the values of VALUES and ON CONFLICT, which SQLAlchemy's traversal leaves out."""
    for element in visitors.iterate(statement):
        yield element
        hidden: list[Any] = [*getattr(element, "_multi_values", ()), *getattr(element, "_data", ())]
        hidden += [getattr(element, "update_values_to_set", ())]
        for value in _values(hidden):
            yield from _parts(value)


def _values(value: Any) -> Iterator[Any]:
    """The clauses in nested lists and dicts."""
    if isinstance(value, ClauseElement):
        yield value
    elif isinstance(value, dict):
        yield from _values(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _values(item)


def check_limits(select: Any) -> None:
    """Refuses units of a decimal as a LIMIT."""
    limits = (select._limit_clause, select._offset_clause, select._fetch_clause)  # noqa: SLF001 - where SQLAlchemy keeps them
    if holds_exact(limit for limit in limits if limit is not None):
        raise NumericRefused("LIMIT and OFFSET take integers, no exact numbers with decimals")
