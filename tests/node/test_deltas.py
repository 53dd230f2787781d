"""Deltas in a real node: taken when it is known what changed, restored like any snapshot, and never missed when they are not."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from cmdlog.node.node import Node
from snapshot import retention
from tests.node.rig import ask, counters, kill, open_node
from tests.waiting import wait_for

pytestmark = pytest.mark.slow
ROWS = 40


@pytest.fixture(autouse=True)
def small_states_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small state is snapshotted as if it were a large one."""
    monkeypatch.setattr(retention, "IMAGE_BYTES_MIN", 0)
    monkeypatch.setattr(retention, "ROWS_SHARE", 100.0)


def work(node: Node, times: int = 1) -> None:
    """Changes every row."""
    for _ in range(times):
        for row in range(ROWS):
            ask(node, "bump", id=row, amount=1)


def take(node: Node, count: int) -> list[str]:
    """Kinds of as many snapshots of partition 0, each with work before it."""
    kinds = []
    for _ in range(count):
        ask(node, "bump", id=count, amount=1)
        kinds.append(str(node.take_snapshot(0)[0]["kind"]))
    return kinds


def reopened_without_state(directory: Path, **settings: Any) -> Node:
    """As after a loss of power: the state files are not believed."""
    shutil.rmtree(directory / "state")
    return open_node(directory, partitions=1, **settings)


def test_deltas_are_taken_in_turns_and_restored(tmp_path: Path) -> None:
    """After two whole images only what changed is written; a start without states comes to the same rows."""
    node = open_node(tmp_path, partitions=1, inline=True)
    work(node)
    assert take(node, 5) == ["full", "full", "delta", "delta", "delta"]
    work(node)
    before = counters(node)
    node.close()
    node = reopened_without_state(tmp_path, inline=True)
    assert counters(node) == before
    assert node.recovery[0]["from"] == "snapshot"
    assert take(node, 1) == ["full"], "what changed before the start is not known"
    node.close()


def test_site_that_died_knows_nothing_of_what_changed(tmp_path: Path) -> None:
    """Its successor writes whole images until both lineages are known again."""
    node = open_node(tmp_path, partitions=1)
    work(node)
    assert take(node, 3) == ["full", "full", "delta"]
    [pid] = node._sites.pids()
    kill(pid)
    wait_for(lambda: node._sites.pids() not in ([], [pid]))
    assert take(node, 4) == ["full", "full", "delta", "delta"]
    node.close()


@pytest.mark.parametrize("off", ["snapshot_deltas", "digest_rows"])
def test_deltas_can_be_switched_off(tmp_path: Path, off: str) -> None:
    """By their own setting, and with the row digests, which tell what changes."""
    settings: dict[str, Any] = {off: False}
    node = open_node(tmp_path, partitions=1, inline=True, **settings)
    assert take(node, 3) == ["full"] * 3
    node.close()
