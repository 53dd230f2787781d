"""What a procedure raised, read without trusting it: its class may lie about itself, fail when it is asked, or do work.

One rule: everything that reads a raised object does so here. What it is comes from C's own readers, which no class can replace
(`type.__name__`, `BaseException.__cause__`); `isinstance` would ask the object for its `__class__`. Its text is code of the
application: an outcome asks for it once, live and in each replay; nothing else does.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Final

NO_TEXT: Final = "(the exception has no text)"
ENDS_READING: Final = (MemoryError, KeyboardInterrupt)  # of the machine, or of a person: no text of an outcome

_name_of: Final = type.__dict__["__name__"].__get__
_cause_of: Final = BaseException.__dict__["__cause__"].__get__
_context_of: Final = BaseException.__dict__["__context__"].__get__
_suppresses_context: Final = BaseException.__dict__["__suppress_context__"].__get__
_trace_of: Final = BaseException.__dict__["__traceback__"]


def is_raised(error: BaseException | None, kinds: type[Any] | tuple[type[Any], ...]) -> bool:
    """`isinstance`, for what is raised; false of None."""
    return issubclass(type(error), kinds)


def class_name(error: object) -> str:
    """The name of its class."""
    return str.__str__(_name_of(type(error)))  # a plain one: a name may be of a class that derives from str


def text_of(error: BaseException) -> str:
    """`str` of it. Raises: what ends the reading, a fault of the machine like any other that code of the application meets."""
    try:
        return str.__str__(str(error))
    except ENDS_READING:
        raise
    except BaseException:  # noqa: BLE001 - an exception of the procedure's own making may fail to describe itself
        return NO_TEXT


def repr_of(error: BaseException | None) -> str:
    """`repr` of it, for people; its class where that fails."""
    try:
        return str.__str__(repr(error))
    except BaseException:  # noqa: BLE001 - as above, and the words are of no outcome
        return f"{class_name(error)}()"


def trace_of(error: BaseException) -> TracebackType | None:
    """Its traceback."""
    found: TracebackType | None = _trace_of.__get__(error)
    return found


def set_trace(error: BaseException, trace: TracebackType | None) -> None:
    """Gives it another traceback."""
    _trace_of.__set__(error, trace)


def causes_of(error: BaseException) -> tuple[BaseException | None, BaseException | None]:
    """(what it was raised from, what was handled when it was raised; None where that is suppressed)."""
    return _cause_of(error), None if _suppresses_context(error) else _context_of(error)


def linked_to(error: BaseException) -> list[BaseException]:
    """The exceptions that it keeps alive: its cause and its context, also one that is suppressed."""
    return [one for one in (_cause_of(error), _context_of(error)) if one is not None]
