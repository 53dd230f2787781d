"""Differences as Parquet: all of them, one file per compared table, for whoever sums or joins them.

    key columns    as the tables have them; none where rows have no identity
    change         added, removed or changed
    old_C, new_C   every other column on both sides; null where there is no row

A column is int64, double, string or binary when its table is STRICT, as tables of applications are; else it is a string that
holds each value as an SQL literal, since values of any type may stand in it. The folder appears under its name when it is whole.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import apsw

from cmdlog.wal.errors import WrongDirectory
from replay.diff import Change, TableDiff
from snapshot.export import ParquetMissing

CHUNK_CHANGES: Final = 8192  # written at a time
CHANGE: Final = "change"


@dataclass(frozen=True, slots=True)
class Field:
    """A column of the file."""

    name: str
    declared: str  # type of the column in its table, "" = any
    of: Callable[[Change], Any]


@contextmanager
def parquet_files(
    folder: str, more: Callable[[TableDiff], Sequence[Field]] = lambda _table: ()
) -> Iterator[Callable[[TableDiff], Callable[[Change], None]]]:
    """Gives a sink for `diff`; `folder` is there when this ends without an error. `more` gives further columns.

    Raises: ParquetMissing, WrongDirectory when the folder is there already.
    """
    try:
        import pyarrow  # noqa: PLC0415 - only these files need it
        from pyarrow import parquet  # noqa: PLC0415 - as above
    except ImportError as error:
        raise ParquetMissing(f"Parquet files need pyarrow, which is not installed: {ParquetMissing.hint}") from error
    if os.path.exists(folder):
        raise WrongDirectory(f"{folder} is there already")
    temporary = f"{folder}.{os.urandom(4).hex()}.tmp"
    os.makedirs(temporary)
    writers: list[_Writer] = []

    def sink(table: TableDiff) -> Callable[[Change], None]:
        for writer in writers[-1:]:
            writer.close()
        path = os.path.join(temporary, f"{table.name}.parquet")
        fields = _fields(table, more(table))
        schema = pyarrow.schema([(of.name, _arrow(pyarrow, of.declared)) for of in fields])
        writers.append(_Writer(fields, parquet.ParquetWriter(path, schema), lambda rows: pyarrow.record_batch(rows, schema)))
        return writers[-1].take

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

    fields: list[Field]
    file: Any  # pyarrow.parquet.ParquetWriter
    batch: Callable[[list[list[Any]]], Any]
    waiting: list[Change] = field(default_factory=list)

    def take(self, change: Change) -> None:
        self.waiting.append(change)
        if len(self.waiting) >= CHUNK_CHANGES:
            self._flush()

    def close(self) -> None:
        self._flush()
        self.file.close()

    def _flush(self) -> None:
        if self.waiting:
            self.file.write_batch(self.batch([[of.of(change) for change in self.waiting] for of in self.fields]))
            self.waiting = []


def _fields(table: TableDiff, more: Sequence[Field]) -> list[Field]:
    """Names that would stand twice get underscores behind them."""
    names: set[str] = set()
    found = []
    wanted = [(at, name, "key") for at, name in enumerate(table.key)]
    wanted += [(at, name, side) for at, name in list(enumerate(table.columns))[len(table.key) :] for side in ("old", "new")]
    for at, column, side in [*wanted[: len(table.key)], (-1, CHANGE, ""), *wanted[len(table.key) :]]:
        name = f"{side}_{column}" if side in ("old", "new") else column
        found.append(_field(table, _free(name, names), at, side))
    return [*found, *(replace(one, name=_free(one.name, names)) for one in more)]


def _free(name: str, names: set[str]) -> str:
    while name in names:
        name += "_"
    names.add(name)
    return name


def _field(table: TableDiff, name: str, at: int, side: str) -> Field:
    if not side:
        return Field(name, "TEXT", lambda change: change.kind)
    declared = [shape.columns[table.columns[at]] if shape else None for shape in (table.left, table.right)]
    if side == "key":
        stated = {one for one in declared if one is not None}
        common = stated.pop() if len(stated) == 1 else ""
        return Field(name, common, _value(common, at, lambda change: change.old or change.new))
    is_old = side == "old"
    own = declared[0 if is_old else 1] or ""
    return Field(name, own, _value(own, at, lambda change: change.old if is_old else change.new))


def _value(declared: str, at: int, row_of: Callable[[Change], tuple[Any, ...] | None]) -> Callable[[Change], Any]:
    def value(change: Change) -> Any:
        row = row_of(change)
        if row is None or row[at] is None:
            return None
        return row[at] if declared else apsw.format_sql_value(row[at])

    return value


def _arrow(pyarrow: Any, declared: str) -> Any:
    """STRICT tables know INT, INTEGER, REAL, TEXT, BLOB (and ANY, which is "" here)."""
    types = {"INT": pyarrow.int64(), "INTEGER": pyarrow.int64(), "REAL": pyarrow.float64(), "BLOB": pyarrow.binary()}
    return types.get(declared, pyarrow.string())
