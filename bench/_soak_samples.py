"""What a soak looks at while it runs: rate and latency, memory, log and snapshots; and whether a line of it is flat.

One rule: a look says what is, and never waits; what the server cannot say is asked of the kernel.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from bench._common import Bench, rss_bytes
from bench._server import fetch
from bench._soak_callers import Interval

MIB: Final = 2.0**20
SHARES: Final = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
WARM_SHARE: Final = 0.2  # of a run, in which caches fill


class Trend(NamedTuple):
    """A straight line through points, by least squares."""

    begin: float  # its height at the first point, and at the last one
    end: float
    per_x: float


def fit_trend(x: Sequence[float], y: Sequence[float]) -> Trend:
    """Of at least two points whose x differ; of fewer, a level line."""
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    spread = sum((at - mean_x) ** 2 for at in x)
    per_x = sum((at - mean_x) * (value - mean_y) for at, value in zip(x, y, strict=True)) / spread if spread else 0.0
    return Trend(mean_y + per_x * (x[0] - mean_x), mean_y + per_x * (x[-1] - mean_x), per_x)


@dataclass(slots=True)
class Samples:
    """One server over time."""

    port: int
    data: Path
    pids: dict[str, int]
    began: float = field(default_factory=time.monotonic)
    calls: int = 0  # acknowledged so far
    at_s: list[float] = field(default_factory=list)
    calls_at: list[int] = field(default_factory=list)
    lines: dict[str, dict[str, list[float]]] = field(default_factory=dict)  # by chart, by name
    totals: Interval = field(default_factory=Interval)

    def take(self, interval: Interval) -> None:
        """The next sample. Raises: OSError, RuntimeError (of a server that does not answer)."""
        status = orjson.loads(fetch(self.port, "/v1/status"))
        snapshots = orjson.loads(fetch(self.port, "/v1/snapshots"))["snapshots"]
        now = time.monotonic() - self.began
        passed = now - (self.at_s[-1] if self.at_s else 0.0)
        self.add_answers(interval)
        self.at_s.append(now)
        self.calls_at.append(self.calls)
        self._put("calls/s", "acknowledged", interval.acknowledged / passed)
        self._put("errors", "so far", float(self.totals.errors.total()))
        for name, share in SHARES.items():
            self._put("ms", name, interval.latencies.percentile(share) * 1e3)
        for name, pid in self.pids.items():
            self._put("memory", name, rss_bytes(pid) / MIB)
        self._put("disk", "log in use", status["log"]["bytes_used"] / MIB)
        self._put("disk", "snapshots", sum(snapshot["bytes"] for snapshot in snapshots) / MIB)
        self._put("disk", "states", sum(path.stat().st_size for path in (self.data / "state").glob("*.sqlite*")) / MIB)
        self._put("keys", "outcomes kept for retries", float(status["idempotency_keys"]))

    def add_answers(self, interval: Interval) -> None:
        """Answers that count, without a sample of their own."""
        self.calls += interval.acknowledged
        self.totals.acknowledged += interval.acknowledged
        self.totals.errors.update(interval.errors)
        self.totals.latencies.add(interval.latencies)

    def _put(self, chart: str, name: str, value: float) -> None:
        self.lines.setdefault(chart, {}).setdefault(name, []).append(round(value, 3))

    def told_last(self) -> str:
        """The last sample in a line."""
        rate, p99 = self.lines["calls/s"]["acknowledged"][-1], self.lines["ms"]["p99"][-1]
        memory = ", ".join(f"{name} {values[-1]:,.0f}" for name, values in self.lines["memory"].items())
        errors = f", {self.totals.errors.total():,} without a result" if self.totals.errors else ""
        return f"{self.at_s[-1]:>7,.0f} s  {self.calls:>13,} calls  {rate:>9,.0f}/s  p99 {p99:,.0f} ms  MiB: {memory}{errors}"

    def memory_trends(self) -> dict[str, tuple[Trend, Trend]]:
        """By process: MiB over millions of calls, and over hours, after the caches have filled."""
        first = int(len(self.at_s) * WARM_SHARE)
        millions, hours = [calls / 1e6 for calls in self.calls_at[first:]], [at / 3600 for at in self.at_s[first:]]
        return {
            name: (fit_trend(millions, values[first:]), fit_trend(hours, values[first:]))
            for name, values in self.lines.get("memory", {}).items()
        }

    def tell(self, bench: Bench) -> None:
        """All lines, as figures."""
        titles: dict[str, tuple[str, str]] = {
            "calls/s": ("Acknowledged calls", "calls/s"),
            "ms": ("Latency of single calls beside the batches", "ms"),
            "memory": ("Resident memory", "MiB"),
            "disk": ("Bytes on disk", "MiB"),
            "keys": ("Outcomes that the server keeps for retries", ""),
            "errors": ("Calls without a result", ""),
        }
        for chart, (title, unit) in titles.items():
            bench.series(title, self.at_s, self.lines.get(chart, {}), unit)


def told_latencies(totals: Interval) -> dict[str, Any]:
    """Milliseconds of all single calls of the run."""
    return {name: totals.latencies.percentile(share) * 1e3 for name, share in SHARES.items()}
