"""Temporary folders of a job, and the removal of those whose process died.

One rule: a folder is removed when no process holds its lock. The lock ends with its process, whatever ended that.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
import time
from typing import IO, Final

from cmdlog.file_lock import FOREVER, LockHeld, lock, open_locked

PREFIX: Final = "cmdlog-spark-"
LOCK: Final = "lock"
YOUNG_S: Final = 60.0  # between a folder and the lock in it nothing takes that long


def make_scratch() -> str:
    """A new folder that is removed with this process; those of dead processes of this user are removed now."""
    sweep(tempfile.gettempdir())
    folder = tempfile.mkdtemp(prefix=PREFIX)
    atexit.register(_remove, folder, open_locked(os.path.join(folder, LOCK), wait_s=FOREVER))
    return folder


def _remove(folder: str, held: IO[bytes]) -> None:
    with held:
        shutil.rmtree(folder, ignore_errors=True)


def local_folder() -> str | None:
    """Spark's own scratch folder, which is removed with the application even if we are killed."""
    first = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    return first if first and os.path.isdir(first) else None


def sweep(parent: str) -> list[str]:
    """Removes folders that no process holds; their paths."""
    gone = []
    with contextlib.suppress(OSError):
        for entry in sorted(os.scandir(parent), key=lambda entry: entry.name):
            if entry.name.startswith(PREFIX) and entry.is_dir(follow_symlinks=False) and _is_left(entry):
                shutil.rmtree(entry.path, ignore_errors=True)
                gone.append(entry.path)
    return gone


def _is_left(entry: os.DirEntry[str]) -> bool:
    """Ours, and its process has ended. A folder without a lock may be about to get one."""
    stat = entry.stat(follow_symlinks=False)
    if stat.st_uid != os.getuid():
        return False
    try:
        with open(os.path.join(entry.path, LOCK), "rb") as file:
            lock(file)
    except FileNotFoundError:
        return time.time() - stat.st_mtime > YOUNG_S
    except (LockHeld, OSError):
        return False
    return True
