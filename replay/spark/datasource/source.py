"""`spark.read.format("cmdlog")`: the log as a table.

One rule: it translates. What is read is decided in `replay.spark.reading.read_plan`, rows are made in
`replay.spark.reading.arrow_rows`, and neither knows Spark.

Spark finds the class through `pyspark_cmdlog` (see `replay/spark/discover`); a session that was not made by
`replay.spark.session` may call `register(spark)` instead. Filters are not pushed down: Spark 4 keeps what was pushed on the
shared relation, and a DataFrame that is used twice then gives wrong rows. Options select the rows.

The schema of a catalog's table (`CREATE TABLE calls USING cmdlog OPTIONS (path '…')`) carries the options. A catalog hands them
over when it asks for the columns, mixed with properties of its own, and Spark (4.3) does not hand them over again when the table
is read: a Python source then gets the columns and nothing else. So the first of the columns that a catalog is given holds the
options as metadata. A catalog marks what was in OPTIONS with a prefix and gives `path` without one. Everything else that it gives
(owner, comment, location, TBLPROPERTIES) is its own business.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

import orjson
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from replay.spark.base.executor_zip import ship
from replay.spark.base.options import CALLS, BadOption, ParamsFormat, ReadOptions, names_paths, parse_options
from replay.spark.base.parallelism import planners_told
from replay.spark.base.user_errors import spoken, spoken_rows
from replay.spark.base.version_check import READS, check_versions, versions_for_reading
from replay.spark.reading.read_task import Task

if TYPE_CHECKING:
    from pyspark.sql.types import StructType
if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from replay.spark.datasource.state_table import StateTable

NAME: Final = "cmdlog"
COLUMNS: Final = "partition_id int, txn_id bigint, procedure string, ts timestamp, params string"
METADATA: Final = "_node int, _segment string, _block_offset bigint, _crc bigint, _key binary"
PROVIDER: Final = "provider"  # only a catalog gives it
OPTION: Final = "option."
PATH: Final = "path"
CATALOG_OPTIONS: Final = "cmdlog.options"  # of a column's metadata
_JSON_NAMES: Final = {"int": "integer", "bigint": "long"}  # of types in a schema's JSON; the others are called as in SQL


class CmdlogSource(DataSource):
    """The command log. What reads is imported when something is read: Spark makes one of these in several processes before."""

    @spoken
    def __init__(self, options: Any) -> None:  # the name is Spark's
        given = {str(name): str(value) for name, value in dict(options).items()}
        self._of_catalog = is_of_catalog(given)
        self._given = options_of_catalog(given) if self._of_catalog else given
        if names_paths(self._given):  # a table of a catalog has them in its schema
            parse_options(self._given)

    @classmethod
    def name(cls) -> str:
        return NAME

    @spoken
    def schema(self) -> StructType | str:
        columns = _columns_of(parse_options(self._given))
        if self._of_catalog:
            return with_options(columns, self._given)
        return ", ".join(f"{_quoted(name)} {kind}" for name, kind in columns.items())

    @spoken
    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._parsed(schema)
        if options.state_table is not None:
            return StateReader(options, schema)
        if options.table != CALLS:
            return TableReader(options, schema.names)
        options.check_batch()
        check_calls(schema, options)
        return CallReader(options, schema.names)

    @spoken
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from replay.spark.datasource.stream import CallStream  # noqa: PLC0415

        options = self._parsed(schema)
        if options.table != CALLS:
            raise BadOption(f"the table {options.table} cannot be read as a stream")
        check_calls(schema, options)
        return CallStream(options, schema.names)

    @spoken
    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        _refuse_to_write()

    @spoken
    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:
        _refuse_to_write()

    def _parsed(self, schema: StructType) -> ReadOptions:
        """With what a table of a catalog was made with; the query's own options win. Raises: BadOption."""
        made_with = options_in(schema)
        if not made_with and not names_paths(self._given):
            raise BadOption(
                "which node directories? Give them to load(), or as the option path; a table of a catalog keeps its options "
                "when it is created without a list of columns: CREATE TABLE name USING cmdlog OPTIONS (path '…')"
            )
        lower = {name.lower() for name in self._given}
        return parse_options({name: value for name, value in made_with.items() if name.lower() not in lower} | self._given)


def _refuse_to_write() -> NoReturn:
    raise BadOption(
        "a command log is written by calls alone, so it takes no INSERT and no save(): send rows to a "
        "running server with foreachPartition and a cmdlog.Client (SPARK.md, Sending rows)"
    )


