"""A newest snapshot that is damaged: the start says what it used instead, and nothing is lost."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cmdlog.cli.server.serve import tell_start
from cmdlog.wal.files import RealFiles
from cmdlog.wal.log import Log
from replay.recover.in_place import bring_up
from snapshot.space_reserve import Reserve
from tests.node.rig import ask, counters, open_node
from tests.waiting import wait_for

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


def test_a_start_may_use_the_space_that_is_held_for_a_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full volume a node that cannot write a few pages of state would not start; the snapshot thread holds it again."""
    node = open_node(tmp_path, partitions=1, inline=True)
    ask(node, "bump", id=1, amount=5)
    node.take_snapshot()
    node.close()
    reserve = tmp_path / "snapshots" / "reserve"
    assert reserve.exists()
    wal = Log.open(RealFiles(), str(tmp_path))
    bring_up(RealFiles(), wal)
    assert reserve.exists(), "the volume has room"
    monkeypatch.setattr(Reserve, "_free", lambda _self: 0)
    bring_up(RealFiles(), wal)
    assert not reserve.exists()
    wal.close()
    node = open_node(tmp_path, partitions=1, inline=True)
    wait_for(reserve.exists)
    node.close()
