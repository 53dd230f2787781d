"""The kernel's queue as a direct writer: what it refuses, what it reports, and what a kill leaves."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cmdlog.wal.errors import DiskFull, WriteFailed
from cmdlog.wal.system.aio_writer import _EVENT, AioWriter, open_aio_writer
from tests.skips import NO_DIRECT_WRITES
from tests.wal.writers import FILE_BYTES, PAGE, opened, start_at, zeros


@pytest.fixture
def writer() -> Iterator[AioWriter]:
    """One that is closed in the end."""
    made = opened(open_aio_writer())
    yield made
    made.close()


def test_a_kernel_that_takes_no_more_gets_an_ordinary_write(
    tmp_path: Path, writer: AioWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that the kernel does not take at all is done by `finish`, and its end is announced all the same."""
    path = zeros(tmp_path / "file")
    eventfd = os.eventfd(0, os.EFD_NONBLOCK)
    writer.notify(eventfd)
    with monkeypatch.context() as patch:
        patch.setattr(writer, "_call", lambda *_arguments: -1)
        start_at(writer, path, b"x" * PAGE, PAGE)
        assert os.eventfd_read(eventfd) == 1
        assert not writer.finish()
    assert Path(path).read_bytes()[PAGE - 1 : 2 * PAGE + 1] == b"\0" + b"x" * PAGE + b"\0"
    os.close(eventfd)


def test_an_error_of_the_disk_is_raised(tmp_path: Path, writer: AioWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    """The completion says it."""
    path = zeros(tmp_path / "file")
    for number, kind in ((errno.EIO, WriteFailed), (errno.ENOSPC, DiskFull)):
        start_at(writer, path, b"x" * PAGE, PAGE)
        original = writer._reap

        def failing(call: tuple[object, ...], number: int = number, original: Callable[..., int] = original) -> int:
            count = original(call)
            if count:
                _EVENT.pack_into(writer._event, 0, 0, 0, -number, 0)
            return count

        with monkeypatch.context() as patch:
            patch.setattr(writer, "_reap", failing)
            with pytest.raises(kind, match=f"offset {PAGE} of {path}"):
                writer.finish()


KILLED = """
import os, signal, sys
from cmdlog.wal.system.aio_writer import open_aio_writer
writer = open_aio_writer()
if writer is None or not writer.can_start(sys.argv[1], 65536):
    sys.exit(7)
writer.start(b"k" * 65536, 4096)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_takes_nothing_that_was_started(tmp_path: Path) -> None:
    """What the kernel was given it completes when the process ends, however it ends."""
    for number in range(8):
        path = zeros(tmp_path / f"file-{number}")
        ended = subprocess.run([sys.executable, "-c", KILLED, path], check=False)
        if ended.returncode == 7:
            pytest.skip(NO_DIRECT_WRITES)
        assert ended.returncode == -signal.SIGKILL
        assert Path(path).read_bytes() == bytes(PAGE) + b"k" * 65536 + bytes(FILE_BYTES - PAGE - 65536)
