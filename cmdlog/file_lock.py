"""Locks between processes: `flock` on an open file.

One rule: a lock ends with the descriptor that holds it, so a killed process leaves none behind. The file itself stays, and what
it holds means nothing to the lock.

The module lies beside the packages for the reason that `cmdlog.child_process` gives.
"""

from __future__ import annotations

import fcntl
import math
import time
from typing import IO, Final, Literal

FOREVER: Final = math.inf
POLL_S: Final = 0.01  # flock(2) has no time limit of its own


class LockHeld(Exception):
    """Another process, or another descriptor of this one, holds the lock."""


def lock(file: int | IO[bytes], kind: Literal["exclusive", "shared"] = "exclusive", *, wait_s: float = 0.0) -> None:
    """Locks the open file until it is closed. Raises: LockHeld after `wait_s`; OSError where the file system has no locks."""
    operation = fcntl.LOCK_EX if kind == "exclusive" else fcntl.LOCK_SH
    if wait_s == FOREVER:
        fcntl.flock(file, operation)
        return
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(file, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise LockHeld from None
            time.sleep(POLL_S)
        else:
            return


def open_locked(path: str, *, wait_s: float = 0.0) -> IO[bytes]:
    """The file, made if need be and locked by this process alone until it is closed. Raises: LockHeld, OSError."""
    file = open(path, "ab")  # noqa: SIM115 - the caller holds it
    try:
        lock(file, wait_s=wait_s)
    except BaseException:
        file.close()
        raise
    return file
