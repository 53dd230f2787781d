"""Rebuilding tables on Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from replay.spark.jobs.rebuild import rebuild
from tests.replay.ledgers import Versions, logged_calls
from tests.spark.spark_nodes import exported, make_node, read_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def node(versions: Versions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped node."""
    return make_node(versions, tmp_path_factory.mktemp("shop") / "node")


def test_rebuild_has_the_rows_of_recover_and_export(spark: SparkSession, node: Path, tmp_path: Path) -> None:
    """Row for row and type for type, also where the values of partitions differ in their scales."""
    done = rebuild(spark, str(node), to=str(tmp_path / "out"))
    assert read_tables(dict(done.manifest), tmp_path / "out") == exported(node, tmp_path)
    assert done.calls == len(logged_calls(node))
    assert spark.read.parquet(str(tmp_path / "out" / "prices")).count() == 8


def test_moments_of_one_run_are_those_of_recoveries(spark: SparkSession, node: Path, tmp_path: Path) -> None:
    """Several moments, two of them within batches, each equal the recovery up to it; a table holds all of them by `as_of_txn`."""
    calls = logged_calls(node)
    inside = [call.txn_id for call in calls if 0 < call.position < call.count - 1]
    assert len(inside) > 8
    moments = [inside[7], calls[-1].txn_id, inside[2], calls[ACCOUNTS_OPEN].txn_id]
    done = rebuild(spark, [str(node)], to=str(tmp_path / "out"), until=moments)
    for number, moment in enumerate(sorted(moments)):
        (tmp_path / str(moment)).mkdir()
        wanted = exported(node, tmp_path / str(moment), until=moment)
        found = read_tables(dict(done.manifest), tmp_path / "out", number)
        assert found["accounts"] == wanted["accounts"], moment
        assert found["rates"] == wanted["rates"], moment
    table = spark.read.parquet(str(tmp_path / "out" / "accounts"))
    assert {row.as_of_txn for row in table.select("as_of_txn").distinct().collect()} == set(moments)


ACCOUNTS_OPEN = 6
