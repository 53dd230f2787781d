"""A write that becomes durable while its caller does something else, without a thread: Linux AIO on a file opened for direct I/O.

One rule: never needed. Where kernel, processor or file system have no such thing, `can_start` says so, and the caller writes
as always; what is refused later `finish` writes.

`io_submit` of a write with O_DIRECT and O_DSYNC hands the request to the device and returns; the completion says that it is
durable, which is `pwrite` and `fdatasync` in one. A thread that sits in `fdatasync` loses its processor's caches, and one more
thread costs two switches; here the processor works on. The kernel completes what was submitted when the process is killed.
See io_submit(2), open(2) "O_DIRECT".
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import struct
import sys
from typing import Final, Protocol

from cmdlog.wal.errors import ShortWrite
from cmdlog.wal.os_errors import raise_write_error, write_errors

DIRECT_BYTES_MAX: Final = 64 << 10  # of one write: a longer one is worth a thread


class DirectWriter(Protocol):
    """One write at a time. Not thread-safe."""

    def can_start(self, path: str, size: int) -> bool:
        """Whether a write of so many bytes to this file can be started; asked before each."""
        ...

    def start(self, data: bytes, offset: int) -> None:
        """Starts to make `data` durable at `offset` of the file that was asked for, both multiples of 4096.

        No other write to the file may take place until `finish`: one to the same page would spoil both.
        """
        ...

    def notify(self, eventfd: int) -> None:
        """From now on the end of every write is announced there."""
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


class _Calls:
    """Numbers of the system calls, which the C library does not wrap."""

    def __init__(self, setup: int, destroy: int, submit: int, getevents: int) -> None:
        self.setup, self.destroy, self.submit, self.getevents = map(ctypes.c_long, (setup, destroy, submit, getevents))


_NUMBERS: Final = {"x86_64": (206, 207, 209, 208), "aarch64": (0, 1, 2, 4)}
_PWRITE: Final = 1  # IOCB_CMD_PWRITE
_RESFD: Final = 1  # IOCB_FLAG_RESFD
_IOCB: Final = struct.Struct("<QIIHhIQQqQII")  # data, key, flags, opcode, priority, fd, buffer, size, offset, -, flags, eventfd
_EVENT: Final = struct.Struct("<QQqq")  # data, iocb, result, -
_ONE: Final = ctypes.c_long(1)
_NONE: Final = ctypes.c_long(0)


def open_direct_writer() -> DirectWriter | None:
    """None where this system has none."""
    numbers = _NUMBERS.get(platform.machine())
    if not sys.platform.startswith("linux") or sys.maxsize < 1 << 32 or numbers is None:
        return None
    try:
        return _AioWriter(_Calls(*numbers))
    except OSError:
        return None


class _AioWriter:
    """The kernel's queue of one, and memory at a page's boundary, as direct I/O wants it."""

    def __init__(self, calls: _Calls) -> None:
        self._calls = calls
        self._call = ctypes.CDLL(None, use_errno=True).syscall
        self._call.restype = ctypes.c_long
        self._queue = ctypes.c_ulong(0)
        if self._call(calls.setup, _ONE, ctypes.byref(self._queue)) != 0:
            raise OSError(ctypes.get_errno(), "io_setup")
        self._memory = mmap.mmap(-1, DIRECT_BYTES_MAX)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._request, self._event = ctypes.create_string_buffer(_IOCB.size), ctypes.create_string_buffer(_EVENT.size)
        self._requests = ctypes.c_void_p(ctypes.addressof(self._request))
        now = ctypes.create_string_buffer(16)  # a timespec of zero
        self._submit = (calls.submit, self._queue, _ONE, ctypes.byref(self._requests))
        self._look = (calls.getevents, self._queue, _NONE, _ONE, self._event, now)
        self._wait = (calls.getevents, self._queue, _ONE, _ONE, self._event, ctypes.c_void_p(None))
        self._fd, self._path = -1, ""
        self._size = self._offset = 0
        self._announces = (0, 0)  # IOCB_FLAG_RESFD or nothing, and the eventfd
        self._usable = self._ended = True

    def can_start(self, path: str, size: int) -> bool:
        return self._usable and size <= DIRECT_BYTES_MAX and self._open(path)

    def start(self, data: bytes, offset: int) -> None:
        self._size, self._offset = len(data), offset
        self._memory[: self._size] = data
        _IOCB.pack_into(self._request, 0, 0, 0, 0, _PWRITE, 0, self._fd, self._address, self._size, offset, 0, *self._announces)
        self._ended = self._call(*self._submit) != 1
        if self._ended:  # refused
            _EVENT.pack_into(self._event, 0, 0, 0, -errno.EINVAL, 0)
            if self._announces[0]:
                os.eventfd_write(self._announces[1], 1)

    def notify(self, eventfd: int) -> None:
        self._announces = (_RESFD, eventfd)

    def has_ended(self) -> bool:
        if not self._ended:
            self._ended = self._reap(self._look) == 1
        return self._ended

    def finish(self) -> bool:
        waited = not self.has_ended()
        if waited:
            self._reap(self._wait)
        result = _EVENT.unpack_from(self._event)[2]
        if result == -errno.EINVAL:  # a refusal: nothing is written
            self._usable = False
            self._write_ordinarily()
        elif result < 0:
            raise_write_error(OSError(-result, os.strerror(-result)), self._action, self._path)
        else:
            self._check_whole(result)
        return waited

    def close(self) -> None:
        self._usable = False
        self._call(self._calls.destroy, self._queue)  # returns when nothing is under way
        self._close_file()

    @property
    def _action(self) -> str:
        return f"write at offset {self._offset} of"

    def _open(self, path: str) -> bool:
        if self._path == path:
            return True
        self._close_file()
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_DSYNC | os.O_CLOEXEC)
        except OSError as error:
            self._usable = error.errno != errno.EINVAL  # no direct I/O; whatever else it is, the ordinary way will say it
            return False
        self._path = path
        return True

    def _reap(self, call: tuple[object, ...]) -> int:
        """How many events there were: 0 or 1. A signal in between is no answer."""
        while (count := int(self._call(*call))) < 0:
            if (number := ctypes.get_errno()) != errno.EINTR:
                raise_write_error(OSError(number, os.strerror(number)), self._action, self._path)
        return count

    def _write_ordinarily(self) -> None:
        with write_errors(self._action, self._path):
            fd = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                written = os.pwrite(fd, self._memory[: self._size], self._offset)
                os.fdatasync(fd)
            finally:
                os.close(fd)
        self._check_whole(written)

    def _check_whole(self, written: int) -> None:
        if written != self._size:
            raise ShortWrite(f"{self._action} {self._path} took {written} of {self._size} bytes")

    def _close_file(self) -> None:
        fd, self._fd, self._path = self._fd, -1, ""
        if fd >= 0:
            os.close(fd)
