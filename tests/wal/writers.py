"""Direct writers of a test: files of zeros, and what skips where there are none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cmdlog.wal.system.direct_write import DirectWriter
from tests.skips import NO_DIRECT_WRITES

PAGE = 4096
FILE_BYTES = 64 * PAGE


def zeros(path: Path, size: int = FILE_BYTES) -> str:
    """A file whose blocks are there."""
    path.write_bytes(bytes(size))
    fd = os.open(path, os.O_RDWR)
    os.fsync(fd)
    os.close(fd)
    return str(path)


def start_at(writer: DirectWriter, path: str, data: bytes, offset: int) -> None:
    """Starts, or skips the test: its folder may be on a file system without direct I/O."""
    if not writer.can_start(path, len(data)):
        pytest.skip(NO_DIRECT_WRITES)
    writer.start(data, offset)
