"""Writes that are durable when they end, while their caller works: the contract, over the real writer and the simulated one; and
the thread's waits, its signals, forks, and what a kill leaves.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from cmdlog.wal.errors import DiskFull, ShortWrite, WriteFailed
from cmdlog.wal.files import Files, RealFiles
from cmdlog.wal.native import steps
from cmdlog.wal.system import write_thread
from cmdlog.wal.system.write_thread import DIRECT_BYTES_MAX, DirectWriter, WriteThread, open_write_thread
from tests.skips import NO_COMPILER, NO_DIRECT_WRITES
from tests.wal.sim.simfiles import SimFiles

THREAD_NAME = "cmdlog-log-io"
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
    if not writer.start(path, data, offset):
        pytest.skip(NO_DIRECT_WRITES)


@pytest.fixture
def writer() -> Iterator[WriteThread]:
    """One that is closed in the end."""
    made = opened(open_write_thread(), built=steps is not None)
    yield made
    made.close()


@dataclass(frozen=True, slots=True)
class Place:
    """A file of zeros, and a writer."""

    files: Files
    path: str
    writer: DirectWriter

    def read(self, size: int = FILE_BYTES, offset: int = 0) -> bytes:
        return self.files.open(self.path, read_only=True).pread(size, offset)


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


def threads() -> list[int]:
    """The numbers of the threads like this that the process has."""
    found = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError):
            if Path(f"/proc/self/task/{task}/comm").read_text().strip() == THREAD_NAME:
                found.append(int(task))
    return found


def test_thousands_of_writes_land_in_order(tmp_path: Path, writer: WriteThread) -> None:
    """The thread falls asleep and wakes at every moment of its caller's: no write is lost, none is done twice."""
    path = zeros(tmp_path / "file")
    for number in range(2000):
        start_at(writer, path, number.to_bytes(4, "little") * 1024, number % 64 * PAGE)
        for _ in range(number % 97 * 7):  # from no pause to one that is longer than a write
            pass
        writer.finish()
        with open(path, "rb") as file:
            file.seek(number % 64 * PAGE)
            assert file.read(PAGE) == number.to_bytes(4, "little") * 1024


def test_a_second_write_is_refused_while_one_is_under_way(tmp_path: Path, writer: WriteThread) -> None:
    """Its memory is in use; and one that does not fit is refused always."""
    path, thread = zeros(tmp_path / "file"), writer._thread
    refused = 0
    for _ in range(50):
        start_at(writer, path, b"a" * PAGE, 0)
        try:
            thread.start(writer._fd, b"b" * PAGE, PAGE)
        except ValueError:
            refused += 1
        thread.finish()
    assert refused
    with pytest.raises(ValueError, match="too long"):
        thread.start(writer._fd, bytes(65537), 0)


def test_an_error_of_the_disk_is_raised(tmp_path: Path, writer: WriteThread) -> None:
    """What `pwrite` returned becomes the error of the writer: here of a descriptor that is closed."""
    path = zeros(tmp_path / "file")
    start_at(writer, path, b"x" * PAGE, 0)
    writer.finish()
    fd, writer._fd = writer._fd, 1 << 30
    assert writer.start(path, b"x" * PAGE, PAGE)
    with pytest.raises(WriteFailed, match=f"offset {PAGE} of {path}.*Bad file descriptor"):
        writer.finish()
    writer._fd = fd


def test_signals_are_for_python_threads(tmp_path: Path, writer: WriteThread) -> None:
    """The thread takes none of them, and a handler that raises ends a wait, not the write."""
    path = zeros(tmp_path / "file")
    caught: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _frame: caught.append(number))
    try:
        for number in range(200):
            start_at(writer, path, b"s" * PAGE, number % 64 * PAGE)
            os.kill(os.getpid(), signal.SIGUSR1)
            writer.finish()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(caught) == 200
    assert Path(path).read_bytes() == b"s" * FILE_BYTES


def test_a_fork_has_no_thread(tmp_path: Path, writer: WriteThread) -> None:
    """In the child every use is refused at once, and the end of the object waits for nothing."""
    path = zeros(tmp_path / "file")
    start_at(writer, path, b"x" * PAGE, 0)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            writer._thread.finish()
        except ValueError:
            writer.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    writer.finish()
    start_at(writer, path, b"y" * PAGE, 0)
    writer.finish()
    assert Path(path).read_bytes()[:PAGE] == b"y" * PAGE


def test_a_writer_that_was_forgotten_takes_its_thread_along(tmp_path: Path) -> None:
    """Even with a write under way."""
    before = len(threads())
    for _ in range(3):
        writer = opened(open_write_thread(), built=steps is not None)
        start_at(writer, zeros(tmp_path / "file"), b"x" * PAGE, 0)
        assert len(threads()) == before + 1
        del writer
        gc.collect()
        assert len(threads()) == before


