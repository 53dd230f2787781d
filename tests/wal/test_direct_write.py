"""Writes that are durable when they end, while their caller works: the contract, over the real writer and the simulated one."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cmdlog.wal.errors import DiskFull, ShortWrite, WriteFailed
from cmdlog.wal.files import Files, RealFiles
from cmdlog.wal.native import steps
from cmdlog.wal.system.write_thread import DIRECT_BYTES_MAX, DirectWriter, WriteThread, open_write_thread
from tests.wal.sim.simfiles import SimFiles
from tests.wal.writers import FILE_BYTES, PAGE, opened, start_at, zeros


@dataclass(frozen=True, slots=True)
class Place:
    """A file of zeros, and a writer."""

    files: Files
    path: str
    writer: DirectWriter

    def read(self, size: int = FILE_BYTES, offset: int = 0) -> bytes:
        return self.files.open(self.path, read_only=True).pread(size, offset)


def start(place: Place, data: bytes, offset: int) -> None:
    """Starts, or skips the test."""
    start_at(place.writer, place.path, data, offset)


@pytest.fixture(params=["a thread", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Every test that asks for it runs over both."""
    files: Files = RealFiles() if request.param == "a thread" else SimFiles()
    if isinstance(files, SimFiles):
        files.mkdir("/node")
    path = "/node/file" if isinstance(files, SimFiles) else str(tmp_path / "file")
    file = files.open(path, create=True)
    file.pwrite(bytes(FILE_BYTES), 0)
    file.fsync()
    writer = opened(files.open_direct_writer(), built=steps is not None)
    yield Place(files, path, writer)
    writer.close()


@pytest.fixture
def writer() -> Iterator[WriteThread]:
    """The real one."""
    made = opened(open_write_thread(), built=steps is not None)
    yield made
    made.close()


def test_what_was_started_is_there_when_it_is_finished(place: Place) -> None:
    """Writes land at their offsets, whole, and nothing else changes."""
    start(place, b"a" * PAGE, 2 * PAGE)
    place.writer.finish()
    start(place, b"b" * 2 * PAGE, 5 * PAGE)
    place.writer.finish()
    expected = bytearray(FILE_BYTES)
    expected[2 * PAGE : 3 * PAGE], expected[5 * PAGE : 7 * PAGE] = b"a" * PAGE, b"b" * 2 * PAGE
    assert place.read() == bytes(expected)


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


def test_a_long_write_is_left_to_the_log(tmp_path: Path, writer: WriteThread) -> None:
    """More than the writer's memory is not started, and the next short write is."""
    path = zeros(tmp_path / "file", 2 * DIRECT_BYTES_MAX)
    assert not writer.can_start(path, DIRECT_BYTES_MAX + PAGE)
    start_at(writer, path, b"x" * DIRECT_BYTES_MAX, 0)
    writer.finish()
    assert Path(path).read_bytes()[: DIRECT_BYTES_MAX + 1] == b"x" * DIRECT_BYTES_MAX + b"\0"


def test_a_file_system_that_refuses_gets_an_ordinary_write(tmp_path: Path, writer: WriteThread) -> None:
    """What the kernel takes and then refuses (here for its offset) is written by `finish`, and nothing is started any more."""
    path = zeros(tmp_path / "file")
    start_at(writer, path, b"x" * PAGE, 1000)
    writer.finish()
    assert Path(path).read_bytes()[999 : 1001 + PAGE] == b"\0" + b"x" * PAGE + b"\0"
    assert not writer.can_start(path, PAGE), "started again where it was refused"


def test_a_file_that_cannot_be_opened_is_left_to_the_ordinary_way(tmp_path: Path, writer: WriteThread) -> None:
    """Which will say why."""
    assert not writer.can_start(str(tmp_path / "missing"), PAGE)
    path = zeros(tmp_path / "file")
    start_at(writer, path, b"x" * PAGE, 0)
    writer.finish()
    assert Path(path).read_bytes()[:PAGE] == b"x" * PAGE


def test_it_follows_the_log_from_file_to_file(tmp_path: Path, writer: WriteThread) -> None:
    """Each write goes to the file that was asked for last."""
    paths = [zeros(tmp_path / f"file-{number}") for number in range(3)]
    for round_number in range(3):
        for path in paths:
            start_at(writer, path, path[-1:].encode() * PAGE, round_number * PAGE)
            writer.finish()
    for path in paths:
        assert Path(path).read_bytes()[: 4 * PAGE] == path[-1:].encode() * 3 * PAGE + bytes(PAGE)


def test_the_device_is_asked_for_durability(tmp_path: Path, writer: WriteThread) -> None:
    """No power cut can be had here: the file is open for writes that are on the device when they end."""
    start_at(writer, zeros(tmp_path / "file"), b"x" * PAGE, 0)
    flags = fcntl.fcntl(writer._fd, fcntl.F_GETFL)
    assert flags & os.O_DIRECT
    assert flags & os.O_DSYNC
    writer.finish()


def test_closing_waits_for_what_was_started(tmp_path: Path, writer: WriteThread) -> None:
    """Its memory may be given back on return."""
    path = zeros(tmp_path / "file")
    start_at(writer, path, b"x" * 65536, 0)
    writer.close()
    assert Path(path).read_bytes()[:65536] == b"x" * 65536
    assert not writer.can_start(path, PAGE)


class Ended:
    """In place of the thread in C: a write that has ended with this result."""

    def __init__(self, result: int) -> None:
        self._result = result

    def start(self, _fd: int, _data: bytes, _offset: int) -> None:
        pass

    def finish(self) -> tuple[bool, int]:
        return False, self._result

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("result", "kind", "says"),
    [
        (-errno.EIO, WriteFailed, "Input/output error"),
        (-errno.ENOSPC, DiskFull, "No space left"),
        (1024, ShortWrite, "took 1024 of 4096 bytes"),
    ],
)
def test_what_went_wrong_names_file_and_offset(tmp_path: Path, result: int, kind: type[Exception], says: str) -> None:
    """A result of the system becomes what `pwrite` and `fdatasync` raise."""
    path, writer = zeros(tmp_path / "file"), WriteThread(Ended(result))
    start_at(writer, path, b"x" * PAGE, 2 * PAGE)
    with pytest.raises(kind, match=f"offset {2 * PAGE} of {path}") as caught:
        writer.finish()
    assert says in str(caught.value)
    writer.close()
