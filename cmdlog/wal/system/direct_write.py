"""A write that becomes durable while its caller does something else: one `pwrite` of a file opened with O_DIRECT and O_DSYNC.

One rule: never needed. Where kernel, processor or file system have no such thing, `can_start` says so, and the caller writes
as always; what is refused later `finish` writes.

`pwrite` to such a file is `pwrite` and `fdatasync` in one: what has ended is durable. See open(2) "O_DIRECT". Who does it
meanwhile are `write_thread` and `aio_writer`.
"""

from __future__ import annotations

import errno
import os
from typing import Final, Protocol

from cmdlog.wal.errors import ShortWrite
from cmdlog.wal.os_errors import raise_write_error, write_errors

DIRECT_BYTES_MAX: Final = 64 << 10  # of one write: a longer one is worth one of the log's threads


class DirectWriter(Protocol):
    """One write at a time. Not thread-safe."""

    def can_start(self, path: str, size: int) -> bool:
        """Whether a write of so many bytes to this file can be started; asked before each."""
        ...

    def start(self, data: bytes, offset: int) -> None:
        """Starts to make `data` durable at `offset` of the file that was asked for, both multiples of 4096.

        No other write to the file may take place until `finish`: one to the same page would spoil both. On return it is on its
        way, and the kernel completes it when the process is killed.
        """
        ...

    def notify(self, eventfd: int) -> None:
        """From now on the end of every write is announced there, at the latest when the writer is closed.

        The writer keeps a descriptor of its own: the caller's may be closed, and its number be that of a file, before that.
        Raises: OSError, when there can be none.
        """
        ...

    def has_ended(self) -> bool:
        """Whether `finish` would not wait."""
        ...

    def finish(self) -> bool:
        """Durable on return; whether it had to be waited for. Raises: ShortWrite, DiskFull, WriteFailed; part may be written."""
        ...

    def close(self) -> None:
        """Waits for what was started; says nothing about its success."""
        ...


class DirectFile:
    """The open file of a writer, and what its result means."""

    def __init__(self) -> None:
        self.fd, self._path = -1, ""
        self._data, self._offset = b"", 0  # of the write under way
        self._usable = True

    def can_write(self, path: str, size: int) -> bool:
        """Whether so much can be written directly to this file, which is open then."""
        return self._usable and size <= DIRECT_BYTES_MAX and self._open(path)

    def begin_write(self, data: bytes, offset: int) -> None:
        """This is to be written."""
        self._data, self._offset = data, offset

    @property
    def action(self) -> str:
        """What is done, for an error."""
        return f"write at offset {self._offset} of"

    @property
    def path(self) -> str:
        return self._path

    def conclude(self, result: int) -> None:
        """The write took so many bytes, or failed with the negative number of an error. Raises as `DirectWriter.finish` does."""
        if result == -errno.EINVAL:  # a refusal: nothing is written
            self._usable = False
            result = self._write_ordinarily()
        if result < 0:
            raise_write_error(OSError(-result, os.strerror(-result)), self.action, self._path)
        if result != len(self._data):
            raise ShortWrite(f"{self.action} {self._path} took {result} of {len(self._data)} bytes")

    def close(self) -> None:
        """Nothing is written any more."""
        self._usable = False
        self._close_file()

    def _open(self, path: str) -> bool:
        if self._path == path:
            return True
        self._close_file()
        try:
            self.fd = os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_DSYNC | os.O_CLOEXEC)
        except OSError as error:
            self._usable = error.errno != errno.EINVAL  # no direct I/O; whatever else it is, the ordinary way will say it
            return False
        self._path = path
        return True

    def _write_ordinarily(self) -> int:
        with write_errors(self.action, self._path):
            fd = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                written = os.pwrite(fd, self._data, self._offset)
                os.fdatasync(fd)
            finally:
                os.close(fd)
        return written

    def _close_file(self) -> None:
        fd, self.fd, self._path = self.fd, -1, ""
        if fd >= 0:
            os.close(fd)
