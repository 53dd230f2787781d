"""Export: what snapshots hold as Parquet files, one per table, with the types that the application declared.

One rule: a value that does not have its column's type is an error that names table, row and column; nothing is rounded, cut or
guessed. A file appears under its name only when it is complete and durable: all of them are written in a folder with a temporary
name, which is renamed at the end.

Types are those of `snapshot.column_types`. Rows of all partitions are in one file, in the order of partitions and keys; of a
replicated table, which every partition holds, those of one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

import apsw
import orjson

from cmdlog.wal.directory.lock import refuse_link
from cmdlog.wal.errors import NotEmpty
from cmdlog.wal.files import Files, parent, sync_file
from procedures import Database
from procedures.code.bundle import bundle_of
from procedures.code.loaded_modules import load_bundle
from procedures.declaration.schema import TABLE_NAME
from snapshot.catalog import Snapshot, check, restore
from snapshot.column_types import UNFIT, ColumnType, column_kinds, column_type
from snapshot.errors import SnapshotDamaged, SnapshotError
from snapshot.manifest import IMAGE_NAME
from snapshot.table_digest import open_image

CHUNK_ROWS: Final = 4096  # converted at a time …
CHUNK_BYTES: Final = 4 << 20  # … or fewer, when they are long
GROUP_ROWS: Final = 131_072  # of a row group: what a reader takes at a time …
GROUP_BYTES: Final = 64 << 20  # … or fewer
METADATA_KEY: Final = b"cmdlog"
_VALUE_BYTES: Final = 16  # of a number, for the size of a chunk


class ExportError(SnapshotError):
    """The requested export is not possible."""


class ParquetMissing(ExportError):
    """pyarrow is not installed."""

    hint = "pip install 'cmdlog[parquet]'"


class BadValue(ExportError):
    """A value that its column's type does not allow."""

    exit_code = 10


@dataclass(frozen=True, slots=True)
class ExportProgress:
    """Progress of an export."""

    table: str
    rows: int  # of all tables
    rows_total: int


@dataclass(frozen=True, slots=True)
class Exported:
    """One file."""

    table: str
    file: str
    rows: int
    bytes: int
    columns: Mapping[str, str]  # name -> Arrow type


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of the file."""

    name: str
    type: ColumnType
    nullable: bool


@dataclass(frozen=True, slots=True)
class TableSource:
    """The tables of one partition, open for reading."""

    partition: int
    cluster_id: str
    stands: Mapping[str, Any]  # where the rows come from, as metadata of the file
    connection: apsw.Connection


def export(
    files: Files,
    snapshots: Sequence[Snapshot],
    out: str,
    *,
    db: Database | None = None,
    progress: Callable[[ExportProgress], None] = lambda _progress: None,
) -> list[Exported]:
    """Writes the tables of these snapshots, one of each partition, into the new folder `out`; durable on return.

    `db` declares the tables; None: the code that the snapshots hold, which is run for that. Bounded memory.
    Raises: ParquetMissing, BadValue, SnapshotDamaged, NotEmpty when `out` exists and is not empty, WrongDirectory when it is a
    link, OSError.
    """
    arrow = _pyarrow()
    refuse_link(out)
    if files.exists(out) and files.listdir(out):
        raise NotEmpty(f"{out} is not empty")
    folder = f"{out}.tmp-{os.urandom(8).hex()}"
    os.makedirs(folder, mode=0o750)
    try:
        with ExitStack() as opened:
            sources = [_open(files, snapshot, folder, opened) for snapshot in sorted(snapshots, key=lambda s: s.partition)]
            exported = _export_all(arrow, sources, folder, _declarations(snapshots, db), progress)
        for name in files.listdir(folder):
            sync_file(files, os.path.join(folder, name))
        files.fsync_dir(folder)
        os.rename(folder, out)  # over an empty folder, too
        files.fsync_dir(parent(os.path.abspath(out)))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return exported


def write_tables(
    source: TableSource, folder: str, *, declared: Mapping[str, Any], skip: Callable[[str], bool] = lambda _table: False
) -> list[Exported]:
    """Writes the tables of one partition, as `export` writes those of all, into an existing folder; not synced.

    `declared` is what `declarations` gives.
    Raises: ParquetMissing, BadValue, OSError.
    """
    return _export_all(_pyarrow(), [source], folder, declared, lambda _progress: None, skip=skip)


def column_types(connection: apsw.Connection, table: str, *, declared: Any) -> dict[str, ColumnType]:
    """Column -> its type, whatever the rows are; `declared` is the table's `TableInfo`, if any."""
    file = _File(_pyarrow(), table, [TableSource(0, "", {}, connection)], declared)
    return {column.name: column.type for column in file.columns}


