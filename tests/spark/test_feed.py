"""Feeding calls into a running service from Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cmdlog.client.feeder import Feeder, key_of
from cmdlog.testing import Server
from replay.spark.feed import BadCalls, feed
from replay.spark.job import TaskError
from replay.spark.staging import OtherJob
from tests.spark.failing_work import DyingFeeder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow
IDS = 5
BUMPS = 600


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`cmdlog serve` of an application that also misbehaves."""
    running = Server("tests.node.apps.faulty:db", tmp_path_factory.mktemp("server"), partitions=2, key_window_s=3600)
    try:
        running.start()
        yield running
    finally:
        running.close()


def bumps(spark: SparkSession, first_id: int) -> DataFrame:
    """Calls that each add 1, in two files."""
    calls = f"struct({first_id} + id % {IDS} AS id, 1 AS amount) AS params"
    return spark.range(0, BUMPS, 1, 2).selectExpr("'bump' AS procedure", calls)


def counters(server: Server, first_id: int) -> list[int]:
    """What the server holds."""
    rows = server.client.query("SELECT id, n FROM counters ORDER BY id").dicts()
    return [row["n"] for row in rows if first_id <= row["id"] < first_id + IDS]


def test_each_row_is_executed_once_though_its_senders_die(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    """Every file's first attempt ends when part of it was answered; the second one sends all again, and nothing counts twice."""
    send = DyingFeeder(Feeder(server.url), str(tmp_path), 40)
    done = feed(bumps(spark, 10), send, job="add", to=str(tmp_path / "out"))
    assert len(list(tmp_path.glob("add.*"))) == 2
    assert counters(server, 10) == [BUMPS // IDS] * IDS
    assert done.manifest["statuses"] == {"ok": BUMPS}
    assert done.report().count() == 0


def test_broken_off_job_goes_on_with_the_rows_that_it_began_with(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    """What was sent before is not executed again, also when the DataFrame gives its rows in another order the second time."""
    send = DyingFeeder(Feeder(server.url), str(tmp_path), 100, gives_up=True)
    with pytest.raises(TaskError, match="enough"):
        feed(bumps(spark, 20), send, job="add", to=str(tmp_path / "out"))
    assert sum(counters(server, 20)) >= 200
    shuffled = bumps(spark, 20).orderBy("params.id")
    with pytest.raises(OtherJob, match="other name"):
        feed(shuffled, send, job="subtract", to=str(tmp_path / "out"))
    feed(shuffled, Feeder(server.url), job="add", to=str(tmp_path / "out"))
    assert counters(server, 20) == [BUMPS // IDS] * IDS


def test_calls_that_end_badly_are_reported(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    """Aborts, failures, and calls that were refused stand in the report with their rows; all others ran."""
    rows: list[tuple[str | None, str | None]] = [
        ("bump", '{"id": 1000, "amount": 5}'),
        ("abort_after_write", '{"id": 1000, "amount": 7}'),
        ("raise_after_write", '{"id": 1000, "amount": 7}'),
        ("bump", '{"id": 1000, "amount": "many"}'),
        ("bump", "[1, 2]"),
        ("nobody", "{}"),
        (None, "{}"),
        ("bump", '{"id": 1000, "amount": 6}'),
    ]
    given = spark.createDataFrame(rows, "procedure string, params string").coalesce(1)
    done = feed(given, Feeder(server.url), job="some", to=str(tmp_path / "out"))
    assert done.manifest["statuses"] == {"aborted": 1, "failed": 1, "ok": 2, "refused": 4}
    report: list[Any] = done.report().orderBy("row").collect()
    assert [(row.row, row.ended, row.code, row.abort_code) for row in report] == [
        (1, "aborted", "aborted", "no_luck"),
        (2, "failed", "procedure_failed", ""),
        (3, "refused", "invalid_parameters", ""),
        (4, "refused", "invalid_parameters", ""),
        (5, "refused", "unknown_procedure", ""),
        (6, "refused", "invalid_parameters", ""),
    ]
    assert [row.params for row in report[:2]] == [rows[1][1], rows[2][1]]
    assert counters(server, 1000) == [11]


def test_frame_without_calls_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """The columns are named before anything is sent, and no folder stays."""
    with pytest.raises(BadCalls, match="id bigint"):
        feed(spark.range(3), Feeder(), job="none", to=str(tmp_path / "out"))
    assert not list(tmp_path.iterdir())


def test_key_of_a_row_is_always_the_same() -> None:
    """It bears the job's begin, so that a server that has forgotten the outcome refuses it; other rows have other keys."""
    assert key_of("job/0/1", 1_700_000_000_000) == key_of("job/0/1", 1_700_000_000_000)
    keys = {key_of(f"job/{file}/{row}", 1_700_000_000_000) for file in range(20) for row in range(50)}
    assert len(keys) == 1000
    assert {key[:13] for key in keys} == {"018bcfe5-6800"}
