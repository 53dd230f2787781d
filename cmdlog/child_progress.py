"""Whether a child process gets on: a number in memory that it shares with its parent, which looks at it now and then.

One rule: it is counted where work is done, never by a timer, so that its parent sees a process that hangs.
The memory also takes the error that ended the child, and is there before anything of the application is imported.
"""

from __future__ import annotations

import mmap
import os
import struct
from typing import Final

ERROR_BYTES_MAX: Final = 4096
_COUNT: Final = struct.Struct("<Q")  # after the error
_shared: list[mmap.mmap] = []  # of this process, if it is a child


def claim_progress(descriptor: int) -> None:
    """In a child: from here on `count_progress` is seen by the parent, which made the memory."""
    os.truncate(descriptor, ERROR_BYTES_MAX + _COUNT.size)
    _shared[:] = [mmap.mmap(descriptor, ERROR_BYTES_MAX + _COUNT.size)]


def count_progress() -> None:
    """A piece of work is done. Any thread; a count that two threads make at once is one."""
    for memory in _shared:
        _COUNT.pack_into(memory, ERROR_BYTES_MAX, _COUNT.unpack_from(memory, ERROR_BYTES_MAX)[0] + 1)


def read_progress(descriptor: int) -> int:
    """What the child has counted so far; 0 before it began, and when it is closed."""
    if descriptor < 0:
        return 0
    found = os.pread(descriptor, _COUNT.size, ERROR_BYTES_MAX)
    return int.from_bytes(found, "little")
