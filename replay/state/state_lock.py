"""Locks beside a state file: the right to write it, and the gate before its readers.

One rule: a lock ends with its process (`cmdlog.file_lock`), so one that is killed leaves nothing locked and no gate shut.

A node that was killed may leave a site at its last system call: nothing opens a state file to write before that one has let go of
the lock. SQLite empties the write-ahead log of a state file only in a moment without readers; readers that overlap leave none. So
the site shuts the gate once the log is long, the readers that are there end by their own limits, the site empties the log, and
opens the gate.
"""

from __future__ import annotations

import contextlib
import os
from typing import IO, Final

from cmdlog.file_lock import LockHeld, is_held, open_locked
from cmdlog.wal.errors import Locked

LOCK_WAIT_S: Final = 10.0  # for a predecessor that is just being ended


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


class StateLock:
    """Held until `close` or the end of the process."""

    def __init__(self, path: str) -> None:
        """Raises: Locked when another process keeps the state file for LOCK_WAIT_S."""
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            self._file = open_locked(_lock_path(path), wait_s=LOCK_WAIT_S)
        except LockHeld:
            raise Locked(f"{path} is still being written by another process; look for a site that did not end") from None

    def close(self) -> None:
        self._file.close()


def is_locked(path: str) -> bool:
    """Whether a process has the right to write the state file."""
    return is_held(_lock_path(path))


def _lock_path(path: str) -> str:
    return f"{path}.lock"
