"""`spark.read.format("cmdlog")`: the log as a table.

One rule: it translates. What is read is decided in `replay.spark.planning`, rows are made in `replay.spark.rows`, and neither
knows Spark.

Spark finds the class through `pyspark_cmdlog` (see `replay/spark/discover`); a session that was not made by
`replay.spark.session` may call `register(spark)` instead. Filters are not pushed down: Spark 4 keeps what was pushed on the
shared relation, and a DataFrame that is used twice then gives wrong rows. Options say what is wanted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from replay.spark.options import CALLS, BadOption, Options, parse_options
from replay.spark.planning import Task, plan_read
from replay.spark.rows import TYPES, read_task
from replay.spark.stream import CallStream
from replay.spark.tables import SCHEMAS, rows_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

NAME: Final = "cmdlog"
COLUMNS: Final = "partition_id int, txn_id long, procedure string, ts timestamp, params string"
METADATA: Final = "_node int, _segment string, _block_offset long, _crc long"
_SQL_TYPES: Final = {"int32": "int", "int64": "bigint", "string": "string", "timestamp[us, tz=UTC]": "timestamp"}


class CmdlogSource(DataSource):
    """The command log."""

    def __init__(self, options: Any) -> None:  # the name is Spark's
        self._options = parse_options(dict(options))

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        if self._options.table != CALLS:
            return SCHEMAS[self._options.table]
        return f"{COLUMNS}, {METADATA}" if self._options.include_metadata else COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        if self._options.table != CALLS:
            return TableReader(self._options, schema.names)
        check_columns(schema)
        return CallReader(self._options, schema.names)

    def streamReader(self, schema: StructType) -> CallStream:
        if self._options.table != CALLS:
            raise BadOption(f"the table {self._options.table} cannot be read as a stream")
        check_columns(schema)
        return CallStream(self._options, schema.names)


class CallReader(DataSourceReader):
    """The calls."""

    def __init__(self, options: Options, columns: Sequence[str]) -> None:
        self._options, self._columns = options, tuple(columns)

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(task) for task in plan_read(self._options).tasks]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        task = partition.value if partition is not None else None  # Spark asks once even when there is nothing to read
        if isinstance(task, Task):
            yield from read_task(task, self._columns)


class TableReader(DataSourceReader):
    """A table about the log."""

    def __init__(self, options: Options, columns: Sequence[str]) -> None:
        self._options, self._columns = options, tuple(columns)

    def read(self, partition: InputPartition | None) -> Iterator[tuple[Any, ...]]:
        known = [column.strip().split(" ")[0] for column in SCHEMAS[self._options.table].split(",")]
        at = [known.index(column) for column in self._columns]
        for row in rows_of(self._options):
            yield tuple(row[number] for number in at)


def check_columns(schema: StructType) -> None:
    """A schema given by the user leaves columns out; it makes no other ones. Raises: BadOption."""
    for column in schema.fields:
        known = TYPES.get(column.name)
        if known is None:
            raise BadOption(f"there is no column {column.name}; there are {', '.join(TYPES)}")
        if column.dataType.simpleString() != _SQL_TYPES[str(known)]:
            raise BadOption(f"column {column.name} is of type {_SQL_TYPES[str(known)]}, not {column.dataType.simpleString()}")
    if not schema.fields:
        raise BadOption("a schema without columns has no rows; name one of " + ", ".join(TYPES))


def register(spark: SparkSession) -> None:
    """Makes `format("cmdlog")` known to a session that was started without it."""
    spark.dataSource.register(CmdlogSource)
