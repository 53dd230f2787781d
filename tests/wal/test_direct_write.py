"""Writes that are durable when they end, without a thread: the contract, over the real system and the simulated one."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cmdlog.wal.errors import DiskFull, WriteFailed
from cmdlog.wal.files import Files, RealFiles
from cmdlog.wal.system.direct_write import DIRECT_BYTES_MAX, DirectWriter, open_direct_writer
from tests.skips import NO_DIRECT_WRITES
from tests.wal.sim.simfiles import SimFiles

PAGE = 4096
FILE_BYTES = 64 * PAGE


@dataclass(frozen=True, slots=True)
class Place:
    """A file of zeros, and a writer."""

    files: Files
    path: str
    writer: DirectWriter

    def read(self, size: int = FILE_BYTES, offset: int = 0) -> bytes:
        return self.files.open(self.path, read_only=True).pread(size, offset)


def start(place: Place, data: bytes, offset: int) -> None:
    """Starts, or skips the test: the test's folder may be on a file system without direct I/O."""
    start_at(place.writer, place.path, data, offset)


def start_at(writer: DirectWriter, path: str, data: bytes, offset: int) -> None:
    """The same, of any writer."""
    if not writer.can_start(path, len(data)):
        pytest.skip(NO_DIRECT_WRITES)
    writer.start(data, offset)


