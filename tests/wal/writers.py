"""Direct writers of a test: files of zeros, and what skips where there are none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

import pytest

from cmdlog.wal.system.write_thread import DirectWriter
from tests.skips import NO_COMPILER, NO_DIRECT_WRITES

PAGE = 4096
FILE_BYTES = 64 * PAGE

W = TypeVar("W", bound=DirectWriter)


def zeros(path: Path, size: int = FILE_BYTES) -> str:
    """A file whose blocks are there."""
    path.write_bytes(bytes(size))
    fd = os.open(path, os.O_RDWR)
    os.fsync(fd)
    os.close(fd)
    return str(path)


def opened(made: W | None, *, built: bool = True) -> W:
    """The writer, or the reason why there is none: of what is `built` by a compiler, that."""
    if made is None:
        pytest.skip(NO_DIRECT_WRITES if built else NO_COMPILER)
    return made


def start_at(writer: DirectWriter, path: str, data: bytes, offset: int) -> None:
    """Starts, or skips the test: its folder may be on a file system without direct I/O."""
    if not writer.can_start(path, len(data)):
        pytest.skip(NO_DIRECT_WRITES)
    writer.start(data, offset)
