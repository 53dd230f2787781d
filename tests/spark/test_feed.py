"""Feeding calls into a running service from Spark."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from pyarrow import parquet

from cmdlog.client.feed_sender import Feeder, key_of
from cmdlog.testing import Server
from replay.recover.progress import RecoveryProgress
from replay.spark.feeding.feed import RANGE_ROWS_MIN, Rows, _ranges, feed
from replay.spark.feeding.input import BadCalls, CallFiles, chance_stated
from replay.spark.feeding.task import ServerAway, call_of
from replay.spark.jobs.job import TaskError
from replay.spark.jobs.staging import SUFFIX, OtherJob
from tests.spark.failing_work import DyingFeeder
from tests.spark.test_feed_faults import IDS, counters

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow
BUMPS = 600


def bumps(spark: SparkSession, first_id: int) -> DataFrame:
    """Calls that each add 1, in two files."""
    calls = f"struct({first_id} + id % {IDS} AS id, 1 AS amount) AS params"
    return spark.range(0, BUMPS, 1, 2).selectExpr("'bump' AS procedure", calls)


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


def call_file(path: Path, first_id: int, amount: int = 1) -> CallFiles:
    """The same as `bumps`, as JSON lines with params as text and as an object."""
    params = [{"id": first_id + n % IDS, "amount": amount} for n in range(BUMPS)]
    rows = [{"procedure": "bump", "params": value if n % 2 else json.dumps(value)} for n, value in enumerate(params)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return CallFiles.at(path)


def test_other_files_neither_go_on_with_a_job_nor_pass_for_it(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    """Another path, or other content under the same one, is named and nothing is sent; the same content goes on, whenever it was
    written, and is answered with the report once the job is finished."""
    first, out = tmp_path / "g1.json", str(tmp_path / "out")
    send = DyingFeeder(Feeder(server.url), str(tmp_path), 100, gives_up=True)
    with pytest.raises(TaskError, match="enough"):
        feed(call_file(first, 30), send, job="g", to=out, spark=spark)
    before = counters(server, 30)
    second = call_file(tmp_path / "g2.json", 40)
    with pytest.raises(
        OtherJob, match=rf"unfinished feed, but you asked for one with other calls .*path: then {first}, now {second.path}"
    ) as refused:
        feed(second, Feeder(server.url), job="g", to=out, spark=spark)
    assert "their own --job and OUT" in refused.value.hint
    with pytest.raises(OtherJob, match=r"g1.json: then \d+ bytes, sha256 \w+, now \d+ bytes"):
        feed(call_file(first, 30, amount=2), Feeder(server.url), job="g", to=out, spark=spark)
    assert (counters(server, 30), counters(server, 40)) == (before, [])
    done = feed(call_file(first, 30), Feeder(server.url), job="g", to=out, spark=spark)
    assert (done.manifest["statuses"], done.already) == ({"ok": BUMPS}, False)
    again = feed(call_file(first, 30), Feeder(server.url), job="g", to=out, spark=no_session)
    assert (again.manifest, again.already) == (orjson.loads(orjson.dumps(done.manifest)), True)
    with pytest.raises(OtherJob, match=rf"{out} contains a finished feed, but you asked for one with other calls"):
        feed(second, Feeder("http://127.0.0.1:9"), job="g", to=out, spark=no_session)  # told without the server
    assert counters(server, 30) == [BUMPS // IDS] * IDS


class Elsewhere(Feeder):
    """A feeder whose server is one of another cluster."""

    def target(self) -> str:
        return "cluster e15e"


def test_job_is_gone_on_with_on_its_own_cluster_alone(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    """Another one that answers is refused by both names, be the job finished or not; an unfinished one needs an answer, a
    finished one is reported without any. Nothing is sent elsewhere, and the job resumes where it was begun."""
    out, calls = str(tmp_path / "out"), call_file(tmp_path / "calls.json", 80)
    cluster = str(server.client.status()["node"]).partition(",")[0]
    with pytest.raises(TaskError, match="enough"):
        feed(calls, DyingFeeder(Feeder(server.url), str(tmp_path), 100, gives_up=True), job="h", to=out, spark=spark)
    before = counters(server, 80)
    told = rf"other target \(target: then {cluster}, now cluster e15e\)(.*\n)*.*need their own --job and OUT"
    with pytest.raises(OtherJob, match=f"unfinished feed, but you asked for one with {told}"):
        feed(calls, Elsewhere(server.url), job="h", to=out, spark=no_session)
    with pytest.raises(
        ServerAway, match=r"http://127.0.0.1:9 does not name its cluster: no answer for 0.2 s: .*\n.*same command to resume"
    ):
        feed(calls, Feeder("http://127.0.0.1:9", give_up_after_s=0.2), job="h", to=out, spark=no_session)
    assert counters(server, 80) == before
    feed(calls, Feeder(server.url), job="h", to=out, spark=spark)
    with pytest.raises(OtherJob, match=f"finished feed, but you asked for one with {told}"):
        feed(calls, Elsewhere(server.url), job="h", to=out, spark=no_session)
    assert feed(calls, Feeder("http://127.0.0.1:9"), job="h", to=out, spark=no_session).already  # by its report
    assert counters(server, 80) == [BUMPS // IDS] * IDS


def test_one_file_is_sent_on_all_cores_or_in_order(
    spark: SparkSession, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is cut into as many ranges as tasks go side by side, each row is in one of them; on request it is one range."""
    monkeypatch.setattr(sys.modules["replay.spark.feeding.feed"], "RANGE_ROWS_MIN", 100)
    cases: list[tuple[int, Rows, int]] = [(90, "side by side", 2), (95, "in order", 1)]
    for first, rows, ranges in cases:
        seen = set[int]()
        calls, out = call_file(tmp_path / f"{first}.json", first), str(tmp_path / f"out{first}")
        tell = partial(_note_parts, seen)
        done = feed(calls, Feeder(server.url), job="r", to=out, spark=spark, rows=rows, progress=tell)
        assert (done.manifest["statuses"], seen - {0}) == ({"ok": BUMPS}, {ranges})
        assert counters(server, first) == [BUMPS // IDS] * IDS


def _note_parts(seen: set[int], progress: RecoveryProgress) -> None:
    seen.add(len(progress.partitions))


@pytest.mark.parametrize("counts", [[], [0], [0, 7], [1], [2_500], [60_000], [100_000, 100_000, 17], [5_001] * 3])
@pytest.mark.parametrize("cores", [1, 2, 7, 64])
def test_ranges_hold_each_row_once(counts: list[int], cores: int) -> None:
    """In order, none too small to be worth a task, and enough of them for all cores where the rows suffice."""
    ranges = _ranges(counts, cores)
    rows = [(file, first + n) for file, first, many in ranges for n in range(many)]
    assert rows == [(file, n) for file, count in enumerate(counts) for n in range(count)]
    assert all(many >= min(count, RANGE_ROWS_MIN) / 2 for file, _, many in ranges for count in [counts[file]])
    assert len(ranges) >= min(cores, sum(counts) // RANGE_ROWS_MIN)
    if cores == 1:
        assert len(ranges) == len(counts)


def no_session() -> SparkSession:
    """Instead of Spark, where none is needed."""
    raise AssertionError("Spark was asked for")


def test_frame_with_other_rows_neither_goes_on_with_a_job_nor_passes_for_it(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    """The rows are compared, since a plan may change while they do not; the rows that were written down go on as well."""
    out = str(tmp_path / "out")
    send = DyingFeeder(Feeder(server.url), str(tmp_path), 100, gives_up=True)
    with pytest.raises(TaskError, match="enough"):
        feed(bumps(spark, 50), send, job="g", to=out)
    for other in (bumps(spark, 60), bumps(spark, 50).limit(BUMPS - 1), bumps(spark, 50).union(bumps(spark, 50).limit(1))):
        with pytest.raises(
            OtherJob, match=r"unfinished feed, but you asked for one with other calls .*digest: then -?\d+, now -?\d+"
        ):
            feed(other, Feeder(server.url), job="g", to=out)
    done = feed(spark.read.parquet(f"{out}.unfinished/calls"), Feeder(server.url), job="g", to=out)
    assert done.manifest["statuses"] == {"ok": BUMPS}
    assert feed(bumps(spark, 50).orderBy("params.id"), Feeder(server.url), job="g", to=out).already
    with pytest.raises(OtherJob, match=r"finished feed, but you asked for one with other calls .*digest"):
        feed(bumps(spark, 60), Feeder(server.url), job="g", to=out)
    assert (counters(server, 50), counters(server, 60)) == ([BUMPS // IDS] * IDS, [])


def test_frames_of_chance_are_compared_by_columns_and_files(spark: SparkSession, tmp_path: Path) -> None:
    """`rand()` gives other rows each time, and is the same job all the same; other columns or input files are another one."""
    call_file(tmp_path / "a.json", 70)
    rows = "'bump' AS procedure", "struct(cast(rand() * 10 AS int) AS id, 1 AS amount) AS params"
    stated = [chance_stated(spark.range(3).selectExpr(*rows)) for _ in range(2)]
    assert stated[0] is not None
    assert stated[0] == stated[1]
    assert chance_stated(spark.range(3).selectExpr(*rows, "id")) not in (None, stated[0])
    read = spark.read.json(str(tmp_path / "a.json"))
    files = [chance_stated(read.selectExpr("procedure", "struct(rand() AS id) AS params"))]
    call_file(tmp_path / "a.json", 700)
    read = spark.read.json(str(tmp_path / "a.json"))
    files += [chance_stated(read.selectExpr("procedure", "struct(rand() AS id) AS params"))]
    assert files[0] is not None
    assert files[1] is not None
    assert files[0]["columns"] == files[1]["columns"]
    assert files[0]["files"] != files[1]["files"]
    assert chance_stated(bumps(spark, 70)) is None


def test_rows_of_chance_are_pinned_by_the_first_run(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    """A DataFrame of rand() gives other rows each time; what takes effect is what was written down first, in both runs."""
    calls = spark.range(0, 400, 1, 2).selectExpr(
        "'bump' AS procedure", f"struct(400 + id % {IDS} AS id, cast(rand() * 1000000 AS int) AS amount) AS params"
    )
    send = DyingFeeder(Feeder(server.url), str(tmp_path), 100, gives_up=True)
    out = tmp_path / "out"
    with pytest.raises(TaskError, match="enough"):
        feed(calls, send, job="chance", to=str(out))
    pinned = [
        orjson.loads(params)
        for name in sorted(os.listdir(f"{out}{SUFFIX}/calls"))
        if name.endswith(".parquet")
        for params in parquet.read_table(f"{out}{SUFFIX}/calls/{name}").column("params").to_pylist()
    ]
    assert 0 < sum(counters(server, 400)) <= sum(row["amount"] for row in pinned)
    assert feed(calls, Feeder(server.url), job="chance", to=str(out)).manifest["statuses"] == {"ok": 400}
    wanted = [sum(row["amount"] for row in pinned if row["id"] == 400 + n) for n in range(IDS)]
    assert counters(server, 400) == wanted


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
        ("bump", None),
        ("bump", '{"id": 1000, "amount": 99999999999999999999}'),
    ]
    given = spark.createDataFrame(rows, "procedure string, params string").coalesce(1)
    done = feed(given, Feeder(server.url), job="some", to=str(tmp_path / "out"))
    assert done.manifest["statuses"] == {"aborted": 1, "failed": 1, "ok": 2, "refused": 6}
    report: list[Any] = done.report().orderBy("row").collect()
    assert [(row.row, row.ended, row.code, row.abort_code) for row in report] == [
        (1, "aborted", "aborted", "no_luck"),
        (2, "failed", "procedure_failed", ""),
        (3, "refused", "invalid_parameters", ""),
        (4, "refused", "invalid_parameters", ""),
        (5, "refused", "unknown_procedure", ""),
        (6, "refused", "invalid_parameters", ""),
        (8, "refused", "invalid_parameters", ""),
        (9, "refused", "invalid_parameters", ""),
    ]
    assert report[-2].detail == "the column params is NULL; a call without parameters has {}"
    assert "amount" in report[-1].detail
    assert "64 bit" in report[-1].detail
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


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("9223372036854775807", 9223372036854775807),
        ("99999999999999999999", 99999999999999999999),
        ("-123456789012345678901234567890", -123456789012345678901234567890),
        ("0.1", 0.1),
        ("1.10", 1.1),
        ("0.30000000000000004", 0.30000000000000004),
        ("1e300", 1e300),
        ('"0.1234567890123456789"', "0.1234567890123456789"),
    ],
)
def test_number_of_a_row_is_the_one_that_is_written_there(text: str, value: object) -> None:
    """Integers of any length stay integers, and what a float holds stays a float."""
    found = call_of("bump", f'{{"n": {text}}}')
    assert isinstance(found, dict)
    assert (found["n"], type(found["n"])) == (value, type(value))


@pytest.mark.parametrize("text", ["0.1234567890123456789", "12345678901234567.25", "1e400", "-1E-400"])
def test_number_that_no_float_holds_is_refused(text: str) -> None:
    """It would be another number when it arrives; the row says which one it is."""
    found = call_of("bump", f'{{"n": {text}}}')
    assert isinstance(found, str)
    assert text.strip("-") in found


@pytest.mark.parametrize(
    ("procedure", "params", "why"),
    [
        ("bump", None, "params is NULL"),
        ("bump", "", "params is not a JSON value"),
        ("bump", "[1]", "params is not a JSON object"),
        ("bump", "NaN", "params is not a JSON value"),
        ("bump", '{"n": NaN, "m": 1e5}', "params is not a JSON value"),
        (None, "{}", "procedure is NULL"),
        ("", "{}", "procedure is empty"),
    ],
)
def test_row_that_is_no_call_names_its_column(procedure: str | None, params: str | None, why: str) -> None:
    """In particular, params that are missing are not taken for none: the procedure without parameters would run."""
    found = call_of(procedure, params)
    assert isinstance(found, str)
    assert why in found
