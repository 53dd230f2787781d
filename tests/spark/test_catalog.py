"""Tables of a Spark catalog over the log: made once, read by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from replay.spark.base.options import parse_options
from replay.spark.datasource.source import options_of_catalog
from tests.spark.reading import made, read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


@pytest.fixture
def node(tmp_path: Path) -> str:
    """A stopped node of its own, since a table that is dropped might take files along."""
    return made(tmp_path / "node").directory


@pytest.fixture
def catalog(spark: SparkSession) -> Iterator[SparkSession]:
    """A database that goes with its tables."""
    spark.sql("CREATE DATABASE logs")
    spark.sql("USE logs")
    yield spark
    spark.sql("USE default")
    spark.sql("DROP DATABASE logs CASCADE")


@pytest.mark.parametrize("where", ["OPTIONS (path '{}')", "LOCATION '{}'"])
def test_table_is_made_once_and_read_by_name(catalog: SparkSession, node: str, where: str) -> None:
    """The catalog's own properties are no options; the table has the columns and rows of `load()`, and DESCRIBE shows them."""
    more = "COMMENT 'calls of the shop' TBLPROPERTIES ('team' = 'shop', 'procedures' = 'none of ours')"
    catalog.sql(f"CREATE TABLE calls USING cmdlog {where.format(node)} {more}")
    rows = catalog.sql("SELECT partition_id, txn_id, procedure, params FROM calls").collect()
    assert sorted(tuple(row) for row in rows) == sorted(read(node))
    described = {row.col_name: row.data_type for row in catalog.sql("DESCRIBE calls").collect()}
    assert (described["txn_id"], described["params"]) == ("bigint", "string")
    assert catalog.table("calls").join(catalog.table("calls"), "txn_id").count() == 96


def test_table_keeps_its_options_and_a_query_may_add_some(catalog: SparkSession, node: str) -> None:
    """OPTIONS stay in force for every read; WITH adds to them and wins; a misspelt one is refused when the table is made."""
    catalog.sql(f"CREATE TABLE deposits USING cmdlog OPTIONS (path '{node}', procedures 'deposit', paramsFormat 'binary')")
    assert catalog.table("deposits").count() == 90
    assert dict(catalog.table("deposits").dtypes)["params"] == "binary"
    assert catalog.sql("SELECT * FROM deposits WITH (procedures 'begin')").count() == 6
    with pytest.raises(PySparkException, match="cmdlog has no option proceedures; did you mean procedures"):
        catalog.sql(f"CREATE TABLE wrong USING cmdlog OPTIONS (path '{node}', proceedures 'deposit')")


def test_state_and_stream_are_tables_as_well(catalog: SparkSession, node: str) -> None:
    """`table` is an option like others, and a stream of a table is one of its log."""
    catalog.sql(f"CREATE TABLE segments USING cmdlog OPTIONS (path '{node}', table 'segments')")
    assert catalog.table("segments").count() > 0
    catalog.sql(f"CREATE TABLE calls USING cmdlog OPTIONS (path '{node}')")
    query = catalog.readStream.table("calls").writeStream.format("memory").queryName("streamed")
    query.trigger(availableNow=True).start().awaitTermination()
    assert catalog.table("streamed").count() == 96


def test_nothing_is_written_and_a_dropped_table_leaves_the_log(catalog: SparkSession, node: str) -> None:
    """INSERT says where calls go instead; DROP and TRUNCATE leave every file as it is."""
    catalog.sql(f"CREATE TABLE calls USING cmdlog OPTIONS (path '{node}')")
    before = {path: path.read_bytes() for path in Path(node).rglob("*") if path.is_file()}
    with pytest.raises(PySparkException, match=r"written by calls alone(.*\n)*.*foreachPartition"):
        catalog.sql("INSERT INTO calls VALUES (1, 1, 'a', now(), '')")
    for statement in ("INSERT OVERWRITE calls VALUES (1, 1, 'a', now(), '')", "TRUNCATE TABLE calls", "DELETE FROM calls"):
        with pytest.raises(PySparkException):
            catalog.sql(statement)
    catalog.sql("DROP TABLE calls PURGE")
    assert {path: path.read_bytes() for path in Path(node).rglob("*") if path.is_file()} == before


def test_table_with_a_list_of_columns_says_what_it_lacks(catalog: SparkSession, node: str) -> None:
    """Spark asks such a table's source for nothing when it is made, and so it has no options when it is read."""
    catalog.sql(f"CREATE TABLE ids (txn_id bigint) USING cmdlog OPTIONS (path '{node}')")
    with pytest.raises(PySparkException, match="created without a list of columns"):
        catalog.table("ids").count()
    assert catalog.sql(f"SELECT * FROM ids WITH (path '{node}')").count() == 96  # noqa: S608 - the path is the test's own


def test_options_of_a_statement_are_told_from_properties_of_the_catalog() -> None:
    """What came as OPTIONS has a prefix; other names are the catalog's, be they ours by chance."""
    given = {"owner": "me", "provider": "cmdlog", "path": "file:/n", "option.dedupe": "false", "dedupe": "true", "table": "t"}
    assert options_of_catalog(given) == {"path": "file:/n", "dedupe": "false"}
    assert parse_options(options_of_catalog(given)).table == "calls"
