"""What a fault of the machine means to an operator: a full or failed disk, a file that cannot be used, a limit of the process.

One rule: an error that is not the machine's fault stays what it is, a defect or an outcome.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final

import apsw

from cmdlog.wal.errors import DiskFull, WriteFailed
from cmdlog.wal.os_errors import file_limit, named_error
from cmdlog.wal.process_limits import limit_reached, no_thread
from procedures.errors import EnvironmentFault
from procedures.statements.call_state import fault_kind

SHARED_INDEX_BYTES: Final = 32 << 10  # by which the index of a write-ahead log grows
FILES_OF_SQLITE: Final = 8  # that were closed again when SQLite gave up: a state, its write-ahead log, its index, …


def named_fault(error: BaseException, path: str) -> BaseException:
    """The documented error that names the file (`path`, where the error names none); the error itself, if it is no fault."""
    if isinstance(error, OSError):
        return named_error(error, path)
    if isinstance(error, RuntimeError) and _raised_by_thread(error.__traceback__):
        return no_thread(path)
    kind = error.kind if isinstance(error, EnvironmentFault) else fault_kind(error)
    if kind == "disk_full":
        return DiskFull(f"{path} cannot be written: {error}")
    if kind == "memory" and not isinstance(error, EnvironmentFault):  # that one names the call
        return limit_reached(errno.ENOMEM, f"{path}: out of memory")
    if kind != "io":
        return error
    if isinstance(error, apsw.CantOpenError):
        if files_left() < FILES_OF_SQLITE:  # first: `path` may be the directory, which cannot be opened as a file
            return limit_reached(errno.EMFILE, f"{path}: {error}")
        if (refused := _why_not_opened(path)) is not None:
            return named_error(refused, path)
    elif _is_full(path):
        return DiskFull(f"{path} cannot be written: {error}")
    return WriteFailed(f"{path} cannot be written: {error}{file_limit()}")


def _is_full(path: str) -> bool:
    """SQLite calls it an I/O error when its shared index cannot grow; whether the volume is full decides what it is."""
    with contextlib.suppress(OSError):
        volume = os.statvfs(path if os.path.isdir(path) else os.path.dirname(path) or ".")
        return volume.f_bavail * volume.f_frsize < SHARED_INDEX_BYTES
    return False


@contextlib.contextmanager
def naming_faults(path: str) -> Iterator[None]:
    """What is raised inside is raised as `named_fault` names it."""
    try:
        yield
    except (OSError, RuntimeError, MemoryError, apsw.Error, EnvironmentFault) as error:
        named = named_fault(error, path)
        if named is error:
            raise
        raise named from error


def files_left() -> int:
    """How many more files this process may open, as far as the system reports."""
    try:
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0] - len(os.listdir("/proc/self/fd"))
    except OSError:
        return FILES_OF_SQLITE


def _why_not_opened(path: str) -> OSError | None:
    """What the system reports of the files that SQLite opens; SQLite reports only that it could not."""
    try:
        for name in (path, f"{path}-wal", f"{path}-shm"):
            if os.path.lexists(name):
                Path(name).open("r+b").close()
        os.close(os.open(os.path.dirname(path) or ".", os.O_RDONLY))
    except OSError as error:
        return error
    return None


def _raised_by_thread(trace: TracebackType | None) -> bool:
    """Whether it was raised where a thread is started: Python has no class for that."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code is threading.Thread.start.__code__
