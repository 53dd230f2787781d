"""A write that becomes durable while its caller does something else: one `pwrite` to a file opened with O_DIRECT and O_DSYNC, by
a thread that is no Python thread and never waits for the interpreter's lock.

One rule: never needed. Where it was not built, or the file system has no such writes, `start` is False, or there is no writer
at all, and the caller writes and syncs; what the kernel refuses later `finish` writes.

`pwrite` to such a file is `pwrite` and `fdatasync` in one: what has ended is durable. See open(2) "O_DIRECT".
"""

from __future__ import annotations

import errno
import os
from typing import Any, Final, Protocol

from cmdlog.wal.errors import ShortWrite
from cmdlog.wal.native import steps
from cmdlog.wal.os_errors import raise_write_error, write_errors

DIRECT_BYTES_MAX: Final = 64 << 10  # of one write: a longer one is worth one of the log's threads


class DirectWriter(Protocol):
    """One write at a time. Not thread-safe."""

    def start(self, path: str, data: bytes, offset: int) -> bool:
        """Starts to make `data` durable at `offset` of the file, both multiples of 4096. False, and nothing is started, where the
        file has no such writes, or it is too long for one.

        No other write to the file may take place until `finish`: one to the same page would spoil both. On return it is about to
        enter the kernel, which completes it when the process is killed.
        """
        ...

    def finish(self) -> bool:
        """Durable on return; whether it had to be waited for. Raises: ShortWrite, DiskFull, WriteFailed; part may be written."""
        ...

    def close(self) -> None:
        """Waits for what was started, whether it succeeds or fails."""
        ...


def open_write_thread() -> WriteThread | None:
    """None where it was not built, or no thread can be started."""
    try:
        return None if steps is None else WriteThread(steps.WriteThread(DIRECT_BYTES_MAX))
    except OSError:
        return None


class WriteThread:
    """A `DirectWriter`. A state that executes a block meanwhile is not ahead of the log after a kill, and need not be rebuilt."""

    def __init__(self, thread: Any) -> None:
        """`thread`: `write_thread.pyi`'s."""
        self._thread = thread
        self._fd, self._path = -1, ""
        self._data, self._offset = b"", 0  # of the write on its way
        self._usable = True

    def start(self, path: str, data: bytes, offset: int) -> bool:
        if not self._usable or len(data) > DIRECT_BYTES_MAX or (self._path != path and not self._open(path)):
            return False
        self._data, self._offset = data, offset
        self._thread.start(self._fd, data, offset)
        return True

    def finish(self) -> bool:
        waited, result = self._thread.finish()
        action = f"write at offset {self._offset} of"
        if result == -errno.EINVAL:  # a refusal: nothing is written
            self._usable = False
            result = self._write_and_sync(action)
        if result < 0:
            raise_write_error(OSError(-result, os.strerror(-result)), action, self._path)
        if result != len(self._data):
            raise ShortWrite(f"{action} {self._path} took {result} of {len(self._data)} bytes")
        return bool(waited)

    def close(self) -> None:
        self._thread.close()
        self._usable = False
        self._close_file()

    def _open(self, path: str) -> bool:
        self._close_file()
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_DSYNC | os.O_CLOEXEC)
        except OSError as error:
            self._usable = error.errno != errno.EINVAL  # no direct I/O; any other error is met again by the ordinary write
            return False
        self._path = path
        return True

    def _write_and_sync(self, action: str) -> int:
        with write_errors(action, self._path):
            fd = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                written = os.pwrite(fd, self._data, self._offset)
                os.fdatasync(fd)
            finally:
                os.close(fd)
        return written

    def _close_file(self) -> None:
        fd, self._fd, self._path = self._fd, -1, ""
        if fd >= 0:
            os.close(fd)
