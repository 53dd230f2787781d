"""Tables of a past moment, on each side of a change and of a migration: columns before any row is read, then the rows."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow.parquet as pq
import pytest

from cmdlog.wal.files import RealFiles
from procedures.numeric.marks import stored_integer
from replay.plan.planner import PAST, make_plan
from replay.recover.to_directory import rebuild as rebuild_node
from replay.spark.base.options import parse_options
from replay.spark.datasource.past_tables import tables_at
from replay.spark.datasource.state_table import TablesDiffer, columns_of, find_table, plan_state, read_state
from replay.spark.jobs.backfill import backfill
from replay.spark.jobs.rebuild import rebuild
from replay.state.trust import state_path
from snapshot.table_digest import open_image
from tests.replay.deployed import FOURTH, Deployed, Tables, application, copied, make_deployed, ordered
from tests.replay.ledgers import Versions
from tests.replay.test_deployed_recover import changes_before
from tests.spark.spark_nodes import read_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow
FILES = RealFiles()
NAMES = ("items", "lines", "rates")


@pytest.fixture(scope="module")
def past(versions: Versions, tmp_path_factory: pytest.TempPathFactory) -> Deployed:
    """See `make_deployed`."""
    return make_deployed(tmp_path_factory.mktemp("years") / "node", versions)


def rows(past: Deployed, table: str, moment: int | None) -> list[dict[str, Any]]:
    """As tasks read them; a Numeric as its units."""
    as_of = {} if moment is None else {"asOfTxn": str(moment)}
    options = parse_options({"paths": orjson.dumps([str(past.directory)]).decode(), "table": f"state.{table}", **as_of})
    found = find_table(options)
    columns = list(columns_of(found, include_metadata=False))
    read = [row for task in plan_state(options, found, columns) for batch in read_state(task) for row in batch.to_pylist()]
    return units({table: read})[table]


def units(tables: Tables) -> Tables:
    """Exact decimals as a state has them."""
    for row in tables.get("items", []):
        if "score" in row:
            row["score"] = stored_integer(str(row["score"]))
    return ordered(tables)


@pytest.mark.parametrize("step", [2, 4])
def test_state_has_the_columns_and_rows_of_its_moment(past: Deployed, step: int) -> None:
    """Around each deploy; a table that was not made yet has no rows."""
    for moment in (past.first(step), past.last(step)):
        for name in NAMES:
            assert rows(past, name, moment.txn_id) == ordered(moment.tables).get(name, []), (name, moment.name)


def test_state_without_a_moment_is_that_of_the_newest_code(past: Deployed) -> None:
    """No plan is needed to know its columns."""
    assert rows(past, "lines", None) == ordered(past.moments[-1].tables)["lines"]


def test_moment_within_a_change_names_the_column_that_a_partition_lacks(past: Deployed) -> None:
    """One partition has changed, the other has not."""
    changes = changes_before(past, 2)
    with pytest.raises(TablesDiffer, match=r"has no column (mood|score) in table items"):
        rows(past, "items", min(changes))


def test_tables_come_from_snapshot_and_entries(past: Deployed, tmp_path: Path) -> None:
    """Their CREATE statements are those of the recovered state, from any snapshot on."""
    bare = copied(past.directory, tmp_path / "bare")
    shutil.rmtree(bare / "snapshots")
    (bare / "snapshots").mkdir()
    for step in (1, 2, 3, 4):
        out = tmp_path / f"out{step}"
        made = [make_plan(FILES, str(of), PAST, until=past.last(step).txn_id) for of in (past.directory, bare)]
        rebuild_node(made[0], FILES, str(out), workers=0)
        with closing(open_image(state_path(str(out), 0))) as image:
            held = dict(
                image.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE '#_%' ESCAPE '#'")
            )
        assert [tables_at(FILES, [planned.plan]) for planned in made] == [held, held]


def test_rebuild_at_moments_with_different_tables(spark: SparkSession, past: Deployed, tmp_path: Path) -> None:
    """One run over all versions: each moment has its own tables, columns and types."""
    moments = [past.last(step) for step in (1, 2, 3, 4)]
    done = rebuild(spark, str(past.directory), to=str(tmp_path / "out"), until=[moment.txn_id for moment in moments])
    for number, moment in enumerate(moments):
        assert units(read_tables(dict(done.manifest), tmp_path / "out", number)) == ordered(moment.tables), moment.step


def test_calls_have_the_parameter_names_of_their_version(spark: SparkSession, past: Deployed) -> None:
    """The same procedure under two signatures: each call has the names that it was made with."""
    calls = spark.read.format("cmdlog").load(str(past.directory)).orderBy("txn_id").collect()
    found = [(row.txn_id, row.procedure, orjson.loads(row.params)) for row in calls]
    defaults = [{"plus": 1}, {"plus": 1}, {"extra": 0}, {"extra": 0}]
    wanted = [
        (moment.txn_id, moment.name, {**(defaults[moment.step - 1] if moment.name == "adjust" else {}), **moment.params})
        for moment in past.moments
    ]
    assert list({txn: (txn, name, params) for txn, name, params in found}.values()) == wanted


@pytest.mark.parametrize("step", [2, 4])
def test_backfill_with_code_of_another_schema(
    spark: SparkSession, past: Deployed, versions: Versions, tmp_path: Path, step: int
) -> None:
    """Its tables are those of a fork; columns that one side has alone are not compared."""
    at, db = past.last(3 if step == 4 else 1).txn_id, application(versions, step)
    done = backfill(spark, str(past.directory), db, to=str(tmp_path / "out"), at=at, missing="skip")
    wanted = past.forked(at, step)
    tables = done.manifest["state"]
    assert {name: sum(file["rows"] for file in tables[name]["files"]) for name in NAMES} == {
        name: len(wanted[name]) for name in NAMES
    }


def test_backfill_names_the_first_call_across_another_scale(
    spark: SparkSession, past: Deployed, versions: Versions, tmp_path: Path
) -> None:
    """The fourth code with another count, from before and after its migrations: rows differ since the first call that counts."""
    source = FOURTH.replace("score=items.c.score + 1", "score=items.c.score + 2")
    at, db = past.last(3).txn_id, versions.load("years_twice", source)
    done = backfill(spark, str(past.directory), db, to=str(tmp_path / "out"), at=at)
    files = done.manifest["diff"]["items"]["files"]
    found = [row for file in files for row in pq.read_table(tmp_path / "out" / file["path"]).to_pylist()]
    assert [(row["id"], row["first_txn_id"], row["first_procedure"]) for row in found] == [(1, past.first(4).txn_id, "cheer")]
    at = past.last(2).txn_id
    done = backfill(spark, str(past.directory), db, to=str(tmp_path / "early"), at=at, until=past.last(3).txn_id)
    files = done.manifest["diff"]["items"]["files"]
    found = [row for file in files for row in pq.read_table(tmp_path / "early" / file["path"]).to_pylist()]
    (late,) = [moment for moment in past.moments if moment.step == 3 and moment.name == "cheer"]
    assert [(row["id"], row["first_txn_id"], row["first_procedure"]) for row in found] == [(0, late.txn_id, "cheer")]
