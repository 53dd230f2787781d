"""Direct writes without a thread, by the kernel's queue: Linux AIO, see io_submit(2).

One rule: the kernel has what was submitted, and completes it when the process is killed. Its end takes the time of the processor
that submitted it, a third of a block's: where it was built, `write_thread` is faster.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import struct
import sys
from typing import Final

from cmdlog.wal.os_errors import raise_write_error
from cmdlog.wal.system.direct_write import DIRECT_BYTES_MAX, DirectFile


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


def open_aio_writer() -> AioWriter | None:
    """None where this system has none."""
    numbers = _NUMBERS.get(platform.machine())
    if not sys.platform.startswith("linux") or sys.maxsize < 1 << 32 or numbers is None:
        return None
    try:
        return AioWriter(_Calls(*numbers))
    except OSError:
        return None


class AioWriter:
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
        self._file = DirectFile()
        self._announces = (0, 0)  # IOCB_FLAG_RESFD or nothing, and the eventfd
        self._ended = True

    def can_start(self, path: str, size: int) -> bool:
        return self._file.can_write(path, size)

    def start(self, data: bytes, offset: int) -> None:
        size = len(data)
        self._file.begin_write(data, offset)
        self._memory[:size] = data
        _IOCB.pack_into(self._request, 0, 0, 0, 0, _PWRITE, 0, self._file.fd, self._address, size, offset, 0, *self._announces)
        self._ended = self._call(*self._submit) != 1
        if self._ended:  # refused
            _EVENT.pack_into(self._event, 0, 0, 0, -errno.EINVAL, 0)
            if self._announces[0]:
                os.eventfd_write(self._announces[1], 1)

    def notify(self, eventfd: int) -> None:
        before, self._announces = self._announces, (_RESFD, os.dup(eventfd))
        if before[0]:
            os.close(before[1])

    def has_ended(self) -> bool:
        if not self._ended:
            self._ended = self._reap(self._look) == 1
        return self._ended

    def finish(self) -> bool:
        waited = not self.has_ended()
        if waited:
            self._reap(self._wait)
        self._file.conclude(_EVENT.unpack_from(self._event)[2])
        return waited

    def close(self) -> None:
        self._call(self._calls.destroy, self._queue)  # returns when nothing is under way
        self._file.close()
        (announces, eventfd), self._announces = self._announces, (0, 0)
        if announces:
            os.close(eventfd)

    def _reap(self, call: tuple[object, ...]) -> int:
        """How many events there were: 0 or 1. A signal in between is no answer."""
        while (count := int(self._call(*call))) < 0:
            if (number := ctypes.get_errno()) != errno.EINTR:
                raise_write_error(OSError(number, os.strerror(number)), self._file.action, self._file.path)
        return count
