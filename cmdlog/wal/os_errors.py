"""What an error of the operating system means, in the classes that `cmdlog.wal.errors` documents.

One rule: the file is named, and a limit of this process with its value. Nothing is decided by the text of an error.

What `cmdlog.wal.files` does to a disk: errors of space become `DiskFull`, of the device `WriteFailed`, of reading `Corrupt` (an
unreadable sector is a damaged one). Those of the caller (missing, exists, permission, too many open files) stay `OSError`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator
from typing import Final, NoReturn

import orjson

from cmdlog.wal.errors import Corrupt, DiskFull, FileTooLarge, Locked, Unusable, WalError, WriteFailed
from cmdlog.wal.process_limits import LIMITS, limit_reached

NO_ROOM: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
FAILED: Final = frozenset((errno.EIO, errno.EROFS, errno.ENODEV, errno.ESTALE, errno.ETIMEDOUT))
CALLERS: Final = frozenset((
    errno.ENOENT, errno.EEXIST, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY,
    errno.ENAMETOOLONG, errno.ELOOP, errno.EMFILE, errno.ENFILE, errno.EXDEV,
))  # fmt: skip
UNREADABLE: Final = frozenset((errno.EIO, errno.EBADMSG, errno.EUCLEAN))  # bad sector; checksum, structure of file systems


def raise_write_error(error: OSError, action: str, path: str) -> NoReturn:
    """Raises what `error` means for a change of the disk: DiskFull, WriteFailed, or itself with the path named."""
    if error.errno in NO_ROOM:
        raise DiskFull(f"{action} {path}: {error.strerror}") from error
    if error.errno not in CALLERS:
        hint = "the volume is mounted read-only; check the kernel log for why" if error.errno == errno.EROFS else ""
        raise WriteFailed(f"{action} {path}: {error.strerror}", hint=hint) from error
    if error.filename is None:
        error.filename = path
    try:
        raise error
    finally:
        del error  # a frame that holds what it raised is freed late, and with it all that its callers hold: a whole segment, say


@contextlib.contextmanager
def write_errors(action: str, path: str) -> Iterator[None]:
    """What goes wrong in the block is raised as `raise_write_error` does it."""
    try:
        yield
    except OSError as error:
        raise_write_error(error, action, path)


def raise_read_error(error: OSError, path: str, offset: int) -> NoReturn:
    """Raises Corrupt for what the device cannot read, the error itself with the path named for the rest."""
    if error.errno in UNREADABLE:
        raise Corrupt(f"unreadable ({error.strerror})", path=path, offset=offset) from error
    error.filename = path
    try:
        raise error
    finally:
        del error  # as above


def locked(path: str, owner: bytes) -> Locked:
    """The error that names who holds `path`."""
    try:
        record = orjson.loads(owner)
        who = f"process {record['pid']} on {record['host']}, which started at {record['started']}"
    except (orjson.JSONDecodeError, KeyError, TypeError):
        who = "a process that left no owner record yet"
    return Locked(f"{path} is locked by {who}")


def wal_error(error: WalError | OSError, what: str) -> WalError:
    """The error itself, or what the system refused while `what`."""
    return error if isinstance(error, WalError) else WalError(f"{what}: {error}")


def named_error(error: OSError, directory: str) -> WalError:
    """The documented error; `directory` is named where the error names no file. Of a copy the file that is written is meant."""
    written = error.filename2 if error.filename2 is not None else error.filename
    path = os.fsdecode(written) if isinstance(written, str | bytes | os.PathLike) else directory
    why = error.strerror or str(error)
    if error.errno == errno.EFBIG:
        return FileTooLarge(f"{path} cannot be written: {why}{file_limit()}")
    if error.errno in NO_ROOM:
        return DiskFull(f"{path} cannot be written: {why}{file_limit()}")
    if error.errno in LIMITS:
        return limit_reached(error.errno, f"{path}: {why}")
    if error.errno in FAILED:
        return WriteFailed(f"{path} cannot be written: {why}")
    return Unusable(f"{path} cannot be used: {why}")


def no_room(what: str, file_bytes: int, place: str) -> DiskFull:
    """The error of a file of so many bytes that cannot be made: the limit of files where that is the cause, else the volume."""
    if not _may_have(file_bytes):
        return FileTooLarge(f"{what}{file_limit()}")
    return DiskFull(f"{what}, which {place} has not got")


def check_file_size(directory: str, segment_bytes: int) -> None:
    """Raises: FileTooLarge, when this process may not write a whole segment of the log."""
    if not _may_have(segment_bytes):
        raise FileTooLarge(f"{directory}: a segment of the log takes {segment_bytes:,} bytes (segment_bytes){file_limit()}")


def _may_have(file_bytes: int) -> bool:
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return soft == resource.RLIM_INFINITY or file_bytes <= soft


def file_limit() -> str:
    """The limit on the size of a file, for an error that it may have caused; "" without one."""
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return "" if soft == resource.RLIM_INFINITY else f"; a file may have {soft:,} bytes (RLIMIT_FSIZE, `ulimit -f`)"
