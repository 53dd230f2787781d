"""The right to write a state file: one process has it at a time, a site or a recovery.

One rule: a node that was killed may leave a site at its last system call. Nothing opens a state file to write before that one
has let go of the lock.
"""

from __future__ import annotations

import os
from typing import Final

from cmdlog.file_lock import LockHeld, is_held, open_locked
from cmdlog.wal.errors import Locked

LOCK_WAIT_S: Final = 10.0  # for a predecessor that is just being ended


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
