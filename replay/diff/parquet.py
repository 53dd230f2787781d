"""Differences as Parquet: all of them, one file per compared table, to be summed or joined.

    key columns    as the tables have them; none where rows have no identity
    change         added, removed or changed
    old_C, new_C   every other column on both sides; null where there is no row

Types are those of an export (`snapshot.column_types`) when its table is STRICT, as tables of applications are; without a
declaration at hand, those of its columns in SQLite. A column of a table that is not STRICT, and a key whose type the sides do not
share, is a string that holds each value as an SQL literal. The folder appears under its name when it is complete.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Final

import apsw

from cmdlog.wal.directory.lock import refuse_link
from cmdlog.wal.errors import WrongDirectory
from replay.diff.diff import RowChange, TableDiff
from snapshot.column_types import UNFIT, ColumnType, column_type
from snapshot.export import BadValue, ParquetMissing

CHUNK_CHANGES: Final = 8192  # written at a time
CHANGE: Final = "change"


@dataclass(frozen=True, slots=True)
class ParquetField:
    """A column of the file."""

    name: str
    type: ColumnType
    of: Callable[[RowChange], Any]  # a value as the table has it, or None


Declared = Mapping[str, Any]
"""Table -> what the application declares of it (`TableInfo`)."""
UNDECLARED: Final[tuple[Declared, Declared]] = ({}, {})


@contextmanager
def parquet_files(
    folder: str,
    more: Callable[[TableDiff], Sequence[ParquetField]] = lambda _table: (),
    *,
    declared: tuple[Declared, Declared] = UNDECLARED,
) -> Iterator[Callable[[TableDiff], Callable[[RowChange], None]]]:
    """Gives a sink for `diff`; `folder` exists when this ends without an error. `more` gives further columns, `declared` is
    of the left and the right side.

    Raises: ParquetMissing, BadValue, WrongDirectory when the folder already exists.
    """
    try:
        import pyarrow  # noqa: PLC0415 - only these files need it
        from pyarrow import parquet  # noqa: PLC0415 - as above
    except ImportError as error:
        raise ParquetMissing(f"Parquet files need pyarrow, which is not installed: {ParquetMissing.hint}") from error
    refuse_link(folder)
    if os.path.exists(folder):
        raise WrongDirectory(f"{folder} already exists")
    temporary = f"{folder}.{os.urandom(4).hex()}.tmp"
    os.makedirs(temporary, mode=0o750)
    writers: list[_Writer] = []

    def sink(table: TableDiff) -> Callable[[RowChange], None]:
        for writer in writers[-1:]:
            writer.close()
        path = os.path.join(temporary, f"{table.name}.parquet")
        fields = _fields(table, _Types(pyarrow, table, declared), more(table))
        schema = pyarrow.schema([(of.name, of.type.arrow) for of in fields])
        file = parquet.ParquetWriter(path, schema)
        writers.append(_Writer(table.name, fields, file, lambda rows: pyarrow.record_batch(rows, schema)))
        return writers[-1].write_change

    try:
        yield sink
        for writer in writers[-1:]:
            writer.close()
        os.rename(temporary, folder)
    except BaseException:
        for writer in writers[-1:]:
            writer.file.close()
        shutil.rmtree(temporary, ignore_errors=True)
        raise


@dataclass(slots=True)
class _Writer:
    """One open file."""

    table: str
    fields: list[ParquetField]
    file: Any  # pyarrow.parquet.ParquetWriter
    batch: Callable[[list[list[Any]]], Any]
    waiting: list[RowChange] = field(default_factory=list)

    def write_change(self, change: RowChange) -> None:
        self.waiting.append(change)
        if len(self.waiting) >= CHUNK_CHANGES:
            self._flush()

    def close(self) -> None:
        self._flush()
        self.file.close()

    def _flush(self) -> None:
        if self.waiting:
            self.file.write_batch(self.batch([[self._converted(of, change) for change in self.waiting] for of in self.fields]))
            self.waiting = []

    def _converted(self, field: ParquetField, change: RowChange) -> Any:
        value = field.of(change)
        try:
            return None if value is None else field.type.convert(value)
        except UNFIT as error:
            shown = repr(value)[:100]
            raise BadValue(
                f"table {self.table}, column {field.name}: {shown} is not a valid {field.type.arrow} ({error})"
            ) from error


@dataclass(frozen=True, slots=True)
class _Types:
    """Those of the columns of both sides."""

    arrow: Any  # pyarrow
    table: TableDiff
    declared: tuple[Declared, Declared]

    def of(self, column: str, side: int) -> ColumnType | None:
        """None: it may hold values of any type; or the side has no such table."""
        shape = (self.table.left, self.table.right)[side]
        kind = shape.columns[column] if shape is not None else ""
        info = self.declared[side].get(self.table.name)
        return column_type(self.arrow, kind, info.table.columns.get(column) if info is not None else None) if kind else None

    def of_key(self, column: str) -> ColumnType | None:
        """None: the sides differ."""
        sides = zip((self.table.left, self.table.right), (0, 1), strict=True)
        found = [self.of(column, side) for shape, side in sides if shape is not None]
        first = found[0]
        return first if first is not None and all(one is not None and one.arrow == first.arrow for one in found) else None

    @property
    def text(self) -> ColumnType:
        return column_type(self.arrow, "TEXT", None)


def _fields(table: TableDiff, types: _Types, more: Sequence[ParquetField]) -> list[ParquetField]:
    """Names that would occur twice get underscores appended."""
    names: set[str] = set()

    def either(change: RowChange) -> tuple[Any, ...] | None:
        return change.old or change.new

    width, old, new = len(table.key), attrgetter("old"), attrgetter("new")
    found = [_field(types, _free(name, names), at, types.of_key(name), either) for at, name in enumerate(table.key)]
    found.append(ParquetField(_free(CHANGE, names), types.text, attrgetter("kind")))
    for at, name in list(enumerate(table.columns))[width:]:
        found.append(_field(types, _free(f"old_{name}", names), at, types.of(name, 0), old))
        found.append(_field(types, _free(f"new_{name}", names), at, types.of(name, 1), new))
    return [*found, *(replace(one, name=_free(one.name, names)) for one in more)]


def _free(name: str, names: set[str]) -> str:
    while name in names:
        name += "_"
    names.add(name)
    return name


def _field(
    types: _Types, name: str, at: int, known: ColumnType | None, row_of: Callable[[RowChange], tuple[Any, ...] | None]
) -> ParquetField:
    def value(change: RowChange) -> Any:
        row = row_of(change)
        if row is None or row[at] is None:
            return None
        return row[at] if known is not None else apsw.format_sql_value(row[at])

    return ParquetField(name, known or types.text, value)
