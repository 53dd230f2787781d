"""Steps of the engine in C, where a compiler built them: statements without a cursor's detours, changed rows, parameters.

One rule: nothing needs them. `accelerator` is None where the module was not built, does not suit the SQLite at hand, or is
switched off (`CMDLOG_NATIVE=0`); then the Python beside each caller does the same, with the same rows, digests and errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import apsw

from cmdlog.built_module import built_module

if TYPE_CHECKING:
    from types import ModuleType

    from procedures.native.accelerator import Statements

_ENTRY: Final = "cmdlog_sqlite_init"
INTERFACE: Final = 5  # what the Python here asks of the module; in accelerator.c the same


def error_of(code: int, message: str, offset: int) -> apsw.Error:
    """The exception that APSW raises for an extended result code of SQLite."""
    error: Any = apsw.exception_for(code)
    error.args = (message,)
    error.error_offset = offset
    return error  # type: ignore[no-any-return] # of a class that the code chooses


def _load() -> ModuleType | None:
    """The engine's module, with the routines of APSW's SQLite; None where it cannot be used."""
    found = built_module("procedures.native.accelerator", INTERFACE)
    if found is None:
        return None
    connection = apsw.Connection(":memory:")
    try:
        connection.enable_load_extension(True)
        connection.load_extension(str(found.__file__), _ENTRY)
    except (apsw.Error, AttributeError):  # an APSW that loads none
        return None
    finally:
        connection.close()
    number = found.sqlite_version()
    version = f"{number // 1_000_000}.{number // 1_000 % 1_000}.{number % 1_000}"
    return found if version == apsw.sqlite_lib_version() else None


accelerator: Any = _load()  # a module, see accelerator.pyi; or None


def open_statements(connection: apsw.Connection) -> Statements | None:
    """For the statements of procedures on this connection; to be closed before it. None where they go through its cursor.

    A process that prepares no statement, but copies rows or looks them up, has not configured the module.
    """
    try:
        return None if accelerator is None else accelerator.Statements(connection)
    except RuntimeError:
        return None
