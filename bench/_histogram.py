"""Latencies of a long run in little memory: counts in buckets of equal ratio, a fiftieth wide.

One rule: histograms of several processes add up, so a percentile is that of all calls, never a mean of percentiles.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Final

WIDTH: Final = math.log(1.02)


class Histogram:
    """How many latencies lie in which bucket."""

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        self.counts = Counter(counts or {})

    def note(self, seconds: float) -> None:
        self.counts[math.floor(math.log(max(seconds, 1e-9)) / WIDTH)] += 1

    def add(self, other: Histogram) -> None:
        self.counts.update(other.counts)

    def percentile(self, share: float) -> float:
        """Seconds, at most two hundredths too many; 0 when there is nothing."""
        rank = share * self.counts.total()
        for bucket in sorted(self.counts):
            rank -= self.counts[bucket]
            if rank <= 0:
                return math.exp((bucket + 1) * WIDTH)
        return 0.0
