"""What HTTP processes have counted, added up."""

from __future__ import annotations

from cmdlog.api.processes.process_stats import ProcessStats, encode_totals
from cmdlog.node.telemetry.request_stats import RequestStats


def count(front: RequestStats) -> None:
    """One of each."""
    front.answered("call", 200)
    front.latency.add(0.001)
    front.refuse("bump", "not_ready")
    front.error("not_ready", "bump", "id-1", "text")
    front.slow_calls += 1


def test_totals_are_added_once_however_often_they_are_told() -> None:
    """Two processes tell theirs again and again; the node's own are beside them."""
    node, fronts = RequestStats(), [RequestStats(), RequestStats()]
    stats = [ProcessStats(node, {}) for _ in fronts]
    count(node)
    for _ in range(3):
        for front, known in zip(fronts, stats, strict=True):
            count(front)
            for _ in range(2):
                known.take_totals(encode_totals(front, streams=1))
    assert node.requests == {("call", 200): 7}
    assert node.refused == {("bump", "not_ready"): 7}
    assert sum(node.latency.counts) == 7
    assert round(node.latency.total, 6) == 0.007
    assert node.slow_calls == 7
    (error,) = node.errors()
    assert (error["count"], error["request_id"]) == (7, "id-1")
    assert [known.calls(("call", 200)) for known in stats] == [3, 3]


def test_what_is_open_counts_while_its_process_lives() -> None:
    """Connections are those of the living; what was cut stays counted."""
    node, front = RequestStats(), RequestStats()
    front.show_connections(lambda: 5, cut=lambda: {"evicted": 2})
    cut: dict[str, int] = {}
    for _ in range(2):  # processes, one after the other
        stats = ProcessStats(node, cut)
        for _ in range(2):  # reports
            stats.take_totals(encode_totals(front, streams=0))
        assert stats.connections == 5
    assert cut == {"evicted": 4}
