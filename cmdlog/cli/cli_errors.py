"""What went wrong, as an operator needs it: message, hint, exit code.

One rule: the exit code goes with the kind of error, never with its text. An error that is not known here is a defect and shows
its traceback.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cmdlog.operator_error import OperatorError
from cmdlog.wal.os_errors import NO_ROOM
from cmdlog.wal.process_limits import limit_reached

if TYPE_CHECKING:
    from replay.errors import RowDifference

WRITE_FAILED: Final = frozenset((errno.EIO, errno.EROFS))
USAGE: Final = 2
DISK_FULL_CODE: Final = 14
WRITE_FAILED_CODE: Final = 15
BROKEN_OFF: Final = 130  # of whatever a signal ended; `cmdlog.cli.signals` knows which one it was


WHAT_TO_DO: Final = {
    errno.ENOSPC: "free space on that volume; nothing acknowledged is lost",
    errno.EDQUOT: "free space, or raise the quota; nothing acknowledged is lost",
    errno.ENOENT: "check the path, and that its volume is mounted",
    errno.ENOTDIR: "check the path: a part of it is a file",
    errno.ELOOP: "a symbolic link is where a file of cmdlog's own belongs; look who put it there, and remove it",
    errno.EEXIST: "choose another path, or look at what is there",
    errno.EACCES: "check the permissions of the path for this user",
    errno.EPERM: "check the permissions of the path for this user",
    errno.EROFS: "the volume is mounted read-only; check the kernel log for why",
    errno.EIO: "the disk or its file system failed; check the kernel log",
    errno.EMFILE: "raise the limit of open files: `ulimit -n`",
}
"""Hints for errors of the operating system that have no message of their own where they arose."""


class CommandFailed(OperatorError):
    """A command that cannot do what it was asked to."""


class CodeMissing(CommandFailed):
    """The application cannot be imported."""

    exit_code = 13


@dataclass(frozen=True, slots=True)
class Stop:
    """The call at which one partition's replay stopped."""

    headline: str
    place: Mapping[str, Any]  # as JSON
    rows: Sequence[RowDifference]


@dataclass(frozen=True, slots=True)
class ShownFailure:
    """An error, ready to be shown."""

    kind: str
    message: str
    hint: str
    exit_code: int
    details: Sequence[str] = ()  # lines below it, where the message has only the first
    stops: Sequence[Stop] = ()  # the calls at which a replay stopped, one of each partition
    place: Mapping[str, Any] | None = None  # the call that the error is about, as JSON


def check_distinct(directories: Sequence[str]) -> None:
    """A directory that is given twice proves nothing twice. Raises: CommandFailed."""
    seen: dict[str, str] = {}
    for directory in directories:
        if (known := seen.setdefault(os.path.realpath(directory), directory)) is not directory:
            names = directory if known == directory else f"{known} and {directory} are the same directory, which"
            raise CommandFailed(f"{names} is given twice", hint="give each node's directory once", exit_code=USAGE)


def explain(error: BaseException) -> ShownFailure | None:
    """The failure that an error means; None for a defect."""
    from cmdlog.node.outcome import CallRefused  # only now: a command that works need not wait for what an error needs

    if isinstance(error, MemoryError):
        error = limit_reached(errno.ENOMEM, "out of memory")
    if isinstance(error, OperatorError):
        return _shown(error)
    kind = type(error).__name__
    if isinstance(error, OSError):
        code = DISK_FULL_CODE if error.errno in NO_ROOM else WRITE_FAILED_CODE if error.errno in WRITE_FAILED else 1
        if not error.strerror:
            return ShownFailure(kind, str(error) or kind, "", code)
        path = file_of(error)
        where = f"{path}: " if path else ""
        return ShownFailure(kind, where + error.strerror, WHAT_TO_DO.get(error.errno or 0, ""), code)
    return ShownFailure(kind, str(error) or kind, "", 1) if isinstance(error, CallRefused) else None


def _shown(error: OperatorError) -> ShownFailure:
    from replay.errors import ReplayError

    message = error.headline or error.kind
    if not isinstance(error, ReplayError):
        return ShownFailure(error.kind, message, error.hint, error.exit_code, error.details)
    if also := ", ".join(str(stop.place.partition) for stop in error.stops[1:]):
        message += f"; also stopped: partition {also}"
    stops = [Stop(stop.headline, stop.place.to_json(), stop.place.rows) for stop in error.stops]
    place = error.place.to_json() if error.place is not None else None
    return ShownFailure(error.kind, message, error.hint, error.exit_code, error.details, stops, place)


def file_of(error: BaseException) -> str:
    """The file that an error of the system is about; of a copy that finds no space the one that is written. "": none is named."""
    if not isinstance(error, OSError):
        return ""
    written = error.filename2 if error.errno in NO_ROOM | WRITE_FAILED else None
    path = written if written is not None else error.filename
    return os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
