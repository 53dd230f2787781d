"""Which expressions may meet although each is stored in a form of its own: times as text, intervals as whole numbers.

One rule: SQLite compares and stores the forms as they are, and says nothing. `'2026-01-31' < '2026-01-31T00:00:00…'` is true of
every midnight, and a date in a DateTime column is no time that can be read again. So a statement in which two known forms meet
is refused when it is compiled. An expression whose type is not known is left alone, and so is SQL text.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from sqlalchemy import types
from sqlalchemy.sql.elements import ClauseElement, ColumnClause, Grouping
from sqlalchemy.sql.functions import FunctionElement

from procedures.errors import StatementRefused

_KINDS: Final[tuple[tuple[str, tuple[type[Any], ...]], ...]] = (  # the first that fits
    ("Interval", (types.Interval,)), ("DateTime", (types.DateTime,)), ("Date", (types.Date,)), ("Time", (types.Time,)),
    ("Uuid", (types.Uuid,)), ("JSON", (types.JSON,)), ("Boolean", (types.Boolean,)), ("LargeBinary", (types.LargeBinary,)),
    ("number", (types.Integer, types.Numeric, types.Float)), ("text", (types.String,)),
)  # fmt: skip
_TIMES: Final = frozenset(("Interval", "DateTime", "Date", "Time"))
_OWN: Final = _TIMES | {"Uuid", "JSON"}  # whatever else lies in such a column need not be one that can be read again
READ_BY_FORM: Final = _OWN | {"Boolean"}
"""Forms of columns from which a value that was stored in another one is not read as it was meant."""
_ADVICE: Final = "they are stored in different forms; convert one of them in Python"


def form_of(element: Any) -> str | None:
    """The name of its form; None where it is not known."""
    type_ = getattr(element, "type", None)
    if isinstance(type_, types.TypeDecorator) and not isinstance(type_, types.Interval):
        type_ = type_.impl_instance
    return next((name for name, kinds in _KINDS if isinstance(type_, kinds)), None)


def check_compared(expression: Any, left: Any, right: Any) -> None:
    """Raises: StatementRefused where a time is compared with something else; a Date with text is compared as it is written."""
    first = form_of(left)
    for part in _compared_parts(right):
        second = form_of(part)
        if not _differ(first, second) or {first, second} == {"Date", "text"}:
            continue
        raise StatementRefused(f"<{expression}> compares {named(first)} with {named(second)}: {_ADVICE}")


def check_results(what: str, elements: Iterable[Any]) -> None:
    """Raises: StatementRefused where an expression would give one time or another, whose forms differ."""
    known = sorted({form for form in map(form_of, elements) if form is not None})
    for other in known[1:]:
        if _differ(known[0], other):
            raise StatementRefused(f"{what} gives {named(known[0])} or {named(other)}: {_ADVICE}")


def check_cast(cast: Any) -> None:
    """Raises: StatementRefused for one time as another; SQLite would leave the text as it is."""
    source, wanted = form_of(cast.clause), form_of(cast)
    if source != wanted and source in _TIMES and wanted in _TIMES:
        raise StatementRefused(f"<{cast}>: {named(source)} cannot be cast to {named(wanted)}; convert it in Python")


def check_assigned(column: Any, value: Any) -> None:
    """Raises: StatementRefused for an expression that the column could not give back.

    A value itself is none of them: its type converts it, or refuses it.
    """
    if not isinstance(value, ClauseElement):
        return
    wanted, given = form_of(column), form_of(value)
    if given is None or wanted == given:
        return
    as_flag = wanted == "Boolean" and isinstance(value, ColumnClause)  # a CASE of 1 and 0 is one
    if as_flag or wanted in _OWN or given == "Interval":
        raise StatementRefused(
            f"column {column.name} is {named(wanted)}, its new value {named(given)}, which is stored in another form; "
            "read it, convert it in Python, and write the value"
        )


def _compared_parts(right: Any) -> Iterable[Any]:
    """BETWEEN has two, IN a list. What a function gets is not what it gives."""
    inner = right.element if isinstance(right, Grouping) else right
    parts: Iterable[Any] = (right,) if isinstance(inner, FunctionElement) else getattr(right, "clauses", (right,))
    return parts


def _differ(first: str | None, second: str | None) -> bool:
    return first is not None and second is not None and first != second and bool(_TIMES & {first, second})


def named(form: str | None) -> str:
    """With its article."""
    article = "" if form == "text" else "an " if form == "Interval" else "a "
    return f"{article}{form}"
