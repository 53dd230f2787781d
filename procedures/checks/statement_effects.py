"""Parts of a statement that SQLAlchemy leaves out for SQLite, or writes wrongly, without an error.

They run in old calls as they ran, so nothing refuses them where they run; `check` names them before they are deployed.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy.sql import operators, visitors

from procedures.declaration.dialect import DIALECT, StateDialect
from procedures.declaration.joined_bytes import works_on_bytes

_WITH_OPTIONS: Final = frozenset(("select", "insert", "update", "delete"))


def find_silent_parts(statement: Any, dialect: StateDialect = DIALECT) -> list[str]:
    """A sentence for each, in the order of the statement; the dialect is that of its database."""
    found = []
    for element in visitors.iterate(statement):
        part: Any = element
        if getattr(part, "_distinct_on", ()):
            found.append("DISTINCT ON is left out: SQLite has none, and all rows come; use row_number() over a window, or min()")
        if getattr(part, "operator", None) is operators.bitwise_xor_op:
            found.append("bitwise_xor is grouped wrongly by SQLAlchemy; write a.bitwise_or(b) - a.bitwise_and(b)")
        if not dialect.joins_bytes and works_on_bytes(part, getattr(part, "operator", None)):
            found.append(
                f"<{part}>: SQLite takes bytes for numbers, in an application without a column, parameter or result of bytes; "
                "join them in Python"
            )
        if part.__visit_name__ in _WITH_OPTIONS:
            others = [option for option in part.dialect_kwargs if not option.startswith("sqlite_")]
            found += [f"{option} is of another database and is left out; use a subquery, or leave it out" for option in others]
    return found
