"""What `accelerator.c` holds; the Python beside each caller says what it does."""

from collections.abc import Callable, Mapping
from typing import Any

import apsw

from procedures.execution.context import PythonRunner
from procedures.statements.call_state import CallState
from procedures.storage.row_digest import RowLog
from procedures.storage.row_digest import TouchedRows as TouchedRows

Runner = PythonRunner

def configure(
    error_of: Callable[[int, str, int], BaseException],
    names_differ: type[BaseException],
    written: tuple[Any, ...],
    written_many: type[Any],
    noted: tuple[type[BaseException], ...],
    /,
) -> None: ...
def sqlite_version() -> int: ...

class Statements:
    open: int
    def __init__(self, connection: apsw.Connection, /) -> None: ...
    def close(self) -> None: ...

class Statement:
    def __init__(
        self,
        owner: Statements,
        sql: str,
        names: tuple[str, ...] | None,
        pick: Callable[[dict[str, Any]], Any],
        state: CallState,
        fallback: Callable[[dict[str, Any]], Any],
        result: type[Any] | None,
        writes: bool,
        keys: tuple[tuple[int, set[Any]], ...],
    ) -> None: ...
    def __call__(self, params: dict[str, Any], /) -> Any: ...

class UpdateHook:
    def __init__(self, log: RowLog, touched: dict[str, TouchedRows], other: Callable[[apsw.PreUpdate], None], /) -> None: ...
    def __call__(self, update: apsw.PreUpdate, /) -> None: ...

class Bind:
    def __init__(
        self,
        names: tuple[str, ...],
        checks: tuple[Callable[[Any], Any], ...],
        kinds: bytes,
        other: Callable[[Mapping[str, Any]], list[Any]],
        sent: Callable[[Mapping[str, Any], list[Any]], list[Any]],
        /,
    ) -> None: ...
    def __call__(self, given: Mapping[str, Any], /) -> list[Any]: ...
