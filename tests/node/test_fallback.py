"""A newest snapshot that is damaged: the start says what it used instead, and nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from cmdlog.wal.files import RealFiles
from cmdlog.wal.log import Log
from replay.recover.in_place import bring_up
from snapshot.space_reserve import Reserve
from tests.node.rig import ask, open_node
from tests.waiting import wait_for

pytestmark = pytest.mark.slow


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
