"""Full and failing volumes, as an operator needs them: the file that could not be written, not one that was read; what is free.

One rule: whatever layer noticed it (SQLite, Parquet, a copy, the log), the words are the same here and the exit code is 14 or 15.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cmdlog.cli.cli_errors import DISK_FULL_CODE, WRITE_FAILED_CODE, CommandFailed, explain, file_of

UNITS: Final = ("bytes", "kB", "MB", "GB", "TB")


@contextmanager
def writing(path: str) -> Iterator[None]:
    """The command writes `path`, or files in it. Raises: CommandFailed (DiskFull, WriteFailed); any other error as it is."""
    try:
        yield
    except Exception as error:
        failure = explain(error)
        if failure is None or failure.exit_code not in (DISK_FULL_CODE, WRITE_FAILED_CODE):
            raise
        named = file_of(error)
        message = failure.message if named or path in failure.message else f"{path} cannot be written: {failure.message}"
        kind = "DiskFull" if failure.exit_code == DISK_FULL_CODE else "WriteFailed"
        raise CommandFailed(
            f"{message}{_free(named or path)}", hint=failure.hint, exit_code=failure.exit_code, kind=kind
        ) from error


def write_output(path: Path, data: bytes) -> None:
    """Makes or replaces the file that an option names, whole or not at all; a pipe or a device takes the bytes as they come.

    Raises: CommandFailed; WrongDirectory, where the path is a symbolic link to a file: who put it there would choose what is
    replaced.
    """
    from cmdlog.wal.directory.lock import refuse_link
    from cmdlog.wal.files import RealFiles

    target = os.path.abspath(path)
    with writing(target):
        if path.exists() and not path.is_file():
            path.write_bytes(data)
        else:
            refuse_link(target)
            RealFiles().write_file_atomic(target, data)


def _free(path: str) -> str:
    """What is free on the volume of the path, which may have been removed again."""
    while not os.path.exists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    try:
        found = os.statvfs(path)
    except OSError:
        return ""
    return f"; {_size(found.f_bavail * found.f_frsize)} of {_size(found.f_blocks * found.f_frsize)} are free on that volume now"


def _size(size: float) -> str:
    unit = 0
    while size >= 10_000 and unit < len(UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:,.0f} {UNITS[unit]}"
