"""Findings: what is shown of them, and how they come and end."""

from __future__ import annotations

from typing import Any

from cmdlog.node.scrub.file_scan import Damage
from cmdlog.node.scrub.finding import ENDED_SHOWN, Findings, ScrubFinding
from cmdlog.node.scrub.scrub_plan import ScrubItem

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
