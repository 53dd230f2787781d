"""Keys that a statement pins: what it compares a partition column with.

Code bundles from before this rule run their statements unjudged (`keys_unjudged`): their calls replay as they ran.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar

from procedures.context_flags import raised

_UNJUDGED: ContextVar[bool] = ContextVar("keys_unjudged", default=False)


def keys_unjudged() -> AbstractContextManager[None]:
    """Statements of databases declared inside may look for keys that live elsewhere: for code bundles of that time."""
    return raised(_UNJUDGED)


def keys_are_unjudged() -> bool:
    return _UNJUDGED.get()
