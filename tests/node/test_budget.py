"""A real node snapshots itself: so that its recovery stays within the budget, and when its newest snapshot is old."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from cmdlog.node.background import snapshot_schedule
from cmdlog.node.snapshots import snapshotter
from tests.node.rig import ask, open_node
from tests.waiting import wait_for

pytestmark = pytest.mark.slow
NAPS = 15


def test_forecast_beyond_the_budget_brings_a_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Naps of 20 ms: half of a budget of half a second is reached after a dozen; the snapshot takes them off the forecast."""
    monkeypatch.setattr(snapshot_schedule, "REPLAY_MIN_S", 0.05)
    node = open_node(tmp_path, partitions=2, recovery_budget_s=0.5)
    taken = 0
    for n in range(200):
        ask(node, "nap", id=n % 8, seconds=0.02)
        status = node.status()
        if taken := status["snapshots"]["taken"]:
            break
    assert taken
    assert n >= 2, "not for nothing"
    wait_for(lambda: node.status()["predicted_recovery_s"] < 0.5)
    status = node.status()
    assert status["snapshots"]["last_why"] == "budget"
    assert status["recovery"]["budget_s"] == 0.5
    assert status["recovery"]["call_us"]["nap"] > 18_000
    node.close()


def test_forecast_is_about_what_the_replay_takes(tmp_path: Path) -> None:
    """After a loss of power it runs all of these calls, at what each took live; the next life finds that again."""
    node = open_node(tmp_path, partitions=1, recovery_budget_s=0.0)
    node.take_snapshot()
    for n in range(NAPS):
        ask(node, "nap", id=n, seconds=0.02)
    wait_for(lambda: node.status()["recovery"]["partitions"]["0"]["calls_behind"] == NAPS)
    predicted, each_us = node.status()["predicted_recovery_s"], node.status()["recovery"]["call_us"]["nap"]
    assert predicted == pytest.approx(NAPS * each_us / 1e6, rel=0.3)
    assert each_us > 18_000
    node.close()
    node = open_node(tmp_path, partitions=1)
    assert node.status()["recovery"]["partitions"]["0"]["replay_s"] == pytest.approx(predicted, rel=0.3)
    node.close()
    shutil.rmtree(tmp_path / "state")
    node = open_node(tmp_path, partitions=1)
    assert node.recovery[0]["replayed_calls"] == NAPS
    node.close()


def test_old_snapshot_is_renewed_only_when_there_is_something_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle partition is left alone, however old its snapshot is: no age of one is looked at before it has executed a call."""
    asked: list[Any] = []

    def due(*given: Any, ages_s: Any, **more: Any) -> Any:
        asked.append(ages_s)
        return snapshot_schedule.due(*given, ages_s=ages_s, **more)

    monkeypatch.setattr(snapshotter, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(snapshotter, "due", due)
    node = open_node(tmp_path, partitions=2, snapshot_age_max_s=0.2)
    for taken in (1, 2):
        ask(node, "bump", id=1, amount=1)
        wait_for(lambda taken=taken: node.status()["snapshots"]["taken"] == taken)  # type: ignore[misc]
        wait_for(lambda: asked[-3:] == [{}] * 3)
    assert node.status()["snapshots"]["last_why"] == "age"
    node.close()
    assert all(len(ages) <= 1 for ages in asked)
