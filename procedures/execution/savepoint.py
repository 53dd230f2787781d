"""`with tx.savepoint():` a block whose changes are rolled back if it raises, and the call continues.

SQLite keeps savepoints as a stack, above those of the executor (`batch`, `call`). One that a call leaves open, in a generator
that is not run to its end, is gone with the call: the executor ends its own savepoint or the transaction, and with it all above.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self


class Savepoint:
    """One block; entered once."""

    __slots__ = ("_control", "_open")

    def __init__(self, control: Callable[[str], None], open_savepoints: list[Savepoint]) -> None:
        """
        Args:
            control: runs SQL for transactions; raises when the call is over.
            open_savepoints: of the call, the innermost last.
        """
        self._control = control
        self._open = open_savepoints

    def __enter__(self) -> Self:
        if self in self._open:
            raise RuntimeError("a savepoint is entered once; call tx.savepoint() for another")
        self._control(f"SAVEPOINT block{len(self._open)}")
        self._open.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        depth = len(self._open) - 1
        if not self._open or self._open[-1] is not self:
            raise RuntimeError("savepoints end in the reverse order of their beginning")
        if kind is not None:
            self._control(f"ROLLBACK TO block{depth}")
        self._control(f"RELEASE block{depth}")
        self._open.pop()
