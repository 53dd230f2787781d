"""Writes that are durable when they end, while their caller works: the contract, over the real writer and the simulated one."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from cmdlog.wal.errors import DiskFull, ShortWrite, WriteFailed
from cmdlog.wal.files import Files, RealFiles
from cmdlog.wal.native import steps
from cmdlog.wal.system.direct_write import DIRECT_BYTES_MAX, DirectFile, DirectWriter
from cmdlog.wal.system.write_thread import open_write_thread
from tests.skips import NO_DIRECT_WRITES
from tests.wal.sim.simfiles import SimFiles
from tests.wal.writers import FILE_BYTES, PAGE, opened, start_at, zeros

REAL: Final[dict[str, Callable[[], DirectWriter | None]]] = {"a thread": open_write_thread}


def open_real(name: str) -> DirectWriter:
    """One of those, or the reason why there is none."""
    return opened(REAL[name](), built=steps is not None)


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


@pytest.fixture(params=[*REAL, "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Every test that asks for it runs over all."""
    name: str = request.param
    files: Files = RealFiles() if name in REAL else SimFiles()
    if isinstance(files, SimFiles):
        files.mkdir("/node")
    path = str(tmp_path / "file") if name in REAL else "/node/file"
    file = files.open(path, create=True)
    file.pwrite(bytes(FILE_BYTES), 0)
    file.fsync()
    writer = open_real(name) if name in REAL else opened(files.open_direct_writer())
    yield Place(files, path, writer)
    writer.close()


@pytest.fixture(params=list(REAL))
def writer(request: pytest.FixtureRequest) -> Iterator[DirectWriter]:
    """Every test that asks for it runs over the real ones."""
    made = open_real(request.param)
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


def test_the_end_of_a_write_is_announced(place: Place) -> None:
    """Once for each, where the caller has asked for it."""
    eventfd = os.eventfd(0)
    place.writer.notify(eventfd)
    for number in range(3):
        start(place, bytes([number]) * PAGE, number * PAGE)
        assert os.eventfd_read(eventfd) == 1  # waits for it
        assert not place.writer.finish() or isinstance(place.files, SimFiles), "announced before it had ended"
    os.close(eventfd)


def test_a_number_that_was_an_eventfd_is_not_written_to(place: Place, tmp_path: Path) -> None:
    """The caller closes it while a write is under way, or before the next one, and the system gives its number to a file."""
    eventfd = os.eventfd(0)
    place.writer.notify(eventfd)
    start(place, bytes(PAGE), 0)
    os.close(eventfd)
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    assert other == eventfd, "the test needs the number again"
    place.writer.finish()
    start(place, bytes(PAGE), 0)
    place.writer.finish()
    place.writer.close()  # what is announced has been
    assert os.fstat(other).st_size == 0
    os.close(other)


def test_a_long_write_is_left_to_the_log(tmp_path: Path, writer: DirectWriter) -> None:
    """More than the writer's memory is not started, and the next short write is."""
    path = zeros(tmp_path / "file", 2 * DIRECT_BYTES_MAX)
    assert not writer.can_start(path, DIRECT_BYTES_MAX + PAGE)
    start_at(writer, path, b"x" * DIRECT_BYTES_MAX, 0)
    writer.finish()
    assert Path(path).read_bytes()[: DIRECT_BYTES_MAX + 1] == b"x" * DIRECT_BYTES_MAX + b"\0"


def test_a_file_system_that_refuses_gets_an_ordinary_write(tmp_path: Path, writer: DirectWriter) -> None:
    """What the kernel takes and then refuses (here for its offset) is written by `finish`, and nothing is started any more."""
    path = zeros(tmp_path / "file")
    start_at(writer, path, b"x" * PAGE, 1000)
    writer.finish()
    assert Path(path).read_bytes()[999 : 1001 + PAGE] == b"\0" + b"x" * PAGE + b"\0"
    assert not writer.can_start(path, PAGE), "started again where it was refused"


def test_a_file_that_cannot_be_opened_is_left_to_the_ordinary_way(tmp_path: Path, writer: DirectWriter) -> None:
    """Which will say why."""
    assert not writer.can_start(str(tmp_path / "missing"), PAGE)
    path = zeros(tmp_path / "file")
    start_at(writer, path, b"x" * PAGE, 0)
    writer.finish()
    assert Path(path).read_bytes()[:PAGE] == b"x" * PAGE


def test_it_follows_the_log_from_file_to_file(tmp_path: Path, writer: DirectWriter) -> None:
    """Each write goes to the file that was asked for last."""
    paths = [zeros(tmp_path / f"file-{number}") for number in range(3)]
    for round_number in range(3):
        for path in paths:
            start_at(writer, path, path[-1:].encode() * PAGE, round_number * PAGE)
            writer.finish()
    for path in paths:
        assert Path(path).read_bytes()[: 4 * PAGE] == path[-1:].encode() * 3 * PAGE + bytes(PAGE)


def test_the_device_is_asked_for_durability(tmp_path: Path, writer: DirectWriter) -> None:
    """No power cut can be had here: the file is open for writes that are on the device when they end."""
    start_at(writer, zeros(tmp_path / "file"), b"x" * PAGE, 0)
    flags = fcntl.fcntl(writer._file.fd, fcntl.F_GETFL)  # type: ignore[attr-defined]
    assert flags & os.O_DIRECT
    assert flags & os.O_DSYNC
    writer.finish()


def test_closing_waits_for_what_was_started(tmp_path: Path, writer: DirectWriter) -> None:
    """Its memory may be given back on return."""
    path = zeros(tmp_path / "file")
    start_at(writer, path, b"x" * 65536, 0)
    writer.close()
    assert Path(path).read_bytes()[:65536] == b"x" * 65536
    assert not writer.can_start(path, PAGE)


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
    path, file = zeros(tmp_path / "file"), DirectFile()
    if not file.can_write(path, PAGE):
        pytest.skip(NO_DIRECT_WRITES)
    file.begin_write(b"x" * PAGE, 2 * PAGE)
    with pytest.raises(kind, match=f"offset {2 * PAGE} of {path}") as caught:
        file.conclude(result)
    assert says in str(caught.value)
    file.close()
