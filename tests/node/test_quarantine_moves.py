"""Moves into the quarantine: durable, repeated without harm, and nothing is deleted."""

from __future__ import annotations

import os
from pathlib import Path

from cmdlog.node.background.quarantine_moves import quarantine_path, set_aside
from cmdlog.wal.files import RealFiles


def test_moves_are_done_once_and_keep_the_bytes(tmp_path: Path) -> None:
    """Folders are made; what is not there any more is passed over, so that an interrupted move is repeated."""
    (tmp_path / "snapshots" / "p0").mkdir(parents=True)
    (tmp_path / "snapshots" / "p0" / "manifest.json").write_bytes(b"m")
    target = quarantine_path(str(tmp_path), seconds=0.0, reason="scrub", name="snapshot-p0")
    assert target == str(tmp_path / "quarantine" / "19700101T000000Z-scrub" / "snapshot-p0")
    moves = {str(tmp_path / "snapshots" / "p0"): target, str(tmp_path / "missing"): os.path.join(target, "missing")}
    for _ in range(2):
        set_aside(RealFiles(), moves)
        assert (Path(target) / "manifest.json").read_bytes() == b"m"
        assert os.listdir(tmp_path / "snapshots") == []
