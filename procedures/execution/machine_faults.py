"""Which exceptions are the machine's: never an outcome of a logged call, because another replica would not see them."""

from __future__ import annotations

import apsw

from procedures.errors import FaultKind
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
