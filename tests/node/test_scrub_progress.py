"""How far a scrub is, over restarts: what is written is read again, and anything else is a new beginning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cmdlog.node.scrub.file_scan import Damage
from cmdlog.node.scrub.scrub_plan import ScrubItem
from cmdlog.node.scrub.scrub_progress import ENDED_SHOWN, NAME, Findings, ScrubFinding, ScrubPass, ScrubProgress, read_progress

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
    progress.save(str(tmp_path), progress.findings)
    assert read_progress(str(tmp_path)) == progress
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_a_damaged_file_is_a_new_beginning(tmp_path: Path) -> None:
    """Every byte that changes is noticed; a missing file is no error, nor is a folder that cannot be written to."""
    PROGRESS.save(str(tmp_path), PROGRESS.findings)
    data = (tmp_path / NAME).read_bytes()
    for at in range(0, len(data), 7):
        (tmp_path / NAME).write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        assert read_progress(str(tmp_path)) in (ScrubProgress(), PROGRESS)  # the latter: of white space between fields
    (tmp_path / NAME).unlink()
    assert read_progress(str(tmp_path)) == ScrubProgress()
    PROGRESS.save(str(tmp_path / "nowhere"), [])


# -- findings: what is shown of them, and how they come and end ----------------------------------------------------------

ITEM = ScrubItem("log", "seg-1", "/n/log/seg-1", 100)
FOUND = ScrubFinding.of(ITEM, Damage("body_crc", "/n/log/seg-1", 8192, 3, 1, 44, 1 << 60), 0.0)


def test_a_finding_shows_file_offset_partition_and_transaction() -> None:
    """The transaction as text, as everywhere; what is not known is left out."""
    assert FOUND.shown() == {
        "kind": "log",
        "path": "/n/log/seg-1",
        "offset": 8192,
        "block": 3,
        "partition": 1,
        "index": 44,
        "txn_id": str(1 << 60),
        "what": "body_crc",
        "found_at": "1970-01-01T00:00:00Z",
        "repair": "",
    }
    item = ScrubItem("archive_snapshot", "snap-6eaf29dc-n1-p0002-0000000000000016", "/n/archive/x", 1)
    shown = ScrubFinding.of(item, Damage("what", "/n/archive/x"), 1.0).shown()
    assert (shown["partition"], shown["index"]) == (2, 16)
    assert "offset" not in shown


def test_findings_are_one_per_file_and_survive_as_plain_values() -> None:
    """A later look replaces the earlier one; an end keeps the newest few."""
    findings = Findings([])
    for number in range(ENDED_SHOWN + 3):
        findings.put(ScrubFinding.of(ScrubItem("log", f"seg-{number}", "p", 1), Damage("bad", "p"), float(number)))
        findings.put(FOUND)
        over = findings.end(("log", f"seg-{number}"), 9.0, "mended")
        assert over is not None
        assert (over.repair, over.ended_at) == ("mended", 9.0)
    assert findings.find(("log", "seg-9999")) is None
    assert findings.end(("log", "seg-9999"), 9.0, "") is None
    assert len(findings.ended) == ENDED_SHOWN
    again = Findings(findings.as_values())
    assert (again.open, again.ended) == (findings.open, findings.ended)


def test_findings_of_another_version_are_left_out() -> None:
    """They are found again."""
    other: dict[str, Any] = {**Findings([]).as_values()[0]} if Findings([]).as_values() else {"kind": "log"}
    assert Findings([other]).open == []
