"""Recovery points: written when all ids up to theirs are durable, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cmdlog.node.snapshots import point_maker
from cmdlog.node.snapshots.point_maker import PointMaker
from cmdlog.wal.files import RealFiles
from snapshot.errors import SnapshotFailed

MADE: list[dict[str, Any]] = [
    {"partition": 0, "name": "p0000-0000000000000007", "log_block": 5},
    {"partition": 1, "name": "p0001-0000000000000009", "log_block": 3},
]


def maker(folder: Path, when_all_durable: Callable[[Callable[[], None]], None], *, given_up: bool = False) -> PointMaker:
    """Of a node whose log ends with block 11."""
    (folder / "snapshots").mkdir(exist_ok=True)
    return PointMaker(
        RealFiles(), str(folder), kept=2, when_all_durable=when_all_durable, log_end=lambda: 11, given_up=lambda: given_up
    )


def test_a_point_pins_the_log_from_the_oldest_snapshot_to_the_end(tmp_path: Path) -> None:
    """And only the newest ones are kept."""
    points = maker(tmp_path, lambda done: done())
    for txn_id in (100, 200, 300):
        assert points.make_point(txn_id, MADE)["txn_id"] == str(txn_id)
    assert [point["txn_id"] for point in points.listed()] == ["200", "300"]
    assert (points.listed()[0]["from_block"], points.listed()[0]["to_block"]) == (3, 11)


def test_a_point_that_cannot_become_durable_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log has no room, or the node stops."""
    monkeypatch.setattr(point_maker, "LOOK_EVERY_S", 0.001)
    points = maker(tmp_path, lambda done: None, given_up=True)
    with pytest.raises(SnapshotFailed, match="no room"):
        points.make_point(100, MADE)
    assert points.listed() == []
