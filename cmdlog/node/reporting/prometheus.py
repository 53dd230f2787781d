"""Metrics for Prometheus: every name, its labels and its meaning in one table, and the exposition that fills it.

One rule: nothing is counted here. A scrape reads the meters and gauges of the node as they are, in a registry of its own, and
adds no label that a caller can choose: procedures are those of the catalog, routes those of the route table, anything else is "".

`python -m cmdlog.node.reporting.prometheus` prints METRICS.md, the same table for people; a test holds both to what a scrape
returns.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, get_args

import apsw
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from cmdlog.node.reporting.status import StatusOverview, fill_of, held_by
from cmdlog.node.scrub.file_scan import ScrubKind
from cmdlog.node.telemetry.cluster_metrics import (
    CLUSTER_METRICS,
    MetricRow,
    Samples,
    cluster_samples,
    counter_row,
    gauge_row,
    times_row,
)
from cmdlog.node.telemetry.request_stats import RequestStats
from cmdlog.node.telemetry.stage_timings import BYTES, CALLS, OUTCOMES, SECONDS, Histogram
from cmdlog.wal.ids import txn_millis
from cmdlog.wal.system.line_queue import dropped_lines

DOCUMENT: Final = Path(__file__).parents[1] / "METRICS.md"

METRICS: Final[tuple[MetricRow, ...]] = (
    counter_row("cmdlog_calls_total", "calls that have an outcome; a multi-partition call counts once", "procedure", "outcome"),
    counter_row(
        "cmdlog_refused_calls_total", "refused calls, which were not logged; empty procedure: unknown", "procedure", "code"
    ),
    times_row("cmdlog_call_seconds", "latency at the API: from the complete request, or line of a batch, to the complete answer"),
    times_row(
        "cmdlog_call_stage_seconds",
        "time of logged calls by stage, measured per batch: queue (until the log takes the batch), log (until written, "
        "or committed in a cluster), commit (until sent to the site), execute (until the site answers), settle (until "
        "durable, for calls that were executed before)",
        "stage",
    ),
    times_row("cmdlog_read_seconds", "latency of read-only calls, until answered by the site"),
    counter_row("cmdlog_slow_calls_total", "calls slower than slow_call_ms"),
    gauge_row("cmdlog_inflight_calls", "calls accepted and not yet answered; new ones are refused beyond inflight_calls_max"),
    gauge_row("cmdlog_inflight_bytes", "bytes of their parameters; new calls are refused beyond inflight_bytes_max"),
    MetricRow("cmdlog_batch_calls", "histogram", (), "calls in a batch", CALLS),
    MetricRow("cmdlog_batch_bytes", "histogram", (), "bytes of a batch as it is logged", BYTES),
    counter_row("cmdlog_log_blocks_total", "blocks written to the log, one write each"),
    counter_row("cmdlog_log_block_bytes_total", "bytes of these blocks, padding included"),
    times_row("cmdlog_log_sync_seconds", "duration of the log's fdatasyncs; with durability=sync including the write"),
    gauge_row("cmdlog_log_fill_ratio", "share of the log's ring that is in use"),
    gauge_row("cmdlog_log_room_bytes", "bytes that calls may still log before they are refused with log_full"),
    gauge_row("cmdlog_log_segments", "segments of the ring: used, or free", "state"),
    gauge_row("cmdlog_log_held_seconds", "time since the holder of the oldest segment moved, or archiving got stuck", "anchor"),
    gauge_row("cmdlog_partition_durable_index", "last entry that would survive a power loss", "partition"),
    gauge_row("cmdlog_partition_applied_index", "last entry that the site has answered", "partition"),
    gauge_row("cmdlog_partition_lag_entries", "entries that are durable and not answered by the site", "partition"),
    gauge_row("cmdlog_partition_open_calls", "calls waiting to be put into a batch", "partition"),
    counter_row("cmdlog_site_busy_seconds_total", "time in which the site had batches of it to execute", "partition"),
    gauge_row("cmdlog_site_stalled_seconds", "time without progress at this partition, if any", "partition", "procedure", "kind"),
    gauge_row("cmdlog_work_stalled_seconds", "time without progress of work in the background, if a minute or more", "work"),
    gauge_row("cmdlog_site_resident_memory_bytes", "resident memory of a site process", "site"),
    counter_row("cmdlog_digests_logged_total", "batch digests logged, for replays to compare"),
    counter_row("cmdlog_digests_compared_total", "digests compared by the replay of this start"),
    counter_row("cmdlog_digests_diverged_total", "digests that differed: 0 on a serving node, as one refuses the start"),
    counter_row("cmdlog_snapshots_total", "snapshots taken and verified"),
    counter_row("cmdlog_snapshot_failures_total", "failed attempts to take a snapshot"),
    gauge_row("cmdlog_snapshot_last_seconds", "duration of the last snapshot, from its first page to its mark in the log"),
    gauge_row("cmdlog_snapshot_age_seconds", "age of the partition's newest snapshot; absent if none", "partition"),
    gauge_row("cmdlog_snapshot_bytes", "size of the newest snapshot of the partition", "partition"),
    gauge_row("cmdlog_archive_bytes", "bytes in archive/"),
    gauge_row("cmdlog_archive_files", "segments and snapshots in archive/", "kind"),
    gauge_row("cmdlog_archive_stuck", "1 while a promised segment cannot be archived and holds the log back"),
    counter_row("cmdlog_archive_segments_total", "log segments archived"),
    counter_row("cmdlog_archive_dropped_total", "segments dropped by archive_full=shorten: a shorter retention window"),
    gauge_row("cmdlog_restorable_timestamp_seconds", "oldest moment that can be restored; 0: since the beginning; absent: none"),
    gauge_row("cmdlog_retention_window_satisfied", "1 while all of retention_window_s can be restored, or none is set"),
    gauge_row("cmdlog_last_proven_restore_seconds", "time since a restore drill last passed; absent if none has"),
    counter_row("cmdlog_scrub_bytes_total", "bytes of log, snapshots and archive that were read to find damage"),
    gauge_row("cmdlog_scrub_age_seconds", "time since all of them were last read; absent if they never were"),
    gauge_row("cmdlog_scrub_findings", "damaged files that are not repaired", "kind"),
    counter_row("cmdlog_scrub_damage_total", "damaged files found", "kind"),
    gauge_row("cmdlog_predicted_recovery_seconds", "predicted duration of a recovery now; absent before any call"),
    gauge_row("cmdlog_idempotency_keys", "idempotency keys in use; new ones are refused beyond keys_max per partition"),
    gauge_row("cmdlog_sessions", "client sessions in use; new ones are refused beyond sessions_max per partition"),
    gauge_row("cmdlog_largest_share", "part of keys_max or sessions_max that one credential holds, 0.8 at most", "of"),
    counter_row("cmdlog_http_requests_total", "requests by route and status; empty route: an unknown one", "route", "status"),
    gauge_row("cmdlog_http_connections", "open connections"),
    gauge_row("cmdlog_http_held_bytes", "bytes of answers that clients have not taken, and of bodies that are under way", "of"),
    counter_row("cmdlog_http_cut_connections_total", "connections that the server refused or closed", "code"),
    gauge_row("cmdlog_token_file_invalid", "1 while the token file is invalid and the previous tokens stay in force"),
    counter_row("cmdlog_log_lines_dropped_total", "lines of the node's process dropped because nobody read its output"),
    counter_row("cmdlog_clock_jumps_total", "wall clock jumps that transaction ids did not follow"),
    gauge_row("cmdlog_partition_refusing", "1 while it refuses calls, by kind of problem", "partition", "kind"),
    gauge_row("cmdlog_disk_full", "1 while the volume is too full for a site (it refuses calls) or the log's next segment"),
    gauge_row("cmdlog_disk_free_bytes", "free bytes on the volume of the directory"),
    gauge_row("cmdlog_ready", "1 while calls are accepted"),
    gauge_row("cmdlog_build_info", "1, with versions", "version", "python", "sqlite", "bundle", "catalog_version", "durability"),
    *CLUSTER_METRICS,
)  # fmt: skip
"""Every metric of ours. The process's own (`process_*`) are those of prometheus_client's ProcessCollector."""

TABLE: Final[Mapping[str, MetricRow]] = {row.name: row for row in METRICS}


class PrometheusExposition:
    """`/metrics` of one process. `overview` gives the node's once there is one."""

    def __init__(self, front: RequestStats, overview: Callable[[], StatusOverview | None], *, version: str = "") -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_NodeCollector(front, overview, version))
        ProcessCollector(registry=self._registry)

    def render(self, accept: str = "") -> tuple[str, bytes]:
        """Content type and body: OpenMetrics when the Accept header names it, else the text format."""
        if "application/openmetrics-text" in accept:
            return openmetrics.CONTENT_TYPE_LATEST, openmetrics.generate_latest(self._registry)  # type: ignore[no-untyped-call]
        return CONTENT_TYPE_PLAIN_0_0_4, generate_latest(self._registry)


