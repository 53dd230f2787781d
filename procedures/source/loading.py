"""Programs whose code is loaded from a log: a module of theirs may open a database, and use it, as it did in the program.

One rule: loading code runs no program. What a module opens meanwhile is not open, and a module ends where it uses that, or exits:
what it declares before is what the log needs of it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Final

from procedures.wire.context_flags import raised

_LOADING: Final[ContextVar[bool]] = ContextVar("code_is_loaded", default=False)


class ProgramBegins(BaseException):
    """A module that is loaded from a log uses a database. No `except Exception` of the module's own stops it."""


def loading() -> AbstractContextManager[None]:
    """Modules that run inside are loaded from a log."""
    return raised(_LOADING)


def is_loading() -> bool:
    return _LOADING.get()
