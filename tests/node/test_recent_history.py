"""The history: a row per second from differences, bounded, and only the new ones when asked so."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from cmdlog.node.telemetry.recent_history import LINES, PARTITIONS_KEPT_MAX, ROWS_KEPT, SHARES, Gauges, RecentHistory
from cmdlog.node.telemetry.request_stats import RequestStats
from cmdlog.node.telemetry.stage_timings import StageTimings
from tests.node.rig import ask, open_node
from tests.waiting import wait_for


class Seconds:
    """A history on a clock that the test moves."""

    def __init__(self, partitions: int = 1) -> None:
        self.now = [100.0]
        self.meter = StageTimings(["p"], partitions=partitions, now=lambda: self.now[0])
        self.history = RecentHistory(self.meter, wall=lambda: 1000.0 + self.now[0])
        self.front = RequestStats()
        self.history.listen_to(self.front)
        self.marks = {p: {"durable": 5, "applied": 4, "open_calls": 3} for p in range(partitions)}
        self.looks = 0

    def look(self, after_s: float) -> None:
        self.now[0] += after_s
        self.history.sample_if_due(self.gauges)

    def gauges(self) -> Gauges:
        self.looks += 1
        return Gauges(0.25, 7, self.marks)


def test_a_row_has_the_rates_and_quantiles_of_its_second() -> None:
    """Calls, refusals and times of one second are in that second's row alone; the next one has none."""
    s = Seconds()
    s.meter.count([0] * 50, bytes(50))
    s.front.refuse("p", "not_ready")
    s.meter.stages["log"].add(0.004, 50)
    s.front.latency.add(0.020, 50)
    s.look(1.0)
    s.look(1.0)
    told = s.history.since()
    columns = told["columns"]
    assert columns["calls_per_s"] == [50, 0]
    assert columns["refused_per_s"] == [1, 0]
    assert columns["log_fill"] == [0.25, 0.25]
    assert columns["inflight_calls"] == [7, 7]
    assert columns["time"] == [1101.0, 1102.0]
    assert 2.5 <= columns["p50_ms"]["log"][0] <= 4
    assert 16 <= columns["p99_ms"]["total"][0] <= 25
    assert columns["p50_ms"]["log"][1] is None
    assert columns["partitions"] == {"0": {"durable": [5, 5], "applied": [4, 4], "open_calls": [3, 3]}}
    assert all(columns[share].keys() == set(LINES) for share in SHARES)


def test_a_late_look_gives_the_rate_of_the_time_that_passed() -> None:
    """A row that comes three seconds late is one row, with calls per second over all of that time."""
    s = Seconds()
    s.meter.count([0] * 40, bytes(40))
    s.look(4.0)
    assert s.history.since()["columns"]["calls_per_s"] == [10]


def test_looks_within_a_second_cost_nothing() -> None:
    """Gauges are asked for once per row, not per look."""
    s = Seconds()
    for _ in range(100):
        s.look(0.02)
    assert s.looks == 1 + (s.now[0] >= 102.0)


def test_only_newer_rows_are_told() -> None:
    """`next` of one answer, given as `after`, brings what came since, and the same `next` when nothing did."""
    s = Seconds()
    for _ in range(3):
        s.look(1.0)
    first = s.history.since()
    assert (first["next"], len(first["columns"]["time"])) == (3, 3)
    again = s.history.since(first["next"])
    assert (again["next"], again["columns"]["time"]) == (3, [])
    s.look(1.0)
    assert s.history.since(first["next"])["columns"]["time"] == [1104.0]


def test_memory_is_bounded() -> None:
    """After an hour there are ten minutes of rows, of the first partitions."""
    s = Seconds(partitions=PARTITIONS_KEPT_MAX + 10)
    for _ in range(3600):
        s.look(1.0)
    columns = s.history.since()["columns"]
    assert len(columns["time"]) == ROWS_KEPT
    assert len(columns["partitions"]) == PARTITIONS_KEPT_MAX


@pytest.mark.slow
def test_a_running_node_fills_its_history(tmp_path: Path) -> None:
    """Within seconds of its start a node shows rows with its calls, plain enough for JSON; before `attach` it shows none."""
    node = open_node(tmp_path / "data", inline=True, partitions=2)
    try:
        ask(node, "bump", id=1, amount=1)
        node.front.error("aborted", "bump", "id-1")
        wait_for(lambda: len(node.telemetry()["history"]["columns"]["time"]) >= 1)
        told = orjson.loads(orjson.dumps(node.telemetry()))
        assert sum(told["history"]["columns"]["calls_per_s"]) > 0
        assert told["history"]["columns"]["p99_ms"]["sync"][0] > 0
        assert told["errors"][0]["request_id"] == "id-1"
        assert told["node"]["ready"] is True
    finally:
        node.close()
    assert node.telemetry()["node"]["ready"] is False
