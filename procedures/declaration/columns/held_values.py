"""Whether a value that lies in a column is one of its type: read as statements read it, and written again as they write it.

One rule: there is no second list of what types take. The conversions decide, and the limits that a type states beside them.

Texts of errors show no values of rows: they leave the node, and values must not. The exception is a rehearsal of migrations at
the command line (`values_shown`): its reader has the files, and needs key and value of the first row that a change refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Final

from sqlalchemy import types

from procedures.declaration.columns.column_types import limit_of
from procedures.declaration.dialect import bind_processor_of, result_processor_of
from procedures.raised_errors import class_name, text_of
from procedures.wire.context_flags import raised

_CHARACTERS_MAX: Final = 60  # characters of a value

_VALUES_SHOWN: ContextVar[bool] = ContextVar("values_shown", default=False)

Check = Callable[[Any], str]  # of a stored value: why it is none of the type; "" where it is one


def value_check(type_: Any) -> Check | None:
    """None where every value is one that SQLite lets into such a column. NULL is one of every type."""
    to_python, to_sqlite, limit = result_processor_of(type_), bind_processor_of(type_), limit_of(type_)
    if to_python is None and limit is None:
        return None

    def check(value: Any) -> str:
        if value is None:
            return ""
        try:
            read = value if to_python is None else to_python(value)
            again = read if to_python is None or to_sqlite is None else to_sqlite(read)
        except Exception as error:  # noqa: BLE001 - a TypeDecorator's conversion is code of the application
            return _refusal(error)
        if again != value:
            return f"it would be written {value_in_text(again, 'as {!r}'.format, 'differently')}"
        return limit[1] if limit is not None and not limit[0](value) else ""

    return check


def _refusal(error: Exception) -> str:
    return f"{class_name(error)}: {text_of(error)}".split("\n", 1)[0]


def row_check(type_: Any) -> Check | None:
    """The same of rows: JSON may be written differently, and what a TypeDecorator writes is its own affair, if it can be read."""
    if isinstance(type_, types.TypeDecorator) and not isinstance(type_, types.Interval):
        return _all_of(row_check(type_.impl_instance), _readable(type_))
    return _readable(type_) if isinstance(type_, types.JSON) else value_check(type_)


def _readable(type_: Any) -> Check | None:
    to_python = result_processor_of(type_)
    if to_python is None:
        return None

    def check(value: Any) -> str:
        try:
            to_python(value)
        except Exception as error:  # noqa: BLE001 - as above
            return _refusal(error)
        return ""

    return check


def _all_of(*checks: Check | None) -> Check | None:
    found = [check for check in checks if check is not None]
    return (lambda value: next((why for check in found if (why := check(value))), "")) if found else None


def shown_value(value: Any) -> str:
    """The value as an error shows it to people."""
    text = repr(value)
    return text if len(text) <= _CHARACTERS_MAX else f"{text[:_CHARACTERS_MAX]}… ({len(value)})"


def values_shown() -> AbstractContextManager[None]:
    """What a migration refuses inside is shown with its values."""
    return raised(_VALUES_SHOWN)


def value_in_text(value: Any, show: Callable[[Any], str], instead: str) -> str:
    """The words instead of it; the value as `show` writes it where values are shown."""
    return show(value) if _VALUES_SHOWN.get() else instead
