"""`spark.read.format("cmdlog")`: the log as a table.

One rule: it translates. What is read is decided in `replay.spark.planning`, rows are made in `replay.spark.rows`, and neither
knows Spark.

Spark finds the class through `pyspark_cmdlog` (see `replay/spark/discover`); a session that was not made by
`replay.spark.session` may call `register(spark)` instead. Filters are not pushed down: Spark 4 keeps what was pushed on the
shared relation, and a DataFrame that is used twice then gives wrong rows. Options say what is wanted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from replay.spark.options import CALLS, BadOption, Options, ParamsFormat, parse_options
from replay.spark.shipping import planners_path, ship
from replay.spark.spoken import spoken, spoken_rows
from replay.spark.tasks import Task
from replay.spark.versions import READS, check_versions, versions_for_reading

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from replay.spark.state import StateTable

NAME: Final = "cmdlog"
COLUMNS: Final = "partition_id int, txn_id bigint, procedure string, ts timestamp, params string"
METADATA: Final = "_node int, _segment string, _block_offset bigint, _crc bigint, _key binary"


class CmdlogSource(DataSource):
    """The command log. What reads is imported when something is read: Spark makes one of these in several processes before."""

    @spoken
    def __init__(self, options: Any) -> None:  # the name is Spark's
        self._options = parse_options(dict(options))

    @classmethod
    def name(cls) -> str:
        return NAME

    @spoken
    def schema(self) -> str:
        if self._options.state_table is not None:
            return ", ".join(f"{_quoted(name)} {kind}" for name, kind in _state(self._options)[1].items())
        if self._options.table != CALLS:
            return _schemas()[self._options.table]
        every = _types(f"{COLUMNS}, {METADATA}" if self._options.include_metadata else COLUMNS)
        return ", ".join(f"{name} {kind}" for name, kind in _typed(every, self._options.params_format).items())

    @spoken
    def reader(self, schema: StructType) -> DataSourceReader:
        if self._options.state_table is not None:
            return StateReader(self._options, schema)
        if self._options.table != CALLS:
            return TableReader(self._options, schema.names)
        self._options.check_batch()
        check_calls(schema, self._options)
        return CallReader(self._options, schema.names)

    @spoken
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from replay.spark.stream import CallStream  # noqa: PLC0415

        if self._options.table != CALLS:
            raise BadOption(f"the table {self._options.table} cannot be read as a stream")
        check_calls(schema, self._options)
        return CallStream(self._options, schema.names)


class CallReader(DataSourceReader):
    """The calls."""

    def __init__(self, options: Options, columns: Sequence[str]) -> None:
        self._options, self._columns, self._by = options, tuple(columns), versions_for_reading()

    @spoken
    def partitions(self) -> Sequence[InputPartition]:
        from replay.spark.planning import plan_read, warn_of_gaps  # noqa: PLC0415

        plan = plan_read(self._options)
        warn_of_gaps(plan.gaps)
        return [InputPartition(task) for task in plan.tasks]

    @spoken_rows
    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        from replay.spark.rows import read_task  # noqa: PLC0415

        check_versions(self._by, READS)
        task = partition.value if partition is not None else None  # Spark asks once even when there is nothing to read
        if isinstance(task, Task):
            yield from read_task(task, self._columns)


class TableReader(DataSourceReader):
    """A table about the log."""

    def __init__(self, options: Options, columns: Sequence[str]) -> None:
        self._options, self._columns, self._by = options, tuple(columns), versions_for_reading()

    @spoken
    def partitions(self) -> Sequence[InputPartition]:
        from replay.spark.tables import check_paths  # noqa: PLC0415

        check_paths(self._options)  # here, since a task would be tried four times
        return [InputPartition(None)]

    @spoken_rows
    def read(self, partition: InputPartition | None) -> Iterator[tuple[Any, ...]]:
        from replay.spark.tables import rows_of  # noqa: PLC0415

        check_versions(self._by, READS)
        known = list(_types(_schemas()[self._options.table]))
        at = [known.index(column) for column in self._columns]
        for row in rows_of(self._options):
            yield tuple(row[number] for number in at)


class StateReader(DataSourceReader):
    """A table of the application as it was."""

    @spoken
    def __init__(self, options: Options, schema: StructType) -> None:
        self._options, self._by = options, versions_for_reading()
        self._table, known = _state(options)
        check_columns(schema, known)
        self._columns = tuple(schema.names)

    @spoken
    def partitions(self) -> Sequence[InputPartition]:
        from replay.spark.state import plan_state  # noqa: PLC0415

        return [InputPartition(task) for task in plan_state(self._options, self._table, self._columns)]

    @spoken_rows
    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        from replay.spark.state import StateTask, read_state  # noqa: PLC0415

        check_versions(self._by, READS)
        task = partition.value if partition is not None else None
        if isinstance(task, StateTask):
            yield from read_state(task)


def check_calls(schema: StructType, options: Options) -> None:
    """Raises: BadOption."""
    check_columns(schema, _typed(_types(f"{COLUMNS}, {METADATA}"), options.params_format))


def check_columns(schema: StructType, types: Mapping[str, str]) -> None:
    """A schema given by the user leaves columns out; it makes no other ones. Raises: BadOption."""
    for column in schema.fields:
        known, given = types.get(column.name), column.dataType.simpleString()
        if known is None:
            raise BadOption(f"there is no column {column.name}; there are {', '.join(types)}")
        if given != known:
            raise BadOption(f"column {column.name} is of type {known}, not {given}")
    if not schema.fields:
        raise BadOption(f"a schema without columns has no rows; name one of {', '.join(types)}")


def _typed(types: Mapping[str, str], params_format: ParamsFormat) -> dict[str, str]:
    return {**types, "params": "binary"} if params_format == "binary" else dict(types)


def _state(options: Options) -> tuple[StateTable, dict[str, str]]:
    from replay.spark.state import columns_of, find_table  # noqa: PLC0415

    table = find_table(options)
    return table, columns_of(table, include_metadata=options.include_metadata)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _types(schema: str) -> dict[str, str]:
    """Column -> type of a schema in words."""
    return dict(column.split() for column in schema.split(", "))


def _schemas() -> Mapping[str, str]:
    from replay.spark.tables import SCHEMAS  # noqa: PLC0415

    return SCHEMAS


def register(spark: SparkSession) -> None:
    """Makes `format("cmdlog")` known to a session that was started without it, on all of its executors."""
    ship(spark)
    with planners_path(spark):
        spark.dataSource.register(CmdlogSource)