def read_table(source: TableSource, table: str, *, declared: Any, wanted: Sequence[str]) -> Iterator[Any]:
    """These columns of the partition's rows, in the order of its keys, as Arrow record batches without NOT NULL.

    Raises: BadValue.
    """
    yield from _File(_pyarrow(), table, [source], declared, wanted=wanted).batches()


def declarations(catalogs: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Table name -> its declaration (`TableInfo`), of the newest of these catalog versions that has one; runs their code."""
    found: dict[str, Any] = {}
    for version in sorted(catalogs):
        bundled = load_bundle(bundle_of(version, catalogs[version]))
        found |= {info.table.name: info for info in bundled.tables.values()}
    return found


def _pyarrow() -> Any:
    try:
        import pyarrow  # noqa: PLC0415 - only an export needs it
        import pyarrow.parquet  # noqa: PLC0415 - as above
    except ImportError as error:
        raise ParquetMissing(f"an export needs pyarrow, which is not installed: {ParquetMissing.hint}") from error
    return SimpleNamespace(core=pyarrow, parquet=pyarrow.parquet)


# -- snapshots -----------------------------------------------------------------------------------------------------------


def _open(files: Files, snapshot: Snapshot, folder: str, opened: ExitStack) -> TableSource:
    """The verified image; of a delta, the result on its base, in a file that is removed at the end."""
    problem = check(files, snapshot)
    if problem or snapshot.manifest is None:
        raise SnapshotDamaged(f"{snapshot.name} cannot be exported: {problem}")
    path = os.path.join(snapshot.path, IMAGE_NAME)
    if snapshot.manifest.kind != "full":
        path = os.path.join(folder, f"p{snapshot.partition:04d}.sqlite")
        restore(snapshot, path)
        opened.callback(os.unlink, path)
    connection = open_image(path)
    opened.callback(connection.close)
    m = snapshot.manifest
    return TableSource(
        m.partition, m.cluster_id, {"snapshot": snapshot.name, "index": m.index, "txn_id": str(m.txn_id)}, connection
    )


def _declarations(snapshots: Sequence[Snapshot], db: Database | None) -> dict[str, Any]:
    """What this code declares, or else the code in the snapshots."""
    if db is not None:
        return {info.table.name: info for info in db.tables.values()}
    catalogs: dict[int, Mapping[str, Any]] = {}
    for snapshot in snapshots:
        assert snapshot.manifest is not None
        catalogs |= {int(version): value for version, value in snapshot.manifest.catalogs.items()}
    return declarations(catalogs)


def _tables(source: TableSource) -> list[str]:
    rows = source.connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")
    names = [str(row[0]) for row in rows]
    return [name for name in names if not name.startswith(("_cmdlog_", "sqlite_"))]


def _export_all(
    arrow: Any,
    sources: Sequence[TableSource],
    folder: str,
    declared: Mapping[str, Any],
    progress: Callable[[ExportProgress], None],
    *,
    skip: Callable[[str], bool] = lambda _table: False,
) -> list[Exported]:
    holders: dict[str, list[TableSource]] = {}
    for source in sources:
        for table in _tables(source):
            if skip(table):
                continue
            holders.setdefault(table, []).append(source)
    for table, of in holders.items():
        if not TABLE_NAME.fullmatch(table):
            raise ExportError(f"table {table!r} has a name that no application can declare, so it cannot be exported to a file")
        if table in declared and declared[table].replicated:
            del of[1:]
    total = sum(_count(source, table) for table, of in holders.items() for source in of)
    exported, done = [], 0
    for table in sorted(holders):
        file = _File(arrow, table, holders[table], declared.get(table))
        exported.append(file.write(folder, partial(_report_progress, progress, table, done, total)))
        done += exported[-1].rows
    return exported


def _report_progress(progress: Callable[[ExportProgress], None], table: str, before: int, total: int, rows: int) -> None:
    progress(ExportProgress(table, before + rows, total))


def _count(source: TableSource, table: str) -> int:
    return int(str(source.connection.execute(f"SELECT count(*) FROM {_quoted(table)}").get))  # noqa: S608 - the name is quoted


# -- one table -----------------------------------------------------------------------------------------------------------


class _File:
    """Writes the rows of one table to its file."""

    def __init__(
        self,
        arrow: Any,
        table: str,
        sources: Sequence[TableSource],
        declared: Any,
        *,
        wanted: Sequence[str] | None = None,  # columns, in order; None: all
    ) -> None:
        self._arrow, self._table, self._sources = arrow, table, sources
        self._info = sources[0].connection.execute(
            "SELECT name, \"notnull\", pk FROM pragma_table_xinfo(?) WHERE hidden <> 1", (table,)
        ).fetchall()  # fmt: skip
        self._keys = [str(row[0]) for row in sorted(self._info, key=lambda row: int(str(row[2]))) if row[2]]
        if wanted is not None:
            by_name = {str(row[0]): row for row in self._info}
            self._info = [by_name[name] for name in wanted]
        names = [str(row[0]) for row in self._info]
        columns = declared.table.columns if declared is not None else {}
        kinds = column_kinds(sources[0].connection, table)
        self.columns = [
            _Column(str(name), column_type(arrow.core, kinds[str(name)], columns.get(name)), not (notnull or pk))
            for name, notnull, pk in self._info
        ]
        order = f" ORDER BY {', '.join(map(_quoted, self._keys))}" if self._keys else ""
        self._select = f"SELECT {', '.join(map(_quoted, names))} FROM {_quoted(table)}{order}"  # noqa: S608 - names are quoted

    def write(self, folder: str, tell: Callable[[int], None]) -> Exported:
        """Writes the file, not synced."""
        core, parquet = self._arrow.core, self._arrow.parquet
        schema = core.schema(
            [core.field(column.name, column.type.arrow, nullable=column.nullable) for column in self.columns],
            metadata={METADATA_KEY: orjson.dumps(self._about())},
        )
        name = f"{self._table}.parquet"
        path = os.path.join(folder, name)
        rows = 0
        with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
            for group in self._groups(schema):
                writer.write_table(group, row_group_size=GROUP_ROWS)
                rows += group.num_rows
                tell(rows)
        types_of = {column.name: str(column.type.arrow) for column in self.columns}
        return Exported(self._table, name, rows, os.stat(path).st_size, types_of)

    def batches(self) -> Iterator[Any]:
        """The rows as they come."""
        core = self._arrow.core
        schema = core.schema([core.field(column.name, column.type.arrow) for column in self.columns])
        for chunk in self._chunks():
            yield self._batch(chunk, schema)

    def _about(self) -> dict[str, Any]:
        """Where the rows come from, as metadata of the file."""
        of = {str(source.partition): source.stands for source in self._sources}
        return {"table": self._table, "cluster_id": self._sources[0].cluster_id, "partitions": of}

    def _groups(self, schema: Any) -> Iterator[Any]:
        """Row groups, as Arrow tables."""
        held: list[Any] = []
        for chunk in self._chunks():
            held.append(self._batch(chunk, schema))
            if sum(batch.num_rows for batch in held) >= GROUP_ROWS or sum(batch.nbytes for batch in held) >= GROUP_BYTES:
                yield self._arrow.core.Table.from_batches(held, schema)
                held = []
        if held:
            yield self._arrow.core.Table.from_batches(held, schema)

    def _chunks(self) -> Iterator[list[tuple[Any, ...]]]:
        for source in self._sources:
            yield from _chunked(source.connection.execute(self._select))

    def _batch(self, rows: list[tuple[Any, ...]], schema: Any) -> Any:
        core = self._arrow.core
        arrays = []
        for at, column in enumerate(self.columns):
            convert = column.type.convert
            try:
                values = [None if row[at] is None else convert(row[at]) for row in rows]
                arrays.append(core.array(values, type=column.type.arrow))
            except (*UNFIT, core.ArrowException) as error:
                raise self._culprit(rows, at) or error from error
        return core.RecordBatch.from_arrays(arrays, schema=schema)

    def _culprit(self, rows: list[tuple[Any, ...]], at: int) -> BadValue | None:
        """The first of these rows whose value does not suit the column."""
        column, core = self.columns[at], self._arrow.core
        names = [str(row[0]) for row in self._info]
        for row in rows:
            try:
                core.array([None if row[at] is None else column.type.convert(row[at])], type=column.type.arrow)
            except (*UNFIT, core.ArrowException) as error:
                key = ", ".join(f"{name}={row[names.index(name)]!r}" for name in self._keys if name in names)
                shown = repr(row[at])[:100]
                return BadValue(
                    f"table {self._table}, row {key}, column {column.name}: {shown} is not a valid {column.type.arrow} ({error})"
                )
        return None


def _chunked(rows: Iterable[Sequence[Any]]) -> Iterator[list[tuple[Any, ...]]]:
    """The rows, as many at a time as memory is meant for."""
    chunk: list[tuple[Any, ...]] = []
    size = 0
    for row in rows:
        chunk.append(tuple(row))
        size += sum(len(value) if isinstance(value, str | bytes) else _VALUE_BYTES for value in row)
        if len(chunk) >= CHUNK_ROWS or size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def describe_exported(exported: Sequence[Exported]) -> list[dict[str, Any]]:
    """The files as the command line lists them."""
    return [asdict(one) for one in exported]
