"""Metrics: the table, the document and a scrape say the same; what is counted is what happened."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from cmdlog.node.node import Node
from cmdlog.node.outcome import CallOutcome
from cmdlog.node.reporting.prometheus import DOCUMENT, METRICS, TABLE, PrometheusExposition, document
from cmdlog.node.telemetry.cluster_metrics import CLUSTER_METRICS
from cmdlog.node.telemetry.request_stats import RequestStats
from procedures.idempotency.known_outcome import Status
from procedures.idempotency.session_calls import sent_name
from snapshot.errors import SnapshotFailed
from tests.node.rig import ask, open_node, send
from tests.waiting import wait_for

OPENMETRICS = "application/openmetrics-text; version=1.0.0,text/plain;version=0.0.4;q=0.5"


@contextlib.contextmanager
def a_node(directory: Path, **settings: Any) -> Iterator[Node]:
    """A node in this process, closed at the end."""
    node = open_node(directory, inline=True, **settings)
    try:
        yield node
    finally:
        node.close()


def scrape(node: Node | None, front: RequestStats | None = None) -> dict[str, dict[tuple[str, ...], float]]:
    """Sample name -> values of the labels, in their order -> value."""
    overview = node.overview if node is not None else None
    _, body = PrometheusExposition(front or (node.front if node else RequestStats()), lambda: overview, version="1").render()
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in parse_text(body.decode()):
        row = TABLE.get(family.name) or TABLE.get(f"{family.name}_total")
        order = (*row.labels, "le") if row else ()
        for sample in family.samples:
            labels = tuple(sample.labels[label] for label in order if label in sample.labels)
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


@pytest.mark.slow
def test_a_scrape_returns_the_table(tmp_path: Path) -> None:
    """Every metric of the table is in a scrape of a node that did everything, with its labels and kind, and no other is."""
    with a_node(tmp_path / "data", partitions=2) as node:
        ask(node, "bump", id=1, amount=1)
        assert node.take_snapshot(0)
        node.front.refuse("bump", "not_ready")
        node.front.answered("call", 200)
        node.front.cut = lambda: {"header_timeout": 1}
        node.front.slow(2.0, dict)
        overview = node.overview
        exposition = PrometheusExposition(node.front, lambda: overview, version="1")
        for accept, parse in (("", parse_text), (OPENMETRICS, parse_openmetrics)):
            kind, body = exposition.render(accept)
            assert ("openmetrics" in kind) is bool(accept)
            families = {f.name: f for f in parse(body.decode()) if not f.name.startswith("process_")}
            names = {f"{f.name}_total" if f.type == "counter" else f.name: f for f in families.values()}
            of_clusters = {row.name for row in CLUSTER_METRICS}
            assert names.keys() | {"cmdlog_site_resident_memory_bytes"} == TABLE.keys() - of_clusters
            for name, family in names.items():
                row = TABLE[name]
                assert family.type == row.kind, name
                assert family.documentation == row.meaning, name
                for sample in family.samples:
                    assert sample.labels.keys() - {"le"} == set(row.labels), name


def test_the_document_is_the_table() -> None:
    """METRICS.md is what `python -m cmdlog.node.reporting.prometheus` prints, and names follow Prometheus' conventions."""
    assert DOCUMENT.read_text(encoding="utf-8") == document()
    for row in METRICS:
        assert row.name.startswith("cmdlog_")
        assert row.name.endswith("_total") == (row.kind == "counter")
        assert not row.name.endswith(("_ms", "_us", "_percent"))


def test_calls_are_counted_by_procedure_and_outcome(tmp_path: Path) -> None:
    """Results, repeated keys and reads count once each; a multi-partition call counts once, not once per partition."""
    with a_node(tmp_path / "data", partitions=3) as node:
        for _ in range(3):
            ask(node, "bump", id=1, amount=1)
        assert isinstance(send(node, "bump", key="k", id=1, amount=1).wait(), CallOutcome)
        reply = send(node, "bump", key="k", id=1, amount=2).wait()
        assert isinstance(reply, CallOutcome)
        assert reply.status == Status.KEY_REUSED
        ask(node, "set_rate", name="r", value=1)
        ask(node, "look_everywhere", name="r")
        found = scrape(node)
        calls = found["cmdlog_calls_total"]
        assert calls["bump", "ok"] == 4
        assert calls["bump", "key_reused"] == 1
        assert calls["set_rate", "ok"] == 1
        assert calls["look_everywhere", "ok"] == 1
        assert sum(calls.values()) == 7
        stages = {labels[0]: n for labels, n in found["cmdlog_call_stage_seconds_count"].items()}
        settled = stages.pop("settle")  # those that the site executed before the disk had them
        assert stages == {"queue": 8, "log": 8, "commit": 8, "execute": 8}
        assert 0 <= settled <= 8
        assert found["cmdlog_batch_calls_sum"][()] == 8


