"""A newest snapshot that is damaged: the start says what it used instead, and nothing is lost."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cmdlog.cli.serve import tell_start
from tests.node.rig import ask, counters, open_node

pytestmark = pytest.mark.slow


def test_damaged_newest_snapshot_is_named_at_the_start(tmp_path: Path) -> None:
    """After a loss of power: the older one and a longer log give the same rows, in status and on the terminal with the reason."""
    node = open_node(tmp_path, partitions=1, inline=True)
    for _ in range(2):
        ask(node, "bump", id=1, amount=5)
        node.take_snapshot()
    ask(node, "bump", id=1, amount=5)
    made = node.take_snapshot()[0]
    before = counters(node)
    node.close()
    image = tmp_path / "snapshots" / made["name"] / "image.sqlite"
    data = bytearray(image.read_bytes())
    data[len(data) // 2] ^= 1
    image.write_bytes(data)
    shutil.rmtree(tmp_path / "state")
    node = open_node(tmp_path, partitions=1, inline=True)
    assert counters(node) == before
    [part] = node.status()["start"]["recovery"]
    assert part["from"] == "snapshot"
    assert part["replayed_calls"] == 1
    assert [passed["name"] for passed in part["passed"]] == ["state file", made["name"]]
    assert "has changed: CRC-32C" in part["passed"][1]["why"]
    assert f"; not from {made['name']}: " in tell_start(part)
    node.close()
