"""Rows of the table of metrics: name, type, labels, meaning.

One rule: a row only describes; what fills it is in `cmdlog.node.reporting.prometheus` and, for a cluster, in `cluster_metrics`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cmdlog.node.telemetry.stage_timings import SECONDS

Kind = Literal["counter", "gauge", "histogram"]
Samples = Iterable[tuple[Sequence[str], Any]]  # label values, and a number or a Histogram


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One metric of the table."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    meaning: str
    bounds: Sequence[float] = ()  # of a histogram's buckets


def counter_row(name: str, meaning: str, *labels: str) -> MetricRow:
    """A number that only grows."""
    return MetricRow(name, "counter", labels, meaning)


def gauge_row(name: str, meaning: str, *labels: str) -> MetricRow:
    """A number of this moment."""
    return MetricRow(name, "gauge", labels, meaning)


def times_row(name: str, meaning: str, *labels: str) -> MetricRow:
    """A histogram of seconds."""
    return MetricRow(name, "histogram", labels, meaning, SECONDS)
