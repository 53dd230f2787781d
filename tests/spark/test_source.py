"""The log as a table of a real Spark session."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException, PythonException
from pyspark.sql.functions import broadcast

from tests.replay import damage
from tests.spark.reading import made, read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow
SENTENCE_AT_MAX = 4  # line of a message, counted from 0, behind Spark's own words


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A stopped node with 96 calls; nobody changes it."""
    return made(tmp_path_factory.mktemp("node")).directory


def load(spark: SparkSession, directory: str, **options: str) -> DataFrame:
    """The table, found by its name alone."""
    return spark.read.format("cmdlog").options(**options).load(directory)


def test_table_is_found_by_its_name_and_holds_the_log(spark: SparkSession, directory: str) -> None:
    """No register call; columns and rows are those of the plan, times are UTC, parameters are JSON objects."""
    frame = load(spark, directory)
    assert [f"{c.name} {c.dataType.simpleString()}" for c in frame.schema.fields] == [
        "partition_id int", "txn_id bigint", "procedure string", "ts timestamp", "params string",
    ]  # fmt: skip
    found = [(row.partition_id, row.txn_id, row.procedure, row.params) for row in frame.collect()]
    assert sorted(found) == sorted(read(directory))
    row = frame.selectExpr("ts = timestamp_millis(shiftright(txn_id, 21)) as same").distinct().collect()
    assert [one.same for one in row] == [True]


def test_one_frame_used_twice_gives_right_rows_twice(spark: SparkSession, directory: str) -> None:
    """Filters stay with Spark, so a frame can be filtered, joined with itself and counted again."""
    frame = load(spark, directory)
    of_one = frame.where("partition_id = 1")
    assert (frame.count(), of_one.count(), frame.union(of_one).count(), frame.count()) == (96, 48, 144, 96)


def test_sql_view_with_options(spark: SparkSession, directory: str) -> None:
    """CREATE TEMPORARY VIEW … USING cmdlog; amounts come out of the JSON."""
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW calls USING cmdlog OPTIONS (path '{directory}', procedures 'deposit')")
    total = spark.sql("SELECT sum(get_json_object(params, '$.amount')) AS total FROM calls").collect()[0].total
    assert total == sum(n + c + 1 for n in range(30) for c in range(3))


def test_own_schema_leaves_columns_out(spark: SparkSession, directory: str) -> None:
    """Fewer columns cost less; a column that is none, or of another type, is refused."""
    frame = spark.read.format("cmdlog").schema("txn_id long, _segment string").load(directory)
    assert frame.count() == 96
    assert set(frame.columns) == {"txn_id", "_segment"}
    raw = spark.read.format("cmdlog").options(paramsFormat="binary", procedures="begin")
    found = raw.schema("params binary, _key binary").load(directory).collect()
    assert {(bytes(row.params), row._key) for row in found} == {(b"[%d]" % n, None) for n in (0, 1, 2, 10, 11, 12)}
    with pytest.raises(PySparkException, match="column txn_id is of type bigint, not int"):
        spark.read.format("cmdlog").schema("txn_id int").load(directory).count()


def test_unknown_option_is_refused_by_the_near_name(spark: SparkSession, directory: str) -> None:
    """The message reaches the user through Spark."""
    with pytest.raises(PySparkException, match="did you mean startingTxn"):
        load(spark, directory, startTxn="1")


def test_batch_from_latest_gives_no_rows_at_all(spark: SparkSession, directory: str) -> None:
    """The whole log in place of nothing would be the worst answer: a batch is refused, also through SQL."""
    with pytest.raises(PySparkException, match="startingTxn=latest is for streams"):
        load(spark, directory, startingTxn="latest").count()
    late = f"CREATE TEMPORARY VIEW late USING cmdlog OPTIONS (path '{directory}', startingTxn 'latest')"
    with pytest.raises(PySparkException, match="startingTxn=latest is for streams"):
        [spark.sql(text).collect() for text in (late, "SELECT * FROM late")]


def test_sentence_of_an_error_stands_at_its_head(spark: SparkSession, directory: str, tmp_path: Path) -> None:
    """What the planning Pythons tell is cut to what is to be done, for tables about the log, too, and not told by a task."""
    (tmp_path / "empty").mkdir()
    calls: list[Callable[[], object]] = [
        lambda: load(spark, directory, startTxn="1"),
        lambda: load(spark, directory, procedures="depositt").collect(),
        lambda: load(spark, str(tmp_path / "empty"), table="faults").collect(),
        lambda: load(spark, str(tmp_path / "empty"), table="state.accounts").collect(),
        lambda: load(spark, directory, table="state.nowhere"),
    ]
    for call in calls:
        with pytest.raises(PySparkException) as caught:
            call()
        assert not isinstance(caught.value, PythonException), "a task told it, after four attempts"
        lines = str(caught.value).splitlines()
        at = next(number for number, line in enumerate(lines) if re.match(r"replay\.[\w.]+: ", line))
        assert at <= SENTENCE_AT_MAX, caught.value


def test_tables_about_the_log(spark: SparkSession, directory: str) -> None:
    """One option more gives what is around the calls; segments add up to them."""
    segments = load(spark, directory, table="segments")
    assert segments.selectExpr("sum(calls)").collect()[0][0] == 96
    assert {row.segment for row in segments.collect()} <= set(os.listdir(os.path.join(directory, "log")))


def test_damaged_input_fails_the_job_with_segment_and_offset(spark: SparkSession, tmp_path: Path) -> None:
    """P15: nothing is given out, nothing is written; the error names the place."""
    rig = made(tmp_path / "a")
    damage.flip(damage.segments(rig.directory)[0], 6 * 4096 + 80)
    out = str(tmp_path / "out")
    with pytest.raises(
        PySparkException, match=r"seg-0000000000000001\.wal.*offset 24576|offset 24576.*seg-0000000000000001\.wal"
    ):
        load(spark, rig.directory).write.parquet(out)
    assert not os.path.exists(os.path.join(out, "_SUCCESS"))


def test_size_that_spark_cannot_be_told_never_broadcasts_a_large_table(spark: SparkSession, directory: str) -> None:
    """A Python source reports no statistics: nothing is broadcast by estimate, but by its real size at run time or by a hint."""
    calls, few = load(spark, directory), load(spark, directory, procedures="begin")

    def joined(right: DataFrame) -> str:
        frame = calls.join(right, "txn_id")
        assert frame.count() == len(frame.collect()) == 6
        return str(frame._jdf.queryExecution().executedPlan().toString())

    assert "BroadcastHashJoin" not in joined(few)
    assert "BroadcastHashJoin" in joined(broadcast(few))
    spark.conf.set("spark.sql.adaptive.enabled", "true")
    try:
        assert "BroadcastHashJoin" in joined(few).partition("== Initial Plan ==")[0]
    finally:
        spark.conf.set("spark.sql.adaptive.enabled", "false")