def test_what_is_closed_stays_closed(writer: WriteThread) -> None:
    """No use after that, and closing twice is as good as once."""
    writer.close()
    writer.close()
    with pytest.raises(ValueError, match="has ended"):
        writer._thread.finish()


def test_a_waiting_caller_keeps_no_other_thread_from_running(tmp_path: Path, writer: WriteThread) -> None:
    """Callers that wait have let the interpreter's lock go: two writers in two threads come to their ends."""
    other = open_write_thread()
    assert other is not None
    ends = []

    def run(which: WriteThread, name: str) -> None:
        path = zeros(tmp_path / name)
        for number in range(300):
            start_at(which, path, b"z" * PAGE, number % 64 * PAGE)
            which.finish()
        ends.append(name)

    workers = [threading.Thread(target=run, args=(which, name)) for which, name in ((writer, "a"), (other, "b"))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(ends) == ["a", "b"]
    other.close()


KILLED = """
import os, signal, sys
from cmdlog.wal.system.write_thread import open_write_thread
writer = open_write_thread()
if writer is None or not writer.start(sys.argv[1], b"k" * 65536, 4096):
    sys.exit(7)
for _ in range(int(sys.argv[2])):
    pass
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_leaves_all_of_a_write_or_nothing(tmp_path: Path) -> None:
    """The kernel completes a write that it has begun, and it has on return but for some nanoseconds."""
    for number in range(8):
        path = zeros(tmp_path / f"file-{number}")
        ended = subprocess.run([sys.executable, "-c", KILLED, path, str(number * 500)], check=False)
        if ended.returncode == 7:
            pytest.skip(NO_DIRECT_WRITES)
        assert ended.returncode == -signal.SIGKILL
        found = Path(path).read_bytes()
        assert found in (bytes(FILE_BYTES), bytes(PAGE) + b"k" * 65536 + bytes(FILE_BYTES - PAGE - 65536))


def test_without_a_compiler_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor where no thread can be started."""
    monkeypatch.setattr(write_thread, "steps", None)
    assert open_write_thread() is None

    class Refusing:
        def WriteThread(self, _bytes_max: int) -> None:
            raise OSError(errno.EAGAIN, "no more threads")

    monkeypatch.setattr(write_thread, "steps", Refusing())
    assert open_write_thread() is None


@pytest.mark.skipif(steps is None, reason=NO_COMPILER)
def test_it_takes_what_it_is_declared_to_take() -> None:
    """Other arguments are refused, and nothing is started."""
    for wrong in ((), (0,), ("a",), (4096, 0)):
        with pytest.raises((TypeError, ValueError)):
            steps.WriteThread(*wrong)
    with pytest.raises(ValueError, match="WriteThread"):
        steps.WriteThread(4096, more=1)


def test_what_was_started_is_there_when_it_is_finished(place: Place) -> None:
    """Writes land at their offsets, whole, and nothing else changes."""
    start_at(place.writer, place.path, b"a" * PAGE, 2 * PAGE)
    place.writer.finish()
    start_at(place.writer, place.path, b"b" * 2 * PAGE, 5 * PAGE)
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
        start_at(place.writer, place.path, letter * PAGE, PAGE)
        place.writer.finish()
        file.pwrite(letter * PAGE, 2 * PAGE)
        file.fdatasync()
        assert place.read(4 * PAGE) == letter * 3 * PAGE + bytes(PAGE)


def test_a_long_write_is_left_to_the_log(tmp_path: Path, writer: WriteThread) -> None:
    """More than the writer's memory is not started, and the next short write is."""
    path = zeros(tmp_path / "file", 2 * DIRECT_BYTES_MAX)
    assert not writer.start(path, bytes(DIRECT_BYTES_MAX + PAGE), 0)
    start_at(writer, path, b"x" * DIRECT_BYTES_MAX, 0)
    writer.finish()
    assert Path(path).read_bytes()[: DIRECT_BYTES_MAX + 1] == b"x" * DIRECT_BYTES_MAX + b"\0"


def test_a_file_system_that_refuses_gets_an_ordinary_write(tmp_path: Path, writer: WriteThread) -> None:
    """What the kernel takes and then refuses (here for its offset) is written by `finish`, and nothing is started any more."""
    path = zeros(tmp_path / "file")
    start_at(writer, path, b"x" * PAGE, 1000)
    writer.finish()
    assert Path(path).read_bytes()[999 : 1001 + PAGE] == b"\0" + b"x" * PAGE + b"\0"
    assert not writer.start(path, bytes(PAGE), 0), "started again where it was refused"


def test_a_file_that_cannot_be_opened_is_left_to_the_ordinary_way(tmp_path: Path, writer: WriteThread) -> None:
    """Which will say why."""
    assert not writer.start(str(tmp_path / "missing"), bytes(PAGE), 0)
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
    assert not writer.start(path, bytes(PAGE), 0)


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
