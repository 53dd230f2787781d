"""Whether texts of errors show the values of rows: they do not, because texts leave the node and values must not.

A text of the framework is part of an outcome: it goes into the answer, the server's log, `/v1/status` and the page. So it names
table, constraint and columns; a procedure finds the values in the exception's `params`.

The exception is a rehearsal of migrations at the command line: its reader has the files, and needs key and value of the first row
that a change refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

from procedures.context_flags import raised

_SHOWN: ContextVar[bool] = ContextVar("values_shown", default=False)


def values_shown() -> AbstractContextManager[None]:
    """What a migration refuses inside is shown with its values."""
    return raised(_SHOWN)


def value_in_text(value: Any, show: Callable[[Any], str], instead: str) -> str:
    """The words instead of it; the value as `show` writes it where values are shown."""
    return show(value) if _SHOWN.get() else instead
