"""Whether work gets on, as seen by what waits for it: in another thread, or in the parent process.

One rule: progress is counted where a piece of work is done, never by a timer, so that what hangs shows none. A child process
shares a number with its parent, in memory that is there before anything of the application is imported (and that also takes the
error which ended it). A parent that waits for a child follows that number, and so passes it on: to its own parent, and to the
work of which its thread does a part.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Final

ERROR_BYTES_MAX: Final = 4096
_COUNT: Final = struct.Struct("<Q")  # after the error
_shared: list[mmap.mmap] = []  # of this process, if it is a child


class _Hearing(threading.local):
    """Who hears of this thread's work."""

    hear: Callable[[], None] | None = None


_hearing = _Hearing()


def count_progress() -> None:
    """A piece of work is done. Any thread; a count that two threads make at once is one."""
    for memory in _shared:
        _COUNT.pack_into(memory, ERROR_BYTES_MAX, _COUNT.unpack_from(memory, ERROR_BYTES_MAX)[0] + 1)
    if _hearing.hear is not None:
        _hearing.hear()


@contextlib.contextmanager
def hear_progress(hear: Callable[[], None]) -> Iterator[None]:
    """Within it, `hear` is called at each progress of this thread; nobody else hears of it meanwhile."""
    before, _hearing.hear = _hearing.hear, hear
    try:
        yield
    finally:
        _hearing.hear = before


class Followed:
    """A number that others count up. For one thread."""

    __slots__ = ("_read", "_seen")

    def __init__(self, read: Callable[[], int]) -> None:
        self._read, self._seen = read, read()

    def follow(self) -> None:
        """Counts a progress here if there was one."""
        seen, self._seen = self._seen, self._read()
        if self._seen != seen:
            count_progress()


def claim_progress(descriptor: int) -> None:
    """In a child: from here on `count_progress` is seen by the parent, which made the memory."""
    os.truncate(descriptor, ERROR_BYTES_MAX + _COUNT.size)
    _shared[:] = [mmap.mmap(descriptor, ERROR_BYTES_MAX + _COUNT.size)]


def read_progress(descriptor: int) -> int:
    """What the child has counted so far; 0 before it began, and when it is closed."""
    if descriptor < 0:
        return 0
    found = os.pread(descriptor, _COUNT.size, ERROR_BYTES_MAX)
    return int.from_bytes(found, "little")
