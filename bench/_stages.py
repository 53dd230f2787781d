"""A call's time by stage, from the histograms that the server keeps: what happened between two looks at `/metrics`.

One rule: the server's clock says what happens inside, the client's what happened in all; what is left over is HTTP, the event
loop and the client itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from bench._server import fetch

STAGES = "cmdlog_call_stage_seconds"
OUTCOMES = "cmdlog_calls"


@dataclass(frozen=True, slots=True)
class Look:
    """What `/metrics` said at one moment."""

    sums: Mapping[str, float]  # by stage, seconds
    buckets: Mapping[str, Mapping[float, float]]  # by stage: upper bound -> calls up to it
    failed: float  # calls with another outcome than a result

    @staticmethod
    def at(port: int) -> Look:
        sums: dict[str, float] = {}
        buckets: dict[str, dict[float, float]] = {}
        failed = 0.0
        for family in text_string_to_metric_families(fetch(port, "/metrics").decode()):
            for name, labels, value in ((sample.name, sample.labels, sample.value) for sample in family.samples):
                if family.name == OUTCOMES and labels.get("outcome") != "ok" and name.endswith("_total"):
                    failed += value
                elif name == STAGES + "_sum":
                    sums[labels["stage"]] = value
                elif name == STAGES + "_bucket":
                    buckets.setdefault(labels["stage"], {})[float(labels["le"])] = value
        return Look(sums, buckets, failed)

    def until(self, later: Look, total_ms: float) -> dict[str, dict[str, float]]:
        """Mean and p99 in ms by stage, and the mean of what is left of a total. Raises: RuntimeError when calls have failed."""
        if later.failed > self.failed:
            raise RuntimeError(f"{later.failed - self.failed:.0f} calls had no result")
        found: dict[str, dict[str, float]] = {}
        for stage, of in later.buckets.items():
            counts = {bound: count - self.buckets[stage][bound] for bound, count in of.items()}
            calls = max(counts.values())
            if calls:
                mean = (later.sums[stage] - self.sums[stage]) / calls
                found[stage] = {"mean_ms": mean * 1e3, "p99_ms": _quantile(counts, 0.99 * calls) * 1e3}
        found["rest"] = {"mean_ms": total_ms - sum(row["mean_ms"] for row in found.values())}
        return found


def _quantile(counts: Mapping[float, float], rank: float) -> float:
    """Where the cumulative count passes the rank, on a straight line within its bucket."""
    ordered = [(0.0, 0.0), *sorted(counts.items())]
    for (below, low), (bound, high) in pairwise(ordered):
        if high >= rank:
            return below if bound == float("inf") else below + (bound - below) * (rank - low) / max(high - low, 1.0)
    return ordered[-1][0]


def told_stages(found: Mapping[str, Mapping[str, Any]]) -> str:
    """One line of means."""
    return "mean ms by stage: " + ", ".join(f"{stage} {row['mean_ms']:.2f}" for stage, row in found.items())
