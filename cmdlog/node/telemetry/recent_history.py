"""The last minutes, second by second: what a status page draws.

One rule: bounded and lazy. A row is made when a second has passed and the node's watch thread looks, from differences of what the
meters hold anyway; nothing here is on the path of a call.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from cmdlog.node.telemetry.request_stats import RequestStats
from cmdlog.node.telemetry.stage_timings import SECONDS, STAGES, Histogram, StageTimings, quantile

STEP_S: Final = 1.0
ROWS_KEPT: Final = 600  # ten minutes
PARTITIONS_KEPT_MAX: Final = 64  # whose watermarks are kept; a page cannot show more, and a row must stay small
LINES: Final = (*STAGES, "read", "total", "sync")
"""Whose quantiles are kept: the stages of `stage_timings`, read-only calls in the node, calls at the API, fdatasyncs."""
SHARES: Final = {"p50_ms": 0.5, "p99_ms": 0.99}
NUMBERS: Final = ("time", "calls_per_s", "refused_per_s", "log_fill", "inflight_calls")
MARKS: Final = ("durable", "applied", "open_calls")


@dataclass(frozen=True, slots=True)
class Gauges:
    """What has no meter: asked for once per row."""

    log_fill: float
    inflight_calls: int
    watermarks: Mapping[int, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class SecondSample:
    """One second."""

    number: int  # from 1
    time: float  # of its end, seconds since 1970
    calls_per_s: float
    refused_per_s: float
    log_fill: float
    inflight_calls: int
    quantiles_ms: Sequence[float | None]  # for each of LINES: one per SHARES
    marks: Sequence[Sequence[int]]  # for each of the first partitions: MARKS


class _Readings(NamedTuple):
    calls: int
    refused: int
    counts: Sequence[Sequence[int]]  # of each of LINES


class RecentHistory:
    """`sample_if_due` is called by one thread, `since` by any."""

    def __init__(self, meter: StageTimings, *, wall: Callable[[], float] = time.time) -> None:
        self._meter, self._wall = meter, wall
        self._rows: deque[SecondSample] = deque(maxlen=ROWS_KEPT)
        self._next_at = meter.now() + STEP_S
        self._number = 0
        self._front = RequestStats()
        self._began = self._read_meters()  # where the meters stood when the second under way began

    def listen_to(self, front: RequestStats) -> None:
        """Takes refusals and whole latencies from this front from now on."""
        self._front = front
        self._began = self._read_meters()

    def sample_if_due(self, gauges: Callable[[], Gauges]) -> None:
        """Adds a row if its time has come; cheap if not."""
        now = self._meter.now()
        if now < self._next_at:
            return
        elapsed = now - self._next_at + STEP_S
        self._next_at = now + STEP_S
        self._rows.append(self._make(elapsed, gauges()))

    def since(self, after: int = 0) -> dict[str, Any]:
        """Rows with a number above `after` as columns, oldest first; `next` is the number to ask with the next time."""
        rows = [row for row in list(self._rows) if row.number > after]
        columns: dict[str, Any] = {name: [getattr(row, name) for row in rows] for name in NUMBERS}
        for share, name in enumerate(SHARES):
            columns[name] = {line: [row.quantiles_ms[at * len(SHARES) + share] for row in rows] for at, line in enumerate(LINES)}
        partitions = len(rows[-1].marks) if rows else 0
        columns["partitions"] = {
            str(p): {mark: [row.marks[p][at] for row in rows] for at, mark in enumerate(MARKS)} for p in range(partitions)
        }
        return {"step_s": STEP_S, "rows_max": ROWS_KEPT, "next": rows[-1].number if rows else after, "columns": columns}

    def _make(self, elapsed_s: float, gauges: Gauges) -> SecondSample:
        began, ended = self._began, self._read_meters()
        self._began = ended
        quantiles: list[float | None] = []
        for before, after in zip(began.counts, ended.counts, strict=True):
            new = [max(0, b - a) for a, b in zip(before, after, strict=True)]  # a front that came just now may have had less
            quantiles += [_milliseconds(quantile(SECONDS, new, share)) for share in SHARES.values()]
        self._number += 1
        shown = sorted(gauges.watermarks)[:PARTITIONS_KEPT_MAX]
        return SecondSample(
            self._number,
            round(self._wall(), 3),
            round((ended.calls - began.calls) / elapsed_s, 1),
            round((ended.refused - began.refused) / elapsed_s, 1),
            round(gauges.log_fill, 4),
            gauges.inflight_calls,
            quantiles,
            [[gauges.watermarks[p][mark] for mark in MARKS] for p in shown],
        )

    def _read_meters(self) -> _Readings:
        """Where they stand now."""
        self._meter.drain()
        counts = [list(line.counts) for line in self._lines()]
        return _Readings(self._meter.calls_total(), sum(list(self._front.refused.values())), counts)

    def _lines(self) -> list[Histogram]:
        meter = self._meter
        return [*(meter.stages[stage] for stage in STAGES), meter.reads, self._front.latency, meter.syncs]


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
