"""Starts of a node whose log is full: none costs room that the log does not have, and with the cause gone the node gets out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cmdlog.node.node import Node
from cmdlog.node.outcome import CallOutcome, LogFullRefusal
from cmdlog.wal.directory.sizing import skip_bytes
from cmdlog.wal.format.record import RecordKind
from tests.node.fulllogs import (
    SMALL_RING,
    eat_reserve,
    fill,
    gets_out,
    kill,
    log_bytes,
    newer_program,
    refusals,
    restart,
    store,
    stored,
    without_snapshots,
)
from tests.node.rig import ask, open_node
from tests.waiting import wait_for

FEW = 6  # more than ate the reserve when each start wrote its hard states
MANY = pytest.param(1000, marks=pytest.mark.torture)


@pytest.mark.slow
@pytest.mark.parametrize("starts", [FEW, MANY])
@pytest.mark.parametrize("ends", ["closed", "killed"])
def test_starts_of_a_full_log_write_nothing(tmp_path: Path, ends: str, starts: int) -> None:
    """The same code in the same environment has nothing to add: the log ends where it ended, however often the node starts."""
    directory = tmp_path / "data"
    with without_snapshots():
        node = open_node(directory, inline=True, **SMALL_RING)
        count = fill(node)
        node.close()
        node = restart(directory)
        before = log_bytes(node)
        for _ in range(starts):
            kill(node) if ends == "killed" else node.close()
            node = restart(directory)
            assert not store(node, count)
        assert stored(node) == count
        assert log_bytes(node) == before
        node.close()
    node = restart(directory)
    gets_out(node)
    node.close()


@pytest.mark.slow
@pytest.mark.parametrize("starts", [FEW // 2, MANY])
def test_a_log_without_any_reserve_left_starts_and_gets_out(tmp_path: Path, starts: int) -> None:
    """As a version left it whose starts used the reserve up: it serves reads, refuses writes by name, and snapshots free it."""
    directory = tmp_path / "data"
    with without_snapshots():
        node = open_node(directory, inline=True, **SMALL_RING)
        count = fill(node)
        node.close()
        eat_reserve(directory)
        for _ in range(starts):
            node = restart(directory)
            assert node.status()["log"]["reserve"]["left_bytes"] < 4096
            assert ask(node, "peek", id=1) == 0
            with pytest.raises(LogFullRefusal, match="snapshot-p"):
                ask(node, "bump", id=1, amount=1)
            kill(node)
    node = restart(directory)
    gets_out(node)
    assert stored(node) > count
    node.close()
    node = restart(directory)
    assert node.status()["log"]["room_bytes"] > 0
    node.close()


def waits_for_archive(node: Node, why: Callable[[Node], str]) -> None:
    """Until calls are refused because of it."""
    wait_for(lambda: "archive_bytes_max" in why(node), every_s=0.001)


@pytest.mark.slow
@pytest.mark.parametrize("starts", [FEW // 2, MANY])
def test_a_full_archive_costs_no_reserve_and_room_for_it_frees_the_log(tmp_path: Path, starts: int) -> None:
    """Starts, and snapshots that are asked for, leave what it takes to get out; then only the archive's limit is lifted."""
    directory = tmp_path / "data"
    kept: dict[str, Any] = {"retention_window_s": 3600.0, "snapshots_kept": 2}
    small = {**kept, "archive_bytes_max": 100 << 10}
    node = open_node(directory, inline=True, **SMALL_RING, **small)
    why = refusals()
    waits_for_archive(node, why)
    for _ in range(starts):
        kill(node)
        node = restart(directory, **small)
        waits_for_archive(node, why)
        node.take_snapshot()
        assert node.status()["log"]["reserve"]["left_bytes"] >= skip_bytes(2)
    node.close()
    node = restart(directory, **kept)
    gets_out(node)
    node.close()


@pytest.mark.slow
@pytest.mark.parametrize("starts", [FEW // 2, MANY])
def test_a_deploy_into_a_full_log_waits_for_room(tmp_path: Path, starts: int) -> None:
    """New code and a new table: the node comes up, old rows are read, calls get `log_full`; after that both are there."""
    directory = tmp_path / "data"
    with without_snapshots():
        node = open_node(directory, inline=True, **SMALL_RING)
        count = fill(node)
        node.close()
        for _ in range(starts):
            node = open_node(directory, app=newer_program(), inline=True)
            assert node.sequencer.opening.waits_for_room
            assert stored(node) == count
            with pytest.raises(LogFullRefusal):
                ask(node, "remark", id=1, text="new")
            with pytest.raises(LogFullRefusal, match="tables"):
                ask(node, "remarks", id=1)
            kill(node)
    node = open_node(directory, app=newer_program(), inline=True)
    wait_for(lambda: not node.sequencer.opening.waits)
    wait_for(lambda: _remarked(node))
    assert ask(node, "remarks", id=1) >= 1
    node.close()
    node = open_node(directory, app=newer_program(), inline=True)
    assert node.status()["catalog_version"] == 2
    node.close()


def _remarked(node: Node) -> bool:
    try:
        return bool(ask(node, "remark", id=1, text="new"))
    except LogFullRefusal:
        return False


@pytest.mark.slow
def test_a_snapshot_of_a_full_log_without_room_returns(tmp_path: Path) -> None:
    """It needs no mark: what it holds is durable, the anchor moves, and a recovery point is made too."""
    directory = tmp_path / "data"
    with without_snapshots():
        node = open_node(directory, inline=True, **SMALL_RING)
        fill(node)
        node.close()
    eat_reserve(directory)
    node = restart(directory)
    assert len(node.take_snapshot()) == 2
    assert node.take_point()["point"]
    gets_out(node)
    node.close()


@pytest.mark.slow
def test_a_call_that_hangs_as_the_log_fills_is_skipped_at_the_next_start(tmp_path: Path) -> None:
    """Notes and snapshots leave the room of one skip in the reserve, so a call that nobody can run stops no start."""
    directory = tmp_path / "data"
    with without_snapshots():
        node = open_node(directory, **SMALL_RING)
        fill(node)
        for _ in range(3):
            node.sequencer.log_feed.flush_notes()
        node.close()
        node = open_node(directory)
        assert node.status()["log"]["reserve"]["left_bytes"] >= skip_bytes(2)
        told: list[object] = []
        node.sequencer.intake.add_entries(
            [(p, RecordKind.SKIP, {"index": 1, "position": 0, "reason": "planted"}) for p in range(2)], told.append
        )
        wait_for(lambda: bool(told))
        assert isinstance(told[0], CallOutcome)
        node.close()
