"""Latencies in buckets of equal ratio."""

from __future__ import annotations

import random

import pytest

from bench._common import percentile
from bench._histogram import Histogram


def histogram_of(values: list[float]) -> Histogram:
    """All of them noted."""
    found = Histogram()
    for value in values:
        found.note(value)
    return found


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99, 0.999, 1.0])
def test_percentile_is_that_of_the_values_within_a_bucket(share: float) -> None:
    """At most two hundredths too high, never too low."""
    chance = random.Random(1)
    values = [chance.lognormvariate(-6, 2) for _ in range(5000)]
    exact = percentile(values, share)
    assert exact * 0.99 <= histogram_of(values).percentile(share) <= exact * 1.03


def test_histograms_add_up() -> None:
    """The percentile of two processes is that of all their calls."""
    one, other = histogram_of([0.001] * 99), histogram_of([0.1])
    one.add(other)
    assert one.percentile(0.99) == pytest.approx(0.001, rel=0.03)
    assert one.percentile(1.0) == pytest.approx(0.1, rel=0.03)


def test_nothing_has_no_latency() -> None:
    """An interval in which no call was answered."""
    assert Histogram().percentile(0.5) == 0