@pytest.fixture(params=["real", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Every test that asks for it runs over both."""
    files: Files = RealFiles() if request.param == "real" else SimFiles()
    if isinstance(files, SimFiles):
        files.mkdir("/node")
    path = str(tmp_path / "file") if request.param == "real" else "/node/file"
    file = files.open(path, create=True)
    file.pwrite(bytes(FILE_BYTES), 0)
    file.fsync()
    writer = files.open_direct_writer()
    if writer is None:
        pytest.skip(NO_DIRECT_WRITES)
    yield Place(files, path, writer)
    writer.close()


def test_what_was_started_is_there_when_it_is_finished(place: Place) -> None:
    """Writes land at their offsets, whole, and nothing else changes."""
    start(place, b"a" * PAGE, 2 * PAGE)
    place.writer.finish()
    start(place, b"b" * 2 * PAGE, 5 * PAGE)
    place.writer.finish()
    expected = bytearray(FILE_BYTES)
    expected[2 * PAGE : 3 * PAGE], expected[5 * PAGE : 7 * PAGE] = b"a" * PAGE, b"b" * 2 * PAGE
    assert place.read() == bytes(expected)


def test_the_end_is_seen_without_waiting(place: Place) -> None:
    """However often one looks: what was seen to have ended is finished without a wait, once."""
    for number in range(20):
        start(place, bytes([number]) * PAGE, number * PAGE)
        while not place.writer.has_ended():
            pass
        assert place.writer.has_ended()
        waited = place.writer.finish()
        assert not waited or isinstance(place.files, SimFiles)
    assert place.read(20 * PAGE) == b"".join(bytes([number]) * PAGE for number in range(20))


def test_readers_and_writers_of_the_page_cache_agree(place: Place) -> None:
    """Pages that were cached before, clean or not yet synced, show what was written directly, and neighbours stay."""
    file = place.files.open(place.path)
    for round_number in range(1, 30):
        letter = bytes([64 + round_number])
        place.read()  # the kernel reads ahead: the whole file is cached
        file.pwrite(letter * PAGE, 0)
        start(place, letter * PAGE, PAGE)
        place.writer.finish()
        file.pwrite(letter * PAGE, 2 * PAGE)
        file.fdatasync()
        assert place.read(4 * PAGE) == letter * 3 * PAGE + bytes(PAGE)


def test_a_long_write_is_left_to_a_thread(tmp_path: Path) -> None:
    """More than the writer's memory is not started, and the next short write is."""
    writer = _real_writer()
    path = _zeros(tmp_path / "file", 2 * DIRECT_BYTES_MAX)
    assert not writer.can_start(path, DIRECT_BYTES_MAX + PAGE)
    start_at(writer, path, b"x" * DIRECT_BYTES_MAX, 0)
    writer.finish()
    assert Path(path).read_bytes()[: DIRECT_BYTES_MAX + 1] == b"x" * DIRECT_BYTES_MAX + b"\0"
    writer.close()


def test_a_file_system_that_refuses_gets_an_ordinary_write(tmp_path: Path) -> None:
    """What the kernel takes and then refuses (here for its offset) is written by `finish`, and nothing is started any more."""
    writer = _real_writer()
    path = _zeros(tmp_path / "file", FILE_BYTES)
    start_at(writer, path, b"x" * PAGE, 1000)
    writer.finish()
    assert Path(path).read_bytes()[999 : 1001 + PAGE] == b"\0" + b"x" * PAGE + b"\0"
    assert not writer.can_start(path, PAGE), "started again where it was refused"
    writer.close()


def test_a_file_that_cannot_be_opened_is_left_to_the_ordinary_way(tmp_path: Path) -> None:
    """Which will say why."""
    writer = _real_writer()
    assert not writer.can_start(str(tmp_path / "missing"), PAGE)
    path = _zeros(tmp_path / "file", FILE_BYTES)
    start_at(writer, path, b"x" * PAGE, 0)
    writer.finish()
    assert Path(path).read_bytes()[:PAGE] == b"x" * PAGE
    writer.close()


def test_a_kernel_that_takes_no_more_gets_an_ordinary_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that the kernel does not take at all is done by `finish`, and its end is announced all the same."""
    writer = _real_writer()
    path = _zeros(tmp_path / "file", FILE_BYTES)
    eventfd = os.eventfd(0, os.EFD_NONBLOCK)
    writer.notify(eventfd)
    monkeypatch.setattr(writer, "_call", lambda *_arguments: -1)
    start_at(writer, path, b"x" * PAGE, PAGE)
    assert os.eventfd_read(eventfd) == 1
    assert not writer.finish()
    assert Path(path).read_bytes()[PAGE - 1 : 2 * PAGE + 1] == b"\0" + b"x" * PAGE + b"\0"
    monkeypatch.undo()
    writer.close()
    os.close(eventfd)


def test_the_end_of_a_write_is_announced(place: Place) -> None:
    """Once for each, where the caller has asked for it."""
    eventfd = os.eventfd(0)
    place.writer.notify(eventfd)
    for number in range(3):
        start(place, bytes([number]) * PAGE, number * PAGE)
        assert os.eventfd_read(eventfd) == 1  # waits for it
        assert not place.writer.finish() or isinstance(place.files, SimFiles), "announced before it had ended"
    os.close(eventfd)


def test_an_error_of_the_disk_names_file_and_offset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The completion's error becomes what `pwrite` and `fdatasync` raise."""
    writer = _real_writer()
    path = _zeros(tmp_path / "file", FILE_BYTES)
    for number, kind in ((errno.EIO, WriteFailed), (errno.ENOSPC, DiskFull)):
        start_at(writer, path, b"x" * PAGE, PAGE)
        original = writer._reap  # type: ignore[attr-defined]

        def failing(call: tuple[object, ...], number: int = number, original: Callable[..., int] = original) -> int:
            count = original(call)
            if count:
                writer._event[16:24] = (-number).to_bytes(8, "little", signed=True)  # type: ignore[attr-defined]
            return count

        with monkeypatch.context() as patch:
            patch.setattr(writer, "_reap", failing)
            with pytest.raises(kind, match=f"offset {PAGE} of {path}"):
                writer.finish()
    writer.close()


KILLED = """
import os, signal, sys
from cmdlog.wal.system.direct_write import open_direct_writer
writer = open_direct_writer()
if writer is None or not writer.can_start(sys.argv[1], 65536):
    sys.exit(7)
writer.start(b"k" * 65536, 4096)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_takes_nothing_that_was_started(tmp_path: Path) -> None:
    """What the kernel was given it completes when the process ends, however it ends."""
    for number in range(8):
        path = _zeros(tmp_path / f"file-{number}", FILE_BYTES)
        ended = subprocess.run([sys.executable, "-c", KILLED, path], check=False)
        if ended.returncode == 7:
            pytest.skip(NO_DIRECT_WRITES)
        assert ended.returncode == -signal.SIGKILL
        assert Path(path).read_bytes()[PAGE : PAGE + 65536] == b"k" * 65536


def test_the_device_is_asked_for_durability(tmp_path: Path) -> None:
    """No power cut can be had here: the file is open for writes that are on the device when they end."""
    writer = _real_writer()
    start_at(writer, _zeros(tmp_path / "file", FILE_BYTES), b"x" * PAGE, 0)
    flags = fcntl.fcntl(writer._fd, fcntl.F_GETFL)  # type: ignore[attr-defined]
    assert flags & os.O_DIRECT
    assert flags & os.O_DSYNC
    writer.finish()
    writer.close()


def test_closing_waits_for_what_was_started(tmp_path: Path) -> None:
    """Its memory may be given back on return."""
    path = _zeros(tmp_path / "file", FILE_BYTES)
    writer = _real_writer()
    start_at(writer, path, b"x" * 65536, 0)
    writer.close()
    assert Path(path).read_bytes()[:65536] == b"x" * 65536


def _real_writer() -> DirectWriter:
    writer = open_direct_writer()
    if writer is None:
        pytest.skip(NO_DIRECT_WRITES)
    return writer


def _zeros(path: Path, size: int) -> str:
    path.write_bytes(bytes(size))
    fd = os.open(path, os.O_RDWR)
    os.fsync(fd)
    os.close(fd)
    return str(path)
