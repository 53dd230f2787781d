"""What an HTTP process has counted, added to what its node counts: so a scrape of any process shows all requests, each once.

One rule: a process says its totals since it began, the node adds what is new since the last time. What a process counted after
that is lost with it, and nothing is counted twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import orjson

from cmdlog.node.telemetry.request_stats import RecentError, RequestStats

K = TypeVar("K")


def encode_totals(front: RequestStats, *, streams: int) -> bytes:
    """What a process has counted since it began; `streams` are its batches under way."""
    return orjson.dumps({
        "requests": [[*where, count] for where, count in front.requests.items()],
        "refused": [[*where, count] for where, count in front.refused.items()],
        "latency": front.latency.counts,
        "latency_s": front.latency.total,
        "slow_calls": front.slow_calls,
        "connections": front.connections(),
        "held_bytes": front.held_bytes(),
        "cut": dict(front.cut()),
        "errors": front.errors(),
        "streams": streams,
    })  # fmt: skip


class ProcessStats:
    """The totals of one process, as its node knows them. Only the event loop's thread."""

    def __init__(self, front: RequestStats, cut: dict[str, int]) -> None:
        """`front` is the node's; `cut` has the connections that all processes have refused or ended so far, by code."""
        self._front, self._cut = front, cut
        self._cut_here: dict[str, int] = {}
        self._requests: dict[tuple[str, int], int] = {}
        self._refused: dict[tuple[str, str], int] = {}
        self._errors: dict[tuple[str, str], int] = {}
        self._latency: list[int] = []
        self._latency_s, self._slow_calls = 0.0, 0
        self.connections = 0
        self.held_bytes: Mapping[str, int] = {}
        self.streams = 0

    def take_totals(self, body: bytes) -> None:
        """What `encode_totals` made."""
        totals = orjson.loads(body)
        front = self._front
        for route, status, count in totals["requests"]:
            _add_new(front.requests, self._requests, (route, status), count)
        for procedure, code, count in totals["refused"]:
            _add_new(front.refused, self._refused, (procedure, code), count)
        self._add_latency(totals["latency"], totals["latency_s"])
        front.add_slow(totals["slow_calls"] - self._slow_calls)
        self._slow_calls = totals["slow_calls"]
        for code, count in totals["cut"].items():
            _add_new(self._cut, self._cut_here, code, count)
        self.connections, self.streams = totals["connections"], totals["streams"]
        self.held_bytes = totals["held_bytes"]
        for error in totals["errors"]:
            self._add_error(error)

    def calls(self, where: tuple[str, int]) -> int:
        """Requests of this route and status."""
        return self._requests.get(where, 0)

    def _add_latency(self, counts: list[int], seconds: float) -> None:
        before = self._latency or [0] * len(counts)
        new = [after - known for after, known in zip(counts, before, strict=True)]
        self._front.latency.add_counts(new, seconds - self._latency_s)
        self._latency, self._latency_s = counts, seconds

    def _add_error(self, error: dict[str, Any]) -> None:
        where, count = (error["code"], error["procedure"]), error["count"]
        new = count - self._errors.get(where, 0)  # one that was forgotten in between begins again at 1
        if new:
            self._errors[where] = count
            self._front.add_error(RecentError(**{**error, "count": new if new > 0 else count}))


def _add_new(into: dict[K, int], known: dict[K, int], where: K, count: int) -> None:
    into[where] = into.get(where, 0) + count - known.get(where, 0)
    known[where] = count