class _NodeCollector(Collector):
    def __init__(self, front: RequestStats, overview: Callable[[], StatusOverview | None], version: str) -> None:
        self._front, self._overview, self._version = front, overview, version

    def collect(self) -> Iterator[Metric]:
        found: dict[str, Samples] = _of_front(self._front)
        overview = self._overview()
        if overview is None:
            found["cmdlog_ready"] = [((), 0)]
        else:
            found |= _of_calls(overview) | _of_log(overview) | _of_partitions(overview) | _of_snapshots(overview)
            found |= _of_scrub(overview) | _of_archive(overview) | _of_node(overview, self._version)
            if overview.cluster is not None:
                found |= cluster_samples(overview.cluster.reading())
        for name, samples in found.items():
            yield _family(TABLE[name], samples)


def _of_front(front: RequestStats) -> dict[str, Samples]:
    return {
        "cmdlog_refused_calls_total": list(front.refused.items()),
        "cmdlog_call_seconds": [((), front.latency)],
        "cmdlog_slow_calls_total": [((), front.slow_calls)],
        "cmdlog_http_requests_total": [((route, str(status)), n) for (route, status), n in list(front.requests.items())],
        "cmdlog_http_connections": [((), front.connections())],
        "cmdlog_http_held_bytes": [((of,), size) for of, size in front.held_bytes().items()],
        "cmdlog_http_cut_connections_total": [((code,), count) for code, count in front.cut().items()],
        "cmdlog_token_file_invalid": [((), int(front.token_file_refused()))],
    }


