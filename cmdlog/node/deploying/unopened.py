"""What `cmdlog.open` gives to a module that is loaded from a log: nothing is open, and no call is made.

One rule: the module may keep it and hand it on, and close it; where it uses it, the module ends (`procedures.source.loading`).
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, NoReturn

from procedures.source.loading import ProgramBegins


class Unopened:
    """Stands for an `Embedded`."""

    def close(self) -> None:
        """Nothing is open."""

    def __getattr__(self, name: str) -> Any:
        raise ProgramBegins(name)

    def __enter__(self) -> NoReturn:
        raise ProgramBegins("with")

    def __exit__(self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        """Never reached; a `with` statement asks for it first."""
