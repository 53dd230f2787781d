"""Rows of the table of metrics are what their makers say."""

from __future__ import annotations

from cmdlog.node.telemetry.metric_rows import MetricRow, counter_row, gauge_row, times_row
from cmdlog.node.telemetry.stage_timings import SECONDS


def test_rows_have_their_type_labels_and_buckets() -> None:
    """Only a histogram has buckets: those of all times."""
    assert counter_row("a_total", "what", "x", "y") == MetricRow("a_total", "counter", ("x", "y"), "what")
    assert gauge_row("a", "what") == MetricRow("a", "gauge", (), "what")
    assert times_row("a_seconds", "what") == MetricRow("a_seconds", "histogram", (), "what", SECONDS)
