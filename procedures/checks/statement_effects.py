"""Parts of a statement that SQLAlchemy leaves out for SQLite, or writes wrongly, without an error.

`check` names them before they are deployed.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy.sql import operators, visitors

_WITH_OPTIONS: Final = frozenset(("select", "insert", "update", "delete"))


def find_silent_parts(statement: Any) -> list[str]:
    """A sentence for each, in the order of the statement."""
    found = []
    for element in visitors.iterate(statement):
        part: Any = element
        if getattr(part, "_distinct_on", ()):
            found.append("DISTINCT ON is left out: SQLite has none, and all rows come; use row_number() over a window, or min()")
        if getattr(part, "operator", None) is operators.bitwise_xor_op:
            found.append("bitwise_xor is grouped wrongly by SQLAlchemy; write a.bitwise_or(b) - a.bitwise_and(b)")
        if part.__visit_name__ in _WITH_OPTIONS:
            others = [option for option in part.dialect_kwargs if not option.startswith("sqlite_")]
            found += [f"{option} is of another database and is left out; use a subquery, or leave it out" for option in others]
    return found