def test_sessions_and_keys_are_counted_apart(tmp_path: Path) -> None:
    """Both have limits of their own, and a table that is full refuses calls: metrics and status show how full it is."""
    with a_node(tmp_path / "data", partitions=1) as node:
        for name in ("a key", "another", sent_name(b"s" * 16, 1, 0), sent_name(b"s" * 16, 2, 0), sent_name(b"t" * 16, 1, 0)):
            send(node, "bump", key=name, id=1, amount=1).value()
        found, status = scrape(node), node.status()
        assert (status["idempotency_keys"], status["sessions"]) == (2, 2)
        assert (found["cmdlog_idempotency_keys"], found["cmdlog_sessions"]) == ({(): 2.0}, {(): 2.0})


def test_stages_add_up_to_what_the_caller_waited(tmp_path: Path) -> None:
    """One call's stages together are no longer than its whole time, and the log's stage holds its sync."""
    with a_node(tmp_path / "data", partitions=1) as node:
        before = node.meter.now()
        ask(node, "bump", id=1, amount=1)
        elapsed = node.meter.now() - before
        node.meter.drain()
        stages = node.meter.stages
        assert 0 < sum(histogram.total for histogram in stages.values()) <= elapsed
        assert node.meter.syncs.total <= stages["log"].total + node.meter.now() - before  # a seal may follow the call
        assert sum(node.meter.syncs.counts) >= 1


def test_a_process_that_recovers_has_metrics_already() -> None:
    """Without a node a scrape says that it is not ready, and has what the front and the process know."""
    front = RequestStats()
    front.answered("readyz", 503)
    found = scrape(None, front)
    assert found["cmdlog_ready"][()] == 0
    assert found["cmdlog_http_requests_total"]["readyz", "503"] == 1
    assert "process_resident_memory_bytes" in found


@pytest.mark.slow
def test_snapshots_show_age_size_duration_and_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a snapshot its gauges are there; a failed attempt counts as a failure and changes nothing else."""
    with a_node(tmp_path / "data", partitions=1) as node:
        assert "cmdlog_snapshot_age_seconds" not in scrape(node)
        ask(node, "bump", id=1, amount=1)
        (made,) = node.take_snapshot(0)
        found = scrape(node)
        assert found["cmdlog_snapshots_total"][()] == 1
        assert found["cmdlog_snapshot_bytes"]["0",] == made["bytes"]
        assert 0 <= found["cmdlog_snapshot_age_seconds"]["0",] < 60
        assert found["cmdlog_snapshot_last_seconds"][()] > 0

        def no_seal(*_: object) -> None:
            raise SnapshotFailed("planted")

        monkeypatch.setattr(node._snapshots._maker._sealer, "seal", no_seal)
        with pytest.raises(SnapshotFailed):
            node.take_snapshot(0)
        found = scrape(node)
        assert (found["cmdlog_snapshots_total"][()], found["cmdlog_snapshot_failures_total"][()]) == (1, 1)


@pytest.mark.slow
def test_the_status_names_who_holds_the_log(tmp_path: Path) -> None:
    """The failure set of one node is empty; the anchor that keeps the oldest segment is named, with its time."""
    with a_node(tmp_path / "data", partitions=2) as node:
        status = node.status()
        assert status["failure_set"] == {"sequence": 0, "nodes": []}
        assert status["log"]["held_by"]["anchor"] == "snapshot-p0000"
        assert status["log"]["held_by"]["since"] <= time.time()
        assert 0 < status["log"]["fill"] < 1


@pytest.mark.slow
def test_a_stuck_archive_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is what holds the log, before any anchor; and that the window cannot be restored is shown."""
    with a_node(tmp_path / "data", partitions=1) as node:
        names = ("cmdlog_archive_stuck", "cmdlog_retention_window_satisfied")
        found = scrape(node)
        assert [found[name][()] for name in names] == [0, 1]
        assert [*found["cmdlog_log_held_seconds"]] == [("snapshot-p0000",)]
        archiver = node.overview.parts.archiver
        stuck = {**archiver.status(), "problem": "it is full", "problem_since": time.time() - 60, "window_kept": False}
        monkeypatch.setattr(archiver, "status", lambda: stuck)
        found = scrape(node)
        assert [found[name][()] for name in names] == [1, 0]
        assert [anchor for anchor, seconds in found["cmdlog_log_held_seconds"].items() if seconds >= 60] == [("archive",)]
        assert node.status()["log"]["held_by"]["anchor"] == "archive"


@pytest.mark.slow
def test_lag_and_indexes_are_those_of_the_status(tmp_path: Path) -> None:
    """The gauges of a partition are its watermarks, and nothing lags on a node at rest."""
    with a_node(tmp_path / "data", partitions=2) as node:
        for n in range(5):
            ask(node, "bump", id=n, amount=1)
        wait_for(lambda: node.sequencer.idle)
        marks, found = node.status()["partitions"], scrape(node)
        for p in ("0", "1"):
            assert found["cmdlog_partition_durable_index"][p,] == marks[p]["durable"]
            assert found["cmdlog_partition_applied_index"][p,] == marks[p]["applied"]
            assert found["cmdlog_partition_lag_entries"][p,] == 0
        assert found["cmdlog_log_fill_ratio"][()] == pytest.approx(node.status()["log"]["fill"], abs=0.01)
