"""When a file came into being: the same for ever, and another for a copy."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from cmdlog.wal.system.machine import SECOND_NS, birth_ns


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file on a file system that keeps the time."""
    path = tmp_path / "file"
    path.write_bytes(b"one")
    if not birth_ns(str(path)):
        pytest.skip("this file system does not keep when a file was made")
    probe = tmp_path / "probe"
    for _ in range(100_000):  # kernels before 6.13 know the time to a few milliseconds
        probe.unlink(missing_ok=True)
        probe.touch()
        if birth_ns(str(probe)) > birth_ns(str(path)):
            break
    return path


def test_birth_is_what_the_system_tells(path: Path) -> None:
    """The same second that `stat` shows: the field is read from where it stands."""
    shown = subprocess.run(["stat", "--format=%W", str(path)], capture_output=True, check=True, text=True).stdout
    assert birth_ns(str(path)) // SECOND_NS == int(shown)


def test_birth_outlives_writes_and_renames(path: Path) -> None:
    """What an ordinary run does to a state file does not make another file of it."""
    born = birth_ns(str(path))
    path.write_bytes(b"two")
    os.utime(path, (1, 1))
    path.chmod(0o600)
    assert birth_ns(str(path.rename(path.with_name("other")))) == born


def test_copy_has_a_birth_of_its_own(path: Path) -> None:
    """Also one that keeps all times and takes the place of the file."""
    born = birth_ns(str(path))
    kept = shutil.copy2(path, path.with_name("kept"))
    path.unlink()
    shutil.copy2(kept, path)
    assert birth_ns(str(path)) > born


def test_birth_is_unknown_without_the_call(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A C library without it, or a kernel that refuses it: then device and inode must do."""
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: SimpleNamespace())
    assert birth_ns(str(path)) == 0
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: SimpleNamespace(statx=lambda *_arguments: -1))
    assert birth_ns(str(path)) == 0
