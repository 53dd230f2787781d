"""Operands that SQLAlchemy renders as a comparison, and does not put into brackets: `a < not_(b)` would be `a < b = 0`.

Code bundles from before this rule keep their statements (`operands_ungrouped`): their calls replay as they ran.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar

from procedures.context_flags import raised

_UNGROUPED: ContextVar[bool] = ContextVar("operands_ungrouped", default=False)


def operands_ungrouped() -> AbstractContextManager[None]:
    """Databases declared inside leave brackets to SQLAlchemy, as all did before: for code bundles of that time."""
    return raised(_UNGROUPED)


def operands_are_ungrouped() -> bool:
    return _UNGROUPED.get()