def _of_calls(overview: StatusOverview) -> dict[str, Samples]:
    meter, sequencer = overview.parts.sequencer.meter, overview.parts.sequencer
    meter.drain()
    return {
        "cmdlog_calls_total": [
            ((name, outcome), count)
            for name, counts in meter.calls_by_name.items()
            for outcome, count in zip(OUTCOMES, counts, strict=True)
            if count or outcome in ("ok", "procedure_failed")  # a rate, and an alert on it, need their zero
        ],
        "cmdlog_call_stage_seconds": [((stage,), histogram) for stage, histogram in meter.stages.items()],
        "cmdlog_read_seconds": [((), meter.reads)],
        "cmdlog_inflight_calls": [((), sequencer.admission.inflight_calls)],
        "cmdlog_inflight_bytes": [((), sequencer.admission.inflight_bytes)],
        "cmdlog_batch_calls": [((), meter.batch_calls)],
        "cmdlog_batch_bytes": [((), meter.batch_bytes)],
        "cmdlog_digests_logged_total": [((), meter.digests)],
    }


def _of_log(overview: StatusOverview) -> dict[str, Samples]:
    meter, log = overview.parts.sequencer.meter, overview.ground.wal.status()
    segments: Any = log["segments"]
    holder = held_by(log, overview.parts.archiver.status())
    held = [] if holder is None else [((holder["anchor"],), max(0.0, time.time() - holder["since"]))]
    predicted = overview.predicted_recovery_s()
    return {
        "cmdlog_log_blocks_total": [((), log["blocks"])],
        "cmdlog_log_block_bytes_total": [((), log["block_bytes"])],
        "cmdlog_log_sync_seconds": [((), meter.syncs)],
        "cmdlog_log_fill_ratio": [((), fill_of(log))],
        "cmdlog_log_room_bytes": [((), log["room_bytes"])],
        "cmdlog_log_segments": [((state,), segments[state]) for state in ("used", "free")],
        "cmdlog_log_held_seconds": held,
        "cmdlog_predicted_recovery_seconds": [] if predicted is None else [((), predicted)],
    }


