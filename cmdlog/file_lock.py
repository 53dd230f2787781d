"""Locks between processes: `flock` on an open file.

One rule: a lock ends with the descriptor that holds it, so a killed process leaves none behind. The file itself stays, and what
it holds means nothing to the lock. A fork has a copy of the descriptor, which would hold the lock for as long as the fork lives,
also when the owner has closed it or is dead. So the copy leads to nothing there.

The module lies beside the packages for the reason that `cmdlog.child_process` gives.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import time
from typing import IO, Final, Literal

FOREVER: Final = math.inf
POLL_S: Final = 0.01  # flock(2) has no time limit of its own

# Descriptor -> device and inode of the file that was locked by it. It may be closed since.
_LOCKED: Final[dict[int, tuple[int, int]]] = {}


class LockHeld(Exception):
    """Another process, or another descriptor of this one, holds the lock."""


def lock(file: int | IO[bytes], kind: Literal["exclusive", "shared"] = "exclusive", *, wait_s: float = 0.0) -> None:
    """Locks the open file until it is closed. Raises: LockHeld after `wait_s`; OSError where the file system has no locks."""
    number = file if isinstance(file, int) else file.fileno()
    _LOCKED[number] = _identity(number)  # before the lock: a fork in another thread must not miss it
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
    file = open(path, "ab", opener=_open_here)  # noqa: SIM115 - the caller holds it
    try:
        lock(file, wait_s=wait_s)
    except BaseException:
        file.close()
        raise
    return file


def _open_here(path: str, flags: int) -> int:
    """A symbolic link is no lock file: who can put one there would choose which file of ours it is."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o640)


def is_held(path: str) -> bool:
    """Whether a process has locked the file for itself alone; False where there is none."""
    try:
        with open(path, "rb", opener=_open_here) as file:
            lock(file, "shared")
    except LockHeld:
        return True
    except OSError:
        return False
    return False


def _identity(number: int) -> tuple[int, int]:
    status = os.fstat(number)
    return status.st_dev, status.st_ino


def _leave_to_parent() -> None:
    """In a fork: the numbers stay taken, for who closes them. One that meanwhile belongs to another file is left alone."""
    for number, identity in _LOCKED.items():
        with contextlib.suppress(OSError):  # it is closed
            if _identity(number) == identity:
                nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
                os.dup2(nothing, number, inheritable=False)
                os.close(nothing)
    _LOCKED.clear()


os.register_at_fork(after_in_child=_leave_to_parent)
