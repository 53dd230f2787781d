"""Where tests make their directories: in memory, where there is room, for the disk is half of the time of a node that is opened.

What a kill leaves is the same in memory: what a process has written survives it on any file system. What only a disk can say is
asked on the disk: by tests of `cmdlog.wal` (`tests/wal/conftest.py`), and by the long suites.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

MEMORY: Final = Path("/dev/shm")
ROOM_BYTES: Final = 4 << 30  # several times what the tests of one run hold at a time
ROOT: Final = "PYTEST_DEBUG_TEMPROOT"  # the folder in which pytest makes those of its runs


def choose_root() -> None:
    """Directories of this run, and of its processes, are made in memory, if there is room; an operator's choice is kept."""
    if has_room():
        os.environ.setdefault(ROOT, str(MEMORY))


def has_room() -> bool:
    """Whether memory has a file system of enough bytes, from which programs may run, and so many of them are free."""
    try:
        found = os.statvfs(MEMORY)
        available = Path("/proc/meminfo").read_text().partition("MemAvailable:")[2].split()
    except OSError:
        return False
    free = min(found.f_bavail * found.f_frsize, int(available[0]) << 10 if available else 0)
    return free >= ROOM_BYTES and not found.f_flag & os.ST_NOEXEC
