"""When directories of tests are made in memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import memory_disk
from tests.memory_disk import ROOT, choose_root, has_room


def test_a_file_system_that_is_small_or_absent_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's folder for temporary files remains."""
    monkeypatch.delenv(ROOT, raising=False)
    monkeypatch.setattr(memory_disk, "ROOM_BYTES", 1 << 60)
    assert not has_room()
    monkeypatch.setattr(memory_disk, "ROOM_BYTES", 0)
    monkeypatch.setattr(memory_disk, "MEMORY", tmp_path / "absent")
    choose_root()
    assert ROOT not in os.environ


def test_the_choice_of_an_operator_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`PYTEST_DEBUG_TEMPROOT=/tmp make test` uses the disk; without it memory is used, if it has room."""
    monkeypatch.setattr(memory_disk, "ROOM_BYTES", 0)
    monkeypatch.setattr(memory_disk, "MEMORY", tmp_path)
    monkeypatch.setenv(ROOT, "/elsewhere")
    choose_root()
    assert os.environ[ROOT] == "/elsewhere"
    monkeypatch.delenv(ROOT)
    choose_root()
    assert os.environ[ROOT] == str(tmp_path)


def test_programs_must_be_able_to_run_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers mount /dev/shm without that, and tests build and start programs."""
    monkeypatch.setattr(memory_disk, "ROOM_BYTES", 0)
    found = os.statvfs("/")
    forbidding = os.statvfs_result((*found[:8], found.f_flag | os.ST_NOEXEC, found.f_namemax))
    monkeypatch.setattr(os, "statvfs", lambda _path: forbidding)
    assert not has_room()
