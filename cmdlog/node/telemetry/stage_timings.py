"""What the running node counts and times: plain integers and lists, written on the path of calls, read by any thread.

One rule: it must cost next to nothing. The clock is read once per stage and batch, never per call, and a batch of n calls weighs
n. What a batch leaves on its path are tuples; `drain` sorts them into histograms, a few times a second and before anybody
reads (`cmdlog.node.reporting.prometheus`, `cmdlog.node.telemetry.recent_history`).

The stages of a call, each with the time of its batch:

    queue    the batch's first call was placed -> the log took the batch
    log      taken -> the batch may be executed: its block is written (in a cluster: it is committed)
    commit   may be executed -> given to the site; no more than a moment while one node is all there is
    execute  given to the site -> answered by it, the way there and back and the batch before it included
    settle   answered by the site -> durable: what calls that were promised to be durable wait longer, if the site was faster
             than the disk

Written under the sequencer's lock, but for what `drain` writes: outcomes, stages, syncs. Readers take no lock: a sum may be one
batch ahead of its counts. A multi-partition call is in every partition's batches and stages.
"""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import mul, sub
from typing import TYPE_CHECKING, Final

from cmdlog.node.background.recovery_forecast import RecoverySpeeds
from procedures.idempotency.known_outcome import Status

if TYPE_CHECKING:
    from cmdlog.node.sequencing.flight import Flight

_DECADE: Final = (1.0, 1.6, 2.5, 4.0, 6.3)  # five steps of the same width on a logarithmic scale: a quantile is good to a quarter
SECONDS: Final = tuple(float(f"{step * 10**power:.3g}") for power in range(-5, 2) for step in _DECADE)
"""Upper bounds of the buckets for times: 10 us to 63 s, five per decade."""
CALLS: Final = tuple(float(1 << power) for power in range(17))
"""Upper bounds of the buckets for calls in a batch: powers of two to `batch_calls_max`'s highest value."""
BYTES: Final = tuple(float(1 << power) for power in range(6, 25, 2))
"""Upper bounds of the buckets for bytes in a batch: powers of four, 64 B to 16 MiB."""

STAGES: Final = ("queue", "log", "commit", "execute", "settle")
OUTCOMES: Final = ("ok", "aborted", "procedure_failed", "key_reused", "session_expired", "sessions_full", "outcome_unknown")
"""Outcome codes: by number of `procedures.idempotency.known_outcome.Status`, and that of calls whose outcome is unknown."""
UNKNOWN: Final = len(Status)
FINISHED_MAX: Final = 1 << 16  # batches between two drains, 20 ms apart; beyond it the oldest are not counted in histograms
SLOW_KEPT: Final = 256  # slow batches whose stages are kept until their callers ask for them


Finished = tuple[int, Sequence[int], float, int, int, int, float, float, float, float, float, float]
"""Of a batch: partition, procedures, seconds of the site; calls, bytes, calls that waited until it was durable; placed, taken by
the log, ready for the site, given to it, answered, durable."""
Outcomes = tuple[Sequence[int], Sequence[int]]
"""Of calls: procedures, statuses."""