def _of_partitions(overview: StatusOverview) -> dict[str, Samples]:
    marks = overview.parts.sequencer.watermarks()
    busy = overview.parts.sequencer.meter.busy_s
    return {
        "cmdlog_partition_durable_index": [((str(p),), of["durable"]) for p, of in marks.items()],
        "cmdlog_partition_applied_index": [((str(p),), of["applied"]) for p, of in marks.items()],
        "cmdlog_partition_lag_entries": [((str(p),), max(0, of["durable"] - of["applied"])) for p, of in marks.items()],
        "cmdlog_partition_open_calls": [((str(p),), of["open_calls"]) for p, of in marks.items()],
        "cmdlog_site_busy_seconds_total": [((str(p),), busy[p]) for p in marks],
    }


def _of_snapshots(overview: StatusOverview) -> dict[str, Samples]:
    snapshots = overview.parts.snapshots
    newest: dict[int, Mapping[str, Any]] = {}
    for snapshot in snapshots.listed():
        if "created" in snapshot:  # else it is damaged, and says why
            newest[snapshot["partition"]] = snapshot
    now, proven = time.time(), overview.checks.drills.age_s()
    return {
        "cmdlog_snapshots_total": [((), snapshots.taken)],
        "cmdlog_snapshot_failures_total": [((), snapshots.failures)],
        "cmdlog_snapshot_last_seconds": [((), snapshots.last_s)] if snapshots.taken else [],
        "cmdlog_snapshot_age_seconds": [((str(p),), max(0.0, now - _created(of))) for p, of in newest.items()],
        "cmdlog_snapshot_bytes": [((str(p),), of["bytes"]) for p, of in newest.items()],
        "cmdlog_last_proven_restore_seconds": [] if proven is None else [((), proven)],
    }


def _of_scrub(overview: StatusOverview) -> dict[str, Samples]:
    scrub = overview.checks.scrub
    age, still, found = scrub.age_s(time.time()), scrub.open_findings(), scrub.damage_found
    return {
        "cmdlog_scrub_bytes_total": [((), scrub.read_bytes)],
        "cmdlog_scrub_age_seconds": [] if age is None else [((), age)],
        "cmdlog_scrub_findings": [((kind,), still[kind]) for kind in get_args(ScrubKind)],
        "cmdlog_scrub_damage_total": [((kind,), found[kind]) for kind in get_args(ScrubKind)],
    }


def _of_archive(overview: StatusOverview) -> dict[str, Samples]:
    archive = overview.parts.archiver.status()
    oldest = archive["oldest_txn"]
    return {
        "cmdlog_archive_bytes": [((), archive["bytes"])],
        "cmdlog_archive_files": [((kind,), archive[f"{kind}s"]) for kind in ("segment", "snapshot")],
        "cmdlog_archive_stuck": [((), int(archive["problem"] is not None))],
        "cmdlog_archive_segments_total": [((), archive["archived"])],
        "cmdlog_archive_dropped_total": [((), archive["given_up"])],
        "cmdlog_restorable_timestamp_seconds": [] if oldest is None else [((), txn_millis(int(oldest)) / 1000)],
        "cmdlog_retention_window_satisfied": [((), int(archive["window_kept"]))],
    }


