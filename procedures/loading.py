"""Programs whose code is loaded from a log: a module of theirs may open a database, and use it, as it did in the program.

One rule: loading code runs no program. What a module opens meanwhile is not open, and a module ends where it uses that, or exits:
what it declares before is what the log needs of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_LOADING: Final[ContextVar[bool]] = ContextVar("code_is_loaded", default=False)


class ProgramBegins(BaseException):
    """A module that is loaded from a log uses a database. No `except Exception` of the module's own stops it."""


@contextmanager
def loading() -> Iterator[None]:
    """Modules that run inside are loaded from a log."""
    token = _LOADING.set(True)
    try:
        yield
    finally:
        _LOADING.reset(token)


def is_loading() -> bool:
    return _LOADING.get()
