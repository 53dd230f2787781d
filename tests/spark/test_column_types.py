"""One column has one type, whichever way it leaves the database."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyarrow import parquet

import cmdlog
from cmdlog.wal.directory.instance import load_instance
from cmdlog.wal.files import RealFiles
from replay.plan.planner import PAST, make_plan
from replay.recover.to_directory import rebuild as recover
from replay.spark.jobs.backfill import backfill
from replay.spark.jobs.rebuild import rebuild
from snapshot.catalog import list_snapshots
from snapshot.export import export
from tests.replay.ledgers import SMALL, Versions
from tests.snapshot.test_export import APP, FULL_ROW, TYPES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow
KEYS = ("id",)


@pytest.fixture(scope="module")
def node(versions: Versions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped node with a row of every type, one of NULLs, and digits of several scales in each partition."""
    folder = tmp_path_factory.mktemp("every") / "node"
    with cmdlog.open(folder, versions.load("every_v1", APP), partitions=2, **SMALL) as opened:
        for number in range(8):
            opened.call("add", **{**FULL_ROW, "id": number + 1, "exact": FULL_ROW["exact"].scaleb(number)})
        opened.call("empty", id=20)
    return folder


def types_in(*paths: Path) -> dict[str, Any]:
    """Column -> type in these files, which have the same ones."""
    found = [{field.name: field.type for field in parquet.read_schema(path)} for path in paths]
    assert found.count(found[0]) == len(found)
    return found[0]


def as_spark(spark: SparkSession, path: Path) -> dict[str, str]:
    """What Spark takes the columns of a file for."""
    return dict(spark.read.parquet(str(path)).dtypes)


def test_four_ways_out_give_every_column_one_type(spark: SparkSession, node: Path, versions: Versions, tmp_path: Path) -> None:
    """An export, a rebuild, `state.*`, and both sides of a back-fill's differences; values agree as well."""
    files = RealFiles()
    recover(make_plan(files, str(node), PAST), files, str(tmp_path / "node"))
    snapshots = list_snapshots(files, str(tmp_path / "node"), load_instance(files, str(tmp_path / "node")).identity)
    export(files, list({one.partition: one for one in snapshots}.values()), str(tmp_path / "tables"))
    exported = tmp_path / "tables" / "things.parquet"
    assert types_in(exported) == TYPES

    rebuilt = tmp_path / "rebuilt" / "things"
    rebuild(spark, str(node), to=str(rebuilt.parent))
    assert types_in(*rebuilt.glob("*.parquet")) == TYPES

    state = spark.read.format("cmdlog").option("table", "state.things").load(str(node))
    assert dict(state.dtypes) == as_spark(spark, exported)

    every = APP.replace("given = {**locals(), ", 'given = {**locals(), "big": 1, "flag": None, "price": Decimal("0.50"), ')
    other = versions.load("every_v2", every)
    done = backfill(spark, str(node), other, to=str(tmp_path / "what"))
    assert done.changes["things"]["changed"] == 8
    diff = types_in(*(tmp_path / "what" / "diff" / "things").glob("*.parquet"))
    assert {name: diff[name] for name in KEYS} == {name: TYPES[name] for name in KEYS}
    for side in ("old", "new"):
        assert {name: diff[f"{side}_{name}"] for name in TYPES if name not in KEYS} == {
            name: kind for name, kind in TYPES.items() if name not in KEYS
        }
    assert types_in(*(tmp_path / "what" / "state" / "things").glob("*.parquet")) == TYPES

    wanted = sorted(parquet.read_table(exported).to_pylist(), key=lambda row: row["id"])
    assert sorted(parquet.read_table(rebuilt).to_pylist(), key=lambda row: row["id"]) == wanted
    changes = parquet.read_table(tmp_path / "what" / "diff" / "things").to_pylist()
    by_id = {row["id"]: row for row in wanted}
    assert all(row["old_price"] == by_id[row["id"]]["price"] and row["old_at"] == by_id[row["id"]]["at"] for row in changes)
