"""The gate before a state file: while it is shut, new readers wait.

One rule: SQLite empties the write-ahead log of a state file only in a moment without readers; readers that overlap leave none.
So the site shuts the gate once the log is long, the readers that are there end by their own limits, the site empties the
log, and opens the gate. Shut means locked (`cmdlog.file_lock`): a site that is killed leaves no gate shut.
"""

from __future__ import annotations

import contextlib
import os
from typing import IO

from cmdlog.file_lock import LockHeld, is_held, open_locked


class ReaderGate:
    """The site's hand on the gate; open at first."""

    def __init__(self, path: str) -> None:
        self._path = _gate_path(path)
        self._shut: IO[bytes] | None = None

    def shut(self) -> None:
        """As soon as possible: a reader may be looking at it, and then the next attempt succeeds."""
        if self._shut is None:
            with contextlib.suppress(LockHeld, OSError):  # a volume without room for the file: the log grows on
                self._shut = open_locked(self._path)

    def open(self) -> None:
        if self._shut is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            self._shut.close()
            self._shut = None


def is_shut(path: str) -> bool:
    """Whether a reader of the state file has to wait."""
    return is_held(_gate_path(path))


def _gate_path(path: str) -> str:
    return f"{path}.gate"