class CallReader(DataSourceReader):
    """Reads the calls."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options, self._columns, self._by = options, tuple(columns), versions_for_reading()

    @spoken
    def partitions(self) -> Sequence[InputPartition]:
        from replay.spark.reading.read_plan import plan_read, warn_of_gaps  # noqa: PLC0415

        plan = plan_read(self._options)
        warn_of_gaps(plan.gaps)
        return [InputPartition(task) for task in plan.tasks]

    @spoken_rows
    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        from replay.spark.reading.arrow_rows import read_task  # noqa: PLC0415

        check_versions(self._by, READS)
        task = partition.value if partition is not None else None  # Spark asks once even when there is nothing to read
        if isinstance(task, Task):
            yield from read_task(task, self._columns)


class TableReader(DataSourceReader):
    """Reads a table about the log."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options, self._columns, self._by = options, tuple(columns), versions_for_reading()

    @spoken
    def partitions(self) -> Sequence[InputPartition]:
        from replay.spark.datasource.log_tables import check_paths  # noqa: PLC0415

        check_paths(self._options)  # here, since a task would be tried four times
        return [InputPartition(None)]

    @spoken_rows
    def read(self, partition: InputPartition | None) -> Iterator[tuple[Any, ...]]:
        from replay.spark.datasource.log_tables import rows_of  # noqa: PLC0415

        check_versions(self._by, READS)
        known = list(_types(_schemas()[self._options.table]))
        at = [known.index(column) for column in self._columns]
        for row in rows_of(self._options):
            yield tuple(row[number] for number in at)


class StateReader(DataSourceReader):
    """Reads a table of the application as it was."""

    @spoken
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options, self._by = options, versions_for_reading()
        self._table, known = _state(options)
        check_columns(schema, known)
        self._columns = tuple(schema.names)

    @spoken
    def partitions(self) -> Sequence[InputPartition]:
        from replay.spark.datasource.state_table import plan_state  # noqa: PLC0415

        return [InputPartition(task) for task in plan_state(self._options, self._table, self._columns)]

    @spoken_rows
    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        from replay.spark.datasource.state_table import StateTask, read_state  # noqa: PLC0415

        check_versions(self._by, READS)
        task = partition.value if partition is not None else None
        if isinstance(task, StateTask):
            yield from read_state(task)


def check_calls(schema: StructType, options: ReadOptions) -> None:
    """Raises: BadOption."""
    check_columns(schema, _typed(_types(f"{COLUMNS}, {METADATA}"), options.params_format))


def check_columns(schema: StructType, types: Mapping[str, str]) -> None:
    """A schema given by the user may omit columns, but not add any. Raises: BadOption."""
    for column in schema.fields:
        known, given = types.get(column.name), column.dataType.simpleString()
        if known is None:
            raise BadOption(f"there is no column {column.name}; there are {', '.join(types)}")
        if given != known:
            raise BadOption(f"column {column.name} is of type {known}, not {given}")
    if not schema.fields:
        raise BadOption(f"a schema without columns has no rows; name one of {', '.join(types)}")


def _columns_of(options: ReadOptions) -> dict[str, str]:
    """Column -> type, of the table that the options name."""
    if options.state_table is not None:
        return _state(options)[1]
    if options.table != CALLS:
        return _types(_schemas()[options.table])
    return _typed(_types(f"{COLUMNS}, {METADATA}" if options.include_metadata else COLUMNS), options.params_format)


def _typed(types: Mapping[str, str], params_format: ParamsFormat) -> dict[str, str]:
    return {**types, "params": "binary"} if params_format == "binary" else dict(types)


def _state(options: ReadOptions) -> tuple[StateTable, dict[str, str]]:
    from replay.spark.datasource.state_table import columns_of, find_table  # noqa: PLC0415

    table = find_table(options)
    return table, columns_of(table, include_metadata=options.include_metadata)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _types(schema: str) -> dict[str, str]:
    """Column -> type of a schema given as text."""
    return dict(column.split() for column in schema.split(", "))


def _schemas() -> Mapping[str, str]:
    from replay.spark.datasource.log_tables import SCHEMAS  # noqa: PLC0415

    return SCHEMAS


def register(spark: SparkSession) -> None:
    """Makes `format("cmdlog")` known to a session that was started without it, on all of its executors."""
    ship(spark)
    with planners_told(spark):
        spark.dataSource.register(CmdlogSource)


def is_of_catalog(given: Mapping[str, str]) -> bool:
    """Whether a catalog gave these, to learn the columns of a new table."""
    return PROVIDER in {name.lower() for name in given}


def options_of_catalog(given: Mapping[str, str]) -> dict[str, str]:
    """What the statement has as OPTIONS or LOCATION."""
    stated = {name[len(OPTION) :]: value for name, value in given.items() if name.lower().startswith(OPTION)}
    return stated | {name: value for name, value in given.items() if name.lower() == PATH}


def with_options(columns: Mapping[str, str], given: Mapping[str, str]) -> StructType:
    """These columns (name -> Spark's type), which hold the options for every later read of the table."""
    from pyspark.sql.types import StructType  # noqa: PLC0415 - a planner that reads without a catalog needs none

    fields: list[dict[str, Any]] = [
        {"name": name, "type": _JSON_NAMES.get(kind, kind), "nullable": True, "metadata": {}} for name, kind in columns.items()
    ]
    fields[0]["metadata"] = {CATALOG_OPTIONS: orjson.dumps(dict(given)).decode()}
    return StructType.fromJson({"type": "struct", "fields": fields})


def options_in(schema: StructType) -> dict[str, str]:
    """The options that a table of a catalog was made with; {} of any other schema."""
    for field in schema.fields:
        if (text := field.metadata.get(CATALOG_OPTIONS)) is not None:
            return {str(name): str(value) for name, value in orjson.loads(text).items()}
    return {}
