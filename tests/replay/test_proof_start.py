"""What the drill proves from the oldest state at hand: snapshots that all came from one damaged state are found."""

from __future__ import annotations

import os
from pathlib import Path

import apsw
import pytest

from cmdlog.wal.files import RealFiles
from replay.drill import proof_start
from replay.errors import ReplayError
from snapshot.archive.archive_retention import write_promise
from tests.replay.archiverig import SEGMENT_BYTES, ArchiveRig
from tests.replay.drills import left_behind, run_drill
from tests.replay.rig import BEGIN, DEPOSIT, Rig

FILES = RealFiles()


def rot(rig: Rig, *, account: int) -> None:
    """Changes a row of the live state that no call touches, as a bit that flips in the file does."""
    connection = apsw.Connection(rig.state_file(account // 10))
    connection.execute("UPDATE accounts SET balance = balance + 4 WHERE id = ?", (account,))
    connection.close()


@pytest.mark.parametrize("taken", [1, 2, 3])
def test_row_that_changed_in_the_live_state_is_caught(tmp_path: Path, taken: int) -> None:
    """All snapshots that are behind it agree with each other; what the log leads to from its first entry does not."""
    rig, paths = Rig(tmp_path), []
    rot(rig, account=12)
    for _ in range(taken):
        rig.batch(1, [(DEPOSIT, [10, 5])])
        paths.append(Path(rig.snapshot(1)).name)
    report = run_drill(rig)
    assert (report.verdict, report.exit_code) == ("diverged", 16)
    assert f"partition 1: snapshot {paths[-2:][0]} does not match the log" in str(report.error)
    assert isinstance(report.error, ReplayError)
    assert "out of snapshots/" in report.error.hint
    assert left_behind(rig) == ["lock"]


def test_row_that_changed_in_the_live_state_and_was_used_is_caught_by_digests(tmp_path: Path) -> None:
    """Each later call answered with what had changed; the report names the first one."""
    rig = Rig(tmp_path)
    rot(rig, account=12)
    rig.batch(1, [(DEPOSIT, [12, 5])])
    rig.snapshot(1)
    report = run_drill(rig)
    assert (report.verdict, report.exit_code) == ("diverged", 16)
    assert isinstance(report.error, ReplayError)
    assert report.error.place is not None
    _, key, replayed, live = report.error.place.rows[0].cells
    assert (key, replayed, live.partition(" as of")[0]) == ("id=12", "id=12 balance=5", "id=12 balance=9")
    assert "balance" not in str(report.error)


@pytest.mark.slow
def test_way_begins_as_far_back_as_log_and_archive_lead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the archive, or, when less of the log may be read or no more can be, at an older snapshot or nowhere."""
    rig = ArchiveRig(tmp_path, segments=6)
    rig.batch(0, [(BEGIN, [5])])  # which no deposit touches
    rig.rotate(4)
    rot(rig, account=5)
    rig.rotate(4)
    rig.snapshot(0)
    report = run_drill(rig)
    assert report.verdict == "diverged"
    assert "replayed from the first entry to index" in str(report.error)
    for more, verdict in ((1, "proven"), (3, "diverged")):  # what is behind the change agrees with itself
        monkeypatch.setattr(proof_start, "LOG_BYTES_MAX", (len(rig.wal.segments) + more) * SEGMENT_BYTES)
        report = run_drill(rig)
        assert report.verdict == verdict
        begin = report.oldest[0].snapshot if verdict == "proven" else str(report.error).split("replayed from ")[1].split()[0]
        assert any(name.endswith(begin) for name in os.listdir(Path(rig.directory, "archive"))), "a snapshot that is kept there"
    monkeypatch.undo()
    for name in rig.names(".seg"):
        Path(rig.directory, "archive", name).write_bytes(b"nonsense")
    write_promise(FILES, rig.directory, window_s=0)
    report = run_drill(rig)
    assert (report.verdict, report.error) == ("proven", None), "nothing was promised of the archive"
