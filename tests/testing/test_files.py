"""The disks of tests: without syncs, and one that fails on demand."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cmdlog.testing.files import BreakableFiles, UnsyncedFiles
from cmdlog.wal.errors import WriteFailed


def test_unsynced_files_are_written_and_not_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another reader finds what was written; no sync reaches the operating system."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda _fd: pytest.fail("synced"))
    files, path = UnsyncedFiles(), str(tmp_path / "file")
    file = files.open(path, create=True)
    file.pwrite(b"kept", 0)
    file.fdatasync()
    file.fsync()
    files.fsync_dir(str(tmp_path))
    file.close()
    assert Path(path).read_bytes() == b"kept"


def test_a_broken_disk_refuses_writes_and_syncs(tmp_path: Path) -> None:
    """Before the fault all work, after it none does; what was written stays readable."""
    broken: list[bool] = []
    files = BreakableFiles(lambda: broken)
    file = files.open(str(tmp_path / "file"), create=True)
    file.pwrite(b"kept", 0)
    file.fdatasync()
    file.fsync()
    files.fsync_dir(str(tmp_path))
    broken.append(True)
    actions: tuple[Callable[[], object], ...] = (
        lambda: file.pwrite(b"lost", 0), file.fdatasync, file.fsync, lambda: files.fsync_dir(str(tmp_path)),
    )  # fmt: skip
    for action in actions:
        with pytest.raises(WriteFailed, match="Input/output error"):
            action()
    assert file.pread(4, 0) == b"kept"
    file.close()
