"""The call that runs, as its statements see it, and failures of the machine: never an outcome of a logged call, because another
replica would not see them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import apsw

from procedures.errors import FaultKind, RowRefused
from procedures.raised_errors import is_raised

_KINDS: tuple[tuple[type[BaseException], FaultKind], ...] = (
    (apsw.FullError, "disk_full"),
    (apsw.NoMemError, "memory"),
    (MemoryError, "memory"),
    (RecursionError, "recursion"),
    (apsw.InterruptError, "interrupted"),
    (KeyboardInterrupt, "interrupted"),
    (apsw.IOError, "io"),
    (apsw.CorruptError, "io"),
    (apsw.NotADBError, "io"),
    (apsw.CantOpenError, "io"),
    (apsw.ReadOnlyError, "io"),
    (apsw.PermissionsError, "io"),
    (apsw.ProtocolError, "io"),
    (apsw.BusyError, "io"),
    (apsw.LockedError, "io"),
    (apsw.NoLFSError, "io"),
)


def fault_kind(error: BaseException) -> FaultKind | None:
    """What failed in the machine; None if the error is the procedure's own."""
    for kind, name in _KINDS:
        if is_raised(error, kind):
            return name
    return None


class SiteFailed(BaseException):
    """The machine failed earlier in this batch; the rest of it must not touch SQLite, which may have rolled back already."""


class CallState:
    """The call that runs now, of which batch; shared by the executor and its transactions.

    Invariant: `at` is the position of the running call, `wrote` that of the last call that began to change rows.
    """

    __slots__ = ("at", "batches", "fault", "fault_at", "millis_of", "partition", "pid", "refused", "txn_ids", "undone", "wrote")

    def __init__(self, partition: int, millis_of: Callable[[int], int]) -> None:
        self.partition = partition
        self.millis_of = millis_of
        self.pid = os.getpid()  # that opened the state: connections of SQLite are of one process
        self.at = -1
        self.batches = 0  # that have begun
        self.wrote = -1
        self.txn_ids: Sequence[int] = ()
        self.fault: BaseException | None = None  # a failure of the machine that passed through tx, even if swallowed later
        self.fault_at = -1
        self.undone = False  # SQLite took something back in this batch: a statement that failed, a call that was rolled back
        self.refused: list[RowRefused] = []  # rows of the running call that may not be: it fails, even if it caught that

    def begin_calls(self, txn_ids: Sequence[int]) -> None:
        self.txn_ids = txn_ids
        self.batches += 1
        self.refused.clear()
        self.at = self.wrote = -1
        self.fault = None
        self.undone = False

    @property
    def call(self) -> tuple[int, int]:
        """The number of the call that runs, by this object's count: no two have the same."""
        return self.batches, self.at

    def note_fault(self, error: BaseException) -> None:
        if self.fault is None:
            self.fault, self.fault_at = error, self.at

    def raise_fault(self, error: BaseException) -> None:
        """Raises what a call raised if that, or what went through its `tx` before, is a failure of the machine."""
        if is_raised(error, SiteFailed) or fault_kind(error) is not None or self.fault is not None:
            self.note_fault(error)
            raise error
