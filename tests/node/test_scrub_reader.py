"""What the reading process does around a slice: it asks the disk and leaves the page cache as it was."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cmdlog.node.scrub.file_scan import SliceOrder
from cmdlog.node.scrub.scrub_reader import forget_slice

SIZE = 1 << 20


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """On disk, and in the page cache."""
    path = tmp_path / "file"
    with path.open("wb") as out:
        out.write(os.urandom(SIZE))
        out.flush()
        os.fsync(out.fileno())
    path.read_bytes()
    return path


def test_what_is_read_is_dropped_from_the_page_cache(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The range of the order, of the segment or of the snapshot's file."""
    dropped: list[tuple[str, int, int]] = []

    def advise(descriptor: int, offset: int, length: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_DONTNEED
        dropped.append((os.readlink(f"/proc/self/fd/{descriptor}"), offset, length))

    monkeypatch.setattr(os, "posix_fadvise", advise)
    forget_slice(SliceOrder("log", str(file), 4096, at={"number": 3, "offset": 8192, "chain": 1}))
    forget_slice(SliceOrder("snapshot", str(file.parent), 4096, at={"name": "file", "offset": 0}))
    assert dropped == [(str(file), 8192, 4096), (str(file), 0, 4096)]


def test_a_file_that_is_gone_is_no_error(tmp_path: Path) -> None:
    """The reading itself finds that out."""
    forget_slice(SliceOrder("log", str(tmp_path / "gone"), 4096))
