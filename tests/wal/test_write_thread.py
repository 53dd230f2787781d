"""The thread as a direct writer: its waits, its signals, forks, and what a kill leaves."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cmdlog.wal.errors import WriteFailed
from cmdlog.wal.native import steps
from cmdlog.wal.system import write_thread
from cmdlog.wal.system.write_thread import WriteThread, open_write_thread
from tests.skips import NO_COMPILER, NO_DIRECT_WRITES
from tests.wal.writers import FILE_BYTES, PAGE, opened, start_at, zeros

THREAD_NAME = "cmdlog-log-io"


@pytest.fixture
def writer() -> Iterator[WriteThread]:
    """One that is closed in the end."""
    made = opened(open_write_thread(), built=steps is not None)
    yield made
    made.close()


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
    assert writer.can_start(path, PAGE)
    refused = 0
    for _ in range(50):
        writer.start(b"a" * PAGE, 0)
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
    if not writer.can_start(path, PAGE):
        pytest.skip(NO_DIRECT_WRITES)
    fd, writer._fd = writer._fd, 1 << 30
    writer.start(b"x" * PAGE, PAGE)
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
if writer is None or not writer.can_start(sys.argv[1], 65536):
    sys.exit(7)
writer.start(b"k" * 65536, 4096)
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