class Histogram:
    """Counts per bucket; `bounds` are upper bounds, inclusive, and one more bucket is for what is above them."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add_all(self, values: Sequence[float], weights: Sequence[int]) -> None:
        """`add` of each, in one loop."""
        counts, bounds = self.counts, self.bounds
        for value, weight in zip(values, weights, strict=True):
            counts[bisect_left(bounds, value)] += weight
        self.total += sum(map(mul, values, weights))

    def add(self, value: float, weight: int = 1) -> None:
        """`weight` observations of this value."""
        self.counts[bisect_left(self.bounds, value)] += weight
        self.total += value * weight


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """The value below which this share of the observations lies, estimated within its bucket; None without any.

    What lies above the last bound counts as the last bound.
    """
    rank = share * sum(counts)
    if not rank:
        return None
    for at, count in enumerate(counts):
        if count and rank <= count:
            if at == len(bounds):
                break
            lower = bounds[at - 1] if at else 0.0
            return lower + (bounds[at] - lower) * rank / count
        rank -= count
    return bounds[-1]


class StageTimings:
    """Of one node: calls, stages, batches, blocks, syncs."""

    __slots__ = (
        "_draining",
        "batch_bytes",
        "batch_calls",
        "busy_s",
        "calls",
        "calls_by_name",
        "digests",
        "finished",
        "names",
        "now",
        "outcomes",
        "reads",
        "slow",
        "slow_s",
        "speeds",
        "stages",
        "synced",
        "syncs",
    )

    def __init__(
        self,
        names: Sequence[str],
        *,
        partitions: int,
        now: Callable[[], float] = time.monotonic,
        speeds: RecoverySpeeds | None = None,
        slow_s: float = math.inf,
    ) -> None:
        self.names = list(names)  # of procedures, by number
        self.now = now
        self.calls = [[0] * len(OUTCOMES) for _ in names]  # by procedure number and outcome
        self.calls_by_name = dict(zip(self.names, self.calls, strict=True))
        self.stages = {stage: Histogram() for stage in STAGES}
        self.reads = Histogram()  # of read-only calls, placed -> answered
        self.batch_calls, self.batch_bytes = Histogram(CALLS), Histogram(BYTES)
        self.syncs = Histogram()
        self.synced: deque[float] = deque(maxlen=FINISHED_MAX)  # seconds of each sync that `drain` has not counted
        self.finished: deque[Finished] = deque(maxlen=FINISHED_MAX)  # batches that `drain` has not seen
        self._draining = threading.Lock()
        self.outcomes: deque[Outcomes] = deque()  # that `drain` has not counted
        self.digests = 0  # logged for later comparison
        self.slow_s = slow_s  # of a batch, placed until answered: above it, its stages are kept for a while
        self.slow: deque[tuple[Sequence[int], Sequence[float]]] = deque(maxlen=SLOW_KEPT)  # transaction ids, ends of the stages
        self.speeds = speeds or RecoverySpeeds("", self.names, partitions)
        self.speeds.measured_by(self.drain)
        self.busy_s = [0.0] * partitions  # in which a site had something of the partition to execute

    def serve_procedures(self, names: Sequence[str]) -> None:
        """Calls are bound to other code from now on; `names` of its procedures, by number. What was counted stays, by name."""
        self.drain()
        counted = self.calls_by_name
        self.names = [*names, *(name for name in counted if name not in names)]
        self.calls = [counted.get(name) or [0] * len(OUTCOMES) for name in self.names]
        self.calls_by_name = dict(zip(self.names, self.calls, strict=True))
        self.speeds.serve_procedures(self.names)

    def finish(self, flight: Flight, partition: int, *, durable_at: float = 0.0) -> None:
        """A site has answered the batch, and its last callers are answered now; some of them waited for the disk: `durable_at`.

        The site was idle before the batch came, or until it answered the one before.
        """
        answered_at, count = flight.answered_at, len(flight.dones)
        busy_s = answered_at - flight.begun_at
        self.busy_s[partition] += busy_s
        self.digests += bool(flight.statuses)
        if not count:
            return
        ends = (flight.opened_at, flight.taken_at, flight.ready_at, flight.sent_at, answered_at, durable_at)
        waited = count - flight.lax_calls if durable_at else 0
        self.finished.append((partition, flight.procedures, busy_s, count, len(flight.record), waited, *ends))
        if waited < count and durable_at:
            self.count(flight.of_waiting(flight.procedures), flight.of_waiting(flight.statuses))
        else:
            self.outcomes.append((flight.procedures, flight.statuses))
        if (durable_at or answered_at) - flight.opened_at > self.slow_s:
            self.slow.append((flight.txn_ids, ends if durable_at else ends[:-1]))

    def count(self, procedures: Sequence[int], statuses: Sequence[int]) -> None:
        """Calls have these outcomes, which their callers may know."""
        self.outcomes.append((procedures, statuses))

    def unknown(self, procedures: Sequence[int]) -> None:
        """The outcome of these calls is unknown."""
        self.count(procedures, [UNKNOWN] * len(procedures))

    def keep_all_stages(self) -> None:
        """From now on `stages_of` knows every batch for a moment, and not only slow ones."""
        self.slow_s = 0.0

    def stages_of(self, txn_id: int) -> dict[str, float]:
        """`queue_ms`, `log_ms`, ... of a slow batch that holds this transaction; {} when it was not slow, or long ago."""
        if not self.slow:
            return {}
        ends = next((ends for txn_ids, ends in reversed(list(self.slow)) if txn_id in txn_ids), ())
        return {f"{stage}_ms": round((b - a) * 1000, 3) for stage, (a, b) in zip(STAGES, pairwise(ends), strict=False)}

    def drain(self) -> None:
        """Sorts what batches have left into the histograms and counts. Any thread."""
        with self._draining:
            self._sort_outcomes()
            synced = [self.synced.popleft() for _ in range(len(self.synced))]
            self.syncs.add_all(synced, [1] * len(synced))
            finished = [self.finished.popleft() for _ in range(len(self.finished))]
            if not finished:
                return
            partitions, procedures, busy_s, counts, sizes, waited, *ends = zip(*finished, strict=True)
            self.speeds.add_batches(partitions, procedures, busy_s)
            once = [1] * len(finished)
            self.batch_calls.add_all(counts, once)
            self.batch_bytes.add_all(sizes, once)
            for stage, (begun, ended) in zip(STAGES, pairwise(ends), strict=True):
                self.stages[stage].add_all(list(map(sub, ended, begun)), waited if stage == "settle" else counts)

    def _sort_outcomes(self) -> None:
        for _ in range(len(self.outcomes)):
            procedures, statuses = self.outcomes.popleft()
            if not procedures:  # of a multi-partition call, which is counted elsewhere
                continue
            count, first = len(procedures), procedures[0]
            if statuses.count(0) == count == procedures.count(first):  # at C speed: most batches are of one kind and went well
                self.calls[first][0] += count
                continue
            for procedure, status in zip(procedures, statuses, strict=True):
                self.calls[procedure][status] += 1

    def calls_total(self) -> int:
        """Calls that have an outcome."""
        return sum(map(sum, self.calls))
