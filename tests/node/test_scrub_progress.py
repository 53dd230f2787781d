"""How far a scrub is, over restarts: what is written is read again, and anything else is a new beginning."""

from __future__ import annotations

from pathlib import Path

import pytest

from cmdlog.node.scrub.scrub_progress import NAME, ScrubPass, ScrubProgress, read_progress, write_progress

PROGRESS = ScrubProgress(
    ScrubPass(1.5, {"log": "seg-9"}, ("log", "seg-3"), ("log", "seg-4"), {"number": 7, "offset": 8192, "chain": 1}, 77, 3, 1),
    {"began": 1.0, "finished": 2.0, "bytes": 5, "files": 1, "damaged": 0},
    passes=4,
    findings=[{"kind": "log"}],
    sums={"0": {"3": 12}},
)


@pytest.mark.parametrize("progress", [PROGRESS, ScrubProgress()])
def test_progress_is_read_as_it_was_written(tmp_path: Path, progress: ScrubProgress) -> None:
    """With the place within a file."""
    write_progress(str(tmp_path), progress)
    assert read_progress(str(tmp_path)) == progress
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_a_damaged_file_is_a_new_beginning(tmp_path: Path) -> None:
    """Every byte that changes is noticed; a missing file is no error, nor is a folder that cannot be written to."""
    write_progress(str(tmp_path), PROGRESS)
    data = (tmp_path / NAME).read_bytes()
    for at in range(0, len(data), 7):
        (tmp_path / NAME).write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        assert read_progress(str(tmp_path)) in (ScrubProgress(), PROGRESS)  # the latter: of white space between fields
    (tmp_path / NAME).unlink()
    assert read_progress(str(tmp_path)) == ScrubProgress()
    write_progress(str(tmp_path / "nowhere"), PROGRESS)
