"""What the node gives to its snapshots."""

from __future__ import annotations

from pathlib import Path

from tests.snapshot.thread import Node


def test_each_node_has_work_of_its_own(tmp_path: Path) -> None:
    """Snapshots of one database that hang are not shown by another one of the same process."""
    first, second = Node(tmp_path / "a"), Node(tmp_path / "b")
    try:
        with first.snapshotter._hooks.work.track("snapshot", "of the first"):
            works = [node.snapshotter._hooks.work._under_way() for node in (first, second)]
        assert [len(under_way) for under_way in works] == [1, 0]
    finally:
        first.close()
        second.close()
