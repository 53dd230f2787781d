"""Locks between processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cmdlog.file_lock import FOREVER, LockHeld, lock, open_locked

HOLDER = """
import sys, time
from cmdlog.file_lock import lock
file = open(sys.argv[1], "ab")
lock(file, sys.argv[2])
print("held", flush=True)
time.sleep(float(sys.argv[3]))
"""


@contextmanager
def held_elsewhere(path: Path, kind: str, *, seconds: float = 1000.0) -> Iterator[subprocess.Popen[bytes]]:
    """Another process has the lock."""
    command = [sys.executable, "-c", HOLDER, str(path), kind, str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        yield holder
        holder.kill()


@pytest.mark.slow
def test_lock_of_another_process_is_waited_for_and_then_named(tmp_path: Path) -> None:
    """LockHeld comes once the time that the caller gave is over, and at once without one."""
    with held_elsewhere(tmp_path / "lock", "exclusive"):
        with pytest.raises(LockHeld):
            open_locked(str(tmp_path / "lock"), wait_s=0.1)
        with pytest.raises(LockHeld):
            open_locked(str(tmp_path / "lock"))


@pytest.mark.slow
def test_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    """The kernel releases it with the descriptor; nothing has to be removed."""
    with held_elsewhere(tmp_path / "lock", "exclusive") as holder:
        holder.kill()
        holder.wait()
        open_locked(str(tmp_path / "lock")).close()


@pytest.mark.slow
@pytest.mark.parametrize("wait_s", [20.0, FOREVER])
def test_lock_is_taken_as_soon_as_it_is_released(tmp_path: Path, wait_s: float) -> None:
    """With a limit of time as without one."""
    with held_elsewhere(tmp_path / "lock", "exclusive", seconds=0.1):
        open_locked(str(tmp_path / "lock"), wait_s=wait_s).close()


def test_shared_locks_exclude_only_exclusive_ones(tmp_path: Path) -> None:
    """Two readers look at the same time; a writer has the file alone."""
    path = tmp_path / "lock"
    path.touch()
    with path.open("rb") as one, path.open("rb") as other:
        lock(one, "shared")
        lock(other, "shared")
        with pytest.raises(LockHeld):
            open_locked(str(path))
    with open_locked(str(path)), path.open("rb") as other, pytest.raises(LockHeld):
        lock(other, "shared")


def test_file_of_a_lock_keeps_what_it_holds(tmp_path: Path) -> None:
    """A failed attempt and a successful one write nothing, and the first leaves the file closed."""
    path = tmp_path / "lock"
    path.write_bytes(b"owner")
    with open_locked(str(path)), pytest.raises(LockHeld):
        open_locked(str(path))
    assert path.read_bytes() == b"owner"


def test_a_fork_does_not_hold_the_lock_of_its_parent(tmp_path: Path) -> None:
    """It ends with the parent's descriptor, while the fork lives; until then the fork's end, or its `close`, leaves it alone."""
    path = str(tmp_path / "lock")
    file = open_locked(path)
    hold, release = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(release)
        file.close()
        os.read(hold, 1)
        os._exit(0)
    try:
        with pytest.raises(LockHeld):
            open_locked(path)
        file.close()
        open_locked(path, wait_s=20.0).close()  # the fork may not have come to it yet
    finally:
        os.close(release)
        os.close(hold)
        os.waitpid(child, 0)


def test_a_fork_keeps_a_file_that_has_the_number_of_a_former_lock(tmp_path: Path) -> None:
    """Numbers of descriptors are used again."""
    file = open_locked(str(tmp_path / "lock"))
    number = file.fileno()
    file.close()
    (tmp_path / "other").write_bytes(b"other")
    other = os.open(tmp_path / "other", os.O_RDONLY)
    os.dup2(other, number)
    child = os.fork()
    if child == 0:
        os._exit(0 if os.pread(number, 5, 0) == b"other" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(number)
    if number != other:
        os.close(other)
