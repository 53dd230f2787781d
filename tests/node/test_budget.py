"""A real node snapshots itself: so that its recovery stays within the budget, and when its newest snapshot is old."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from cmdlog.node.background import snapshot_schedule
from tests.node.rig import ask, open_node, wait_for

pytestmark = pytest.mark.slow


def test_forecast_beyond_the_budget_brings_a_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Naps of 20 ms: half of a budget of half a second is reached after some dozen; the snapshot takes them off the forecast."""
    monkeypatch.setattr(snapshot_schedule, "REPLAY_MIN_S", 0.05)
    node = open_node(tmp_path, partitions=2, recovery_budget_s=0.5)
    taken = 0
    for n in range(200):
        ask(node, "nap", id=n % 8, seconds=0.02)
        status = node.status()
        if taken := status["snapshots"]["taken"]:
            break
    assert taken
    assert n >= 8, "not for nothing"
    wait_for(lambda: node.status()["predicted_recovery_s"] < 0.5)
    status = node.status()
    assert status["snapshots"]["last_why"] == "budget"
    assert status["recovery"]["budget_s"] == 0.5
    assert 18_000 < status["recovery"]["call_us"]["nap"] < 60_000
    node.close()


def test_forecast_is_about_what_the_replay_takes(tmp_path: Path) -> None:
    """After a loss of power, within a factor of two: measured live, and found again by the next life."""
    node = open_node(tmp_path, partitions=1, recovery_budget_s=0.0)
    node.take_snapshot()
    for n in range(40):
        ask(node, "nap", id=n, seconds=0.02)
    wait_for(lambda: node.status()["recovery"]["partitions"]["0"]["calls_behind"] == 40)
    predicted = node.status()["predicted_recovery_s"]
    node.close()
    node = open_node(tmp_path, partitions=1)
    assert node.status()["recovery"]["partitions"]["0"]["replay_s"] == pytest.approx(predicted, rel=0.3)
    node.close()
    shutil.rmtree(tmp_path / "state")
    began = time.monotonic()
    node = open_node(tmp_path, partitions=1)
    assert predicted / 2 < time.monotonic() - began
    assert predicted > 0.75
    assert node.recovery[0]["replayed_calls"] == 40
    node.close()


def test_old_snapshot_is_renewed_only_when_there_is_something_new(tmp_path: Path) -> None:
    """An idle partition is left alone, however old its snapshot is."""
    node = open_node(tmp_path, partitions=2, snapshot_age_max_s=0.2)
    ask(node, "bump", id=1, amount=1)
    wait_for(lambda: node.status()["snapshots"]["taken"] == 1)
    time.sleep(1.5)
    status = node.status()["snapshots"]
    assert (status["taken"], status["last_why"]) == (1, "age")
    node.close()
