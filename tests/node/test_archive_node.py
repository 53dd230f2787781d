"""The archive of a real node: what callers, status and metrics are told, and who does the copying."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cmdlog.node.node import Node
from cmdlog.node.outcome import LogFullRefusal
from cmdlog.node.prometheus import Exposition
from cmdlog.node.telemetry.request_stats import RequestStats
from cmdlog.wal.files import RealFiles
from snapshot.archive_layout import list_segments
from tests.node.rig import ask, open_node
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

SEGMENT_BYTES = 256 << 10
RING: dict[str, Any] = {
    "partitions": 1, "segment_bytes": SEGMENT_BYTES, "segments": 6, "log_reserve_bytes": 128 << 10, "call_bytes_max": 30_000,
    "batch_bytes_max": 30_000, "snapshots_kept": 2, "retention_window_s": 3600.0,
}  # fmt: skip


def fill(node: Node, bytes_wanted: int, *, first: int) -> str:
    """Writes so much log, or until the archive is why it is refused; what it says then, "" when it was not."""
    why: list[str] = []

    def took(seq: int) -> bool:
        try:
            ask(node, "mixed", id=seq, amount="1.5", at="2026-01-01T00:00:00Z", raw="eHl6" * 7_000)
        except LogFullRefusal as full:
            why[:] = [str(full)] if "archive" in str(full) else []
            return bool(why)
        return True

    for seq in range(first, first + bytes_wanted // 28_000):
        wait_for(partial(took, seq))
        if why:
            break
    return "".join(why)


def test_full_archive_refuses_writes_naming_it_and_room_ends_it(tmp_path: Path) -> None:
    """`log_full` names the archive; reads go on; with room the node goes on by itself; status and metrics say all of it."""
    node = open_node(tmp_path / "node", **RING, archive_bytes_max=3 * SEGMENT_BYTES)
    exposition = Exposition(RequestStats(slow_call_ms=1000), lambda: node.overview)
    try:
        why = fill(node, 14 * SEGMENT_BYTES, first=0)
        assert "archive_bytes_max=786432" in why
        assert str(tmp_path / "node" / "archive") in why
        status = node.status()["archive"]
        assert status["problem"] in why
        assert status["oldest_txn"] == "0"
        assert status["segments"] > 0
        holder = node.status()["log"]["held_by"]
        assert (holder["anchor"], holder["block"]) == ("archive", node.status()["log"]["first_block"])
        assert 0 < holder["since"] <= time.time()
        text = exposition.render()[1].decode()
        assert "\ncmdlog_archive_stuck 1.0" in text
        assert 'cmdlog_log_held_seconds{anchor="archive"}' in text
        assert '\ncmdlog_archive_files{kind="segment"} ' in text
        assert "\ncmdlog_retention_window_satisfied 1.0" in text
        node.query("SELECT 1")

        def has_room() -> bool:
            """Room is made as often as it is taken: segments of the log were waiting for it."""
            for segment in list_segments(RealFiles(), node.directory, node.overview.wal.instance.identity):
                for path in (segment.path, segment.path.replace(".seg", ".json")):
                    Path(path).unlink(missing_ok=True)
            status = node.status()
            return status["archive"]["problem"] is None and status["log"]["room_bytes"] > 100_000

        wait_for(has_room)
        assert fill(node, SEGMENT_BYTES // 2, first=1000) == ""
    finally:
        node.close()
