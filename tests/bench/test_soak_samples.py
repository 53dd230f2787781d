"""Whether a line of the soak is flat."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench._soak_samples import Samples, fit_trend


def test_trend_is_the_line_through_points() -> None:
    """Its slope, and its heights where it begins and ends; noise around it cancels out."""
    trend = fit_trend([0.0, 1.0, 2.0, 3.0], [11.0, 11.0, 15.0, 15.0])
    assert trend.per_x == pytest.approx(1.6)
    assert (trend.begin, trend.end) == pytest.approx((10.6, 15.4))


def test_trend_of_one_moment_is_level() -> None:
    """Calls that stand still say nothing about growth by calls."""
    assert fit_trend([2.0, 2.0], [5.0, 7.0]) == (6.0, 6.0, 0.0)


def test_memory_that_fills_at_the_start_is_flat() -> None:
    """The first fifth is left out; growth after it is told by calls and by hours."""
    samples = Samples(port=0, data=Path(), pids={})
    samples.at_s, samples.calls_at = [36.0 * at for at in range(10)], [100_000 * at for at in range(10)]
    samples.lines = {"memory": {"flat": [10.0, 90.0, *[100.0] * 8], "grows": [100.0 + at for at in range(10)]}}
    trends = samples.memory_trends()
    assert trends["flat"][0].per_x == pytest.approx(0.0)
    assert trends["grows"][0].per_x == pytest.approx(10.0)
    assert trends["grows"][1].per_x == pytest.approx(100.0)
