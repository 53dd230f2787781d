"""Direct writes by a thread that is no Python thread: it never waits for the interpreter's lock.

One rule: the caller gives the block and works on. The system call, the device's interrupts and the kernel's work at the end of a
write then take another processor's time, and the caller's caches stay its own. A thread of Python would need the lock to begin
and again to end.

`start` returns when the thread is about to enter the kernel, which completes the write when the process is killed: a state that
executes the block meanwhile is not ahead of the log after a kill, and need not be made again.
"""

from __future__ import annotations

from typing import Any

from cmdlog.wal.native import steps
from cmdlog.wal.system.direct_write import DIRECT_BYTES_MAX, DirectFile


def open_write_thread() -> WriteThread | None:
    """None where it was not built, or no thread can be started."""
    try:
        return None if steps is None else WriteThread(steps.WriteThread(DIRECT_BYTES_MAX))
    except OSError:
        return None


class WriteThread:
    """A `DirectWriter`."""

    def __init__(self, thread: Any) -> None:
        """`thread`: `write_thread.pyi`'s."""
        self._thread = thread
        self._file = DirectFile()
        self.has_ended, self.notify = thread.has_ended, thread.notify

    def can_start(self, path: str, size: int) -> bool:
        return self._file.can_write(path, size)

    def start(self, data: bytes, offset: int) -> None:
        self._file.begin_write(data, offset)
        self._thread.start(self._file.fd, data, offset)

    def finish(self) -> bool:
        waited, result = self._thread.finish()
        self._file.conclude(result)
        return bool(waited)

    def close(self) -> None:
        self._thread.close()
        self._file.close()