def _of_node(overview: StatusOverview, version: str) -> dict[str, Samples]:
    health = overview.health()
    compared = sum(part.get("compared_digests", 0) for part in health.recovery)
    boot, keys, troubles = overview.ground.boot, overview.parts.keys, overview.parts.desk.troubles
    build = (
        version,
        _python(),
        apsw.sqlite_lib_version(),
        boot.code.newest_hash,
        str(boot.catalog),
        overview.ground.settings.durability,
    )
    return {
        "cmdlog_site_stalled_seconds": _stalled(overview),
        "cmdlog_work_stalled_seconds": [((of.kind,), of.seconds) for of in reversed(overview.ground.work.stalled())],
        "cmdlog_site_resident_memory_bytes": [((str(n),), _resident_bytes(pid)) for n, pid in enumerate(health.site_pids)],
        "cmdlog_digests_compared_total": [((), compared)],
        "cmdlog_digests_diverged_total": [((), 0)],
        "cmdlog_idempotency_keys": [((), len(keys))],
        "cmdlog_sessions": [((), len(keys.sessions))],
        "cmdlog_largest_share": [((of,), share) for of, share in keys.largest_shares().items()],
        "cmdlog_log_lines_dropped_total": [((), dropped_lines())],
        "cmdlog_clock_jumps_total": [((), overview.parts.sequencer.clock.jumps)],
        "cmdlog_partition_refusing": [((str(p), trouble.kind), 1) for p, trouble in troubles.by_partition().items()],
        "cmdlog_disk_full": [((), int(troubles.full or overview.ground.wal.status()["disk_full"] is not None))],
        "cmdlog_disk_free_bytes": [((), troubles.free_bytes())],
        "cmdlog_ready": [((), int(overview.ready))],
        "cmdlog_build_info": [(build, 1)],
    }


def _stalled(overview: StatusOverview) -> Samples:
    """The call that a site is at names one partition; a site without a call stalls all of its own."""
    for stall in overview.stalls():
        for partition in stall["partitions"] if stall["partition"] is None else [stall["partition"]]:
            yield (str(partition), stall["procedure"], stall["kind"]), stall["seconds"]


def _family(row: MetricRow, samples: Samples) -> Metric:
    if row.kind == "histogram":
        histograms = HistogramMetricFamily(row.name, row.meaning, labels=row.labels)
        for labels, value in samples:
            assert isinstance(value, Histogram)
            histograms.add_metric(labels, buckets=_buckets(value), sum_value=value.total)
        return histograms
    family = CounterMetricFamily if row.kind == "counter" else GaugeMetricFamily
    plain = family(row.name, row.meaning, labels=row.labels)
    for labels, value in samples:
        plain.add_metric(labels, value)
    return plain


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """(upper bound, observations up to it), ascending, from one copy of the counts."""
    bounds = [*(f"{bound:g}" if bound < 1e6 else f"{bound:.0f}" for bound in histogram.bounds), "+Inf"]
    return list(zip(bounds, accumulate(list(histogram.counts)), strict=True))


def _created(snapshot: Mapping[str, Any]) -> float:
    return datetime.strptime(snapshot["created"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()


def _resident_bytes(pid: int) -> int:
    """0 for a process that has just ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def _python() -> str:
    return ".".join(map(str, sys.version_info[:3]))


def document() -> str:
    """METRICS.md."""
    lines = [
        "# Metrics",
        "",
        "`GET /metrics` (role `read`), in Prometheus' text format, or OpenMetrics when the Accept header asks for it. Counters",
        "begin at zero with the process. Made by `python -m cmdlog.node.reporting.prometheus`; a test holds it to what a scrape",
        "returns.",
        "",
        "| metric | type | labels | meaning |",
        "|---|---|---|---|",
    ]
    lines += [f"| `{row.name}` | {row.kind} | {', '.join(row.labels)} | {row.meaning} |" for row in METRICS]
    lines += [
        "",
        "Beside them `process_*`: CPU, memory, file descriptors and start time of the node's process.",
        "",
        f"Buckets: times from 10 us to {SECONDS[-1]:g} s, five per decade (1, 1.6, 2.5, 4, 6.3); calls in powers of two to",
        f"{CALLS[-1]:.0f}; bytes in powers of four from {BYTES[0]:.0f} to {BYTES[-1]:.0f}.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(document())
