"""The tables of states, and the new home of each of their rows: decided before anything is moved.

One rule: the newest catalog version states by which column a table is partitioned, or an older one for tables that it no longer
names, or whose column it has renamed since; a table that none names, and a row that is not where its column states, are refused.

The homes of all values of all partition columns are in a scratch database. So rows are moved by joins in SQLite, each value is
looked at once, and a refusal comes before anything is moved.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import apsw

from cmdlog.wal.group_state import GroupStates
from cmdlog.wal.ids import CLUSTER_GROUP
from procedures import Database
from procedures.declaration.database import TableInfo
from procedures.declaration.hash_slots import partition_by_slot
from procedures.declaration.row_placement import slot_reader
from procedures.storage.state import CACHE_KIBIBYTES, rows_of
from procedures.storage.state_file import connect
from replay.engine import Catalogs
from replay.errors import ReshapeRefused

MIGRATIONS_TABLE: Final = "_cmdlog_migrations"  # see `procedures.storage.state`
ROWS_PER_CHUNK: Final = 1000
_HOMES: Final = """CREATE TABLE homes (
    tbl TEXT NOT NULL, source INTEGER NOT NULL, target INTEGER NOT NULL, value ANY NOT NULL,
    PRIMARY KEY (tbl, source, target, value)) STRICT, WITHOUT ROWID"""


class RowPlacement:
    """What the code states about tables: the newest catalog version, or an older one for what that one does not suit."""

    def __init__(self, catalogs: Catalogs, versions: Sequence[int]) -> None:
        self._catalogs, self._versions = catalogs, versions

    @classmethod
    def of(cls, groups: GroupStates) -> RowPlacement:
        """Raises: ReshapeRefused without a catalog."""
        catalogs, known = Catalogs(), groups.state(CLUSTER_GROUP).catalogs
        for version, catalog in known.items():
            catalogs.add_logged(version, catalog.value)
        if not known:
            raise ReshapeRefused("the log names no application yet, so it is unknown where a row belongs")
        return cls(catalogs, sorted(known, reverse=True))

    @property
    def newest(self) -> Database:
        return self._catalogs(self._versions[0])

    def __call__(self, table: str, columns: Collection[str]) -> TableInfo:
        """What the newest version states that suits these columns: up to a moment of the past, a state may lack what a later
        version renames.

        Raises: ReshapeRefused for a table that no version names, or none with a column that it has.
        """
        unsuited = ""
        for version in self._versions:
            if found := self._catalogs(version).tables.get(table):
                if found.partition_by is None or found.partition_by in columns:
                    return found
                unsuited = unsuited or found.partition_by
        if unsuited:
            raise ReshapeRefused(f"table {table} has no column {unsuited}, its partition column by the declaration")
        raise ReshapeRefused(
            f"table {table} is declared in no catalog version of the log ({', '.join(map(str, sorted(self._versions)))}), so "
            f"its partition column is unknown; declare it again, or drop it, before changing the number of partitions"
        )


@dataclass(frozen=True, slots=True)
class TableOfStates:
    """One table of the states."""

    name: str
    sql: str
    columns: Sequence[str]  # without generated ones
    key: Sequence[str]
    info: TableInfo

    def move(self) -> str:
        """The statement that copies rows from `old` to `main`; of a partitioned table those that it names a home for, by (name,
        source, target). `tick()` is called for each of them.
        """
        columns, name = ", ".join(map(quoted, self.columns)), quoted(self.name)
        insert = f"INSERT INTO main.{name} ({columns}) SELECT {', '.join(f't.{quoted(column)}' for column in self.columns)}"
        if self.info.partition_by is None:
            return f"{insert} FROM old.{name} AS t WHERE tick()"
        # Where rows are sorted by value they are looked up by value, else the other way round; CROSS JOIN keeps SQLite to it.
        order = [f"old.{name} AS t", "homes.homes AS h"]
        tables = " CROSS JOIN ".join(reversed(order) if self.key[0] == self.info.partition_by else order)
        equal = f"t.{quoted(self.info.partition_by)} COLLATE BINARY = h.value"
        return f"{insert} FROM {tables} ON {equal} WHERE h.tbl = ? AND h.source = ? AND h.target = ? AND tick()"


def write_homes(path: str, sources: Sequence[str], tables: Iterable[TableOfStates], *, partitions: int) -> None:
    """Makes the scratch database. Raises: ReshapeRefused for a value that has no place, or a row that is already in the wrong
    partition."""
    old, new = partition_by_slot(len(sources)), partition_by_slot(partitions)
    with closing(loader(path)) as connection:
        connection.execute(_HOMES)
        for number, source in enumerate(sources):
            connection.execute("ATTACH ? AS old", (source,))
            for table in tables:
                if table.info.partition_by is None or not has_table(connection, table.name, "old"):
                    continue
                connection.create_scalar_function("home", _home_of(table, number, old, new), 1)
                column, name = quoted(table.info.partition_by), quoted(table.name)
                values = f"SELECT DISTINCT {column} COLLATE BINARY AS value FROM old.{name}"  # noqa: S608
                connection.execute(
                    f"INSERT INTO homes SELECT ?, ?, home(value), value FROM ({values})",  # noqa: S608
                    (table.name, number),
                )
            connection.execute("DETACH old")


def _home_of(table: TableOfStates, source: int, old: Sequence[int], new: Sequence[int]) -> Callable[..., int]:
    slot_of, column = slot_reader(table.info), table.info.partition_by

    def home(value: Any) -> int:
        try:
            slot = slot_of(value)
        except (TypeError, ValueError) as error:
            raise ReshapeRefused(f"table {table.name}: a row with {column} = {value!r} has no partition: {error}") from None
        if old[slot] != source:
            raise ReshapeRefused(
                f"table {table.name}: a row with {column} = {value!r} is in partition {source}, but calls with this value go "
                f"to partition {old[slot]}; it cannot be placed in another number of partitions"
            )
        return new[slot]

    return home


def check_copies(sources: Sequence[str], table: str, columns: Sequence[str], key: Sequence[str]) -> None:
    """Raises ReshapeRefused when the copies of a replicated table differ."""
    for number, source in enumerate(sources[1:], start=1):
        with closing(reader(sources[0])) as first, closing(reader(source)) as other:
            one, two = (_ordered(connection, table, columns, key) for connection in (first, other))
            while True:
                left, right = list(islice(one, ROWS_PER_CHUNK)), list(islice(two, ROWS_PER_CHUNK))
                if left != right:
                    raise ReshapeRefused(
                        f"table {table} is replicated, but partition {number} holds different rows from partition 0: "
                        f"{_first_difference(left, right)}; recover to a transaction up to which all partitions are complete"
                    )
                if not left:
                    break


def _first_difference(left: Sequence[Any], right: Sequence[Any]) -> str:
    for at in range(max(len(left), len(right))):
        one, two = (repr(rows[at]) if at < len(rows) else "no row" for rows in (left, right))
        if one != two:
            return f"{two[:200]} where partition 0 has {one[:200]}"
    return "the same rows by value, but of other types"


def _ordered(connection: apsw.Connection, table: str, columns: Sequence[str], key: Sequence[str]) -> Iterable[Any]:
    if not has_table(connection, table):
        return iter(())
    sql = f"SELECT {', '.join(map(quoted, columns))} FROM {quoted(table)} ORDER BY {', '.join(map(quoted, key))}"  # noqa: S608
    return connection.execute(sql)


def tables_of(sources: Sequence[str], placing: RowPlacement) -> tuple[list[TableOfStates], list[str]]:
    """The tables of all states, and the statements that make their indexes. Raises: ReshapeRefused when states differ in one."""
    found: dict[str, tuple[str, str]] = {}
    tables: dict[str, TableOfStates] = {}
    for number, source in enumerate(sources):
        with closing(reader(source)) as connection:
            for kind, name, sql in rows_of(
                connection,
                "SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL AND substr(name, 1, 8) <> '_cmdlog_' "
                "ORDER BY rowid",
            ):
                if found.setdefault(name, (kind, sql)) != (kind, sql):
                    raise ReshapeRefused(f"{kind} {name} of partition {number} was made by a different statement than elsewhere")
                if kind == "table" and name not in tables:
                    tables[name] = _table(connection, name, sql, placing)
    return list(tables.values()), [sql for kind, sql in found.values() if kind != "table"]


def _table(connection: apsw.Connection, name: str, sql: str, placing: RowPlacement) -> TableOfStates:
    columns = rows_of(connection, "SELECT name, pk, hidden FROM pragma_table_xinfo(?)", (name,))
    info = placing(name, [column for column, _, _ in columns])
    key = [column for column, pk, _ in sorted(columns, key=lambda column: column[1]) if pk]
    return TableOfStates(name, sql, [column for column, _, hidden in columns if not hidden], key, info)


def copy_migrations(connection: apsw.Connection, source: str) -> None:
    """The new state has run the migrations that this old one has; all old ones have the same."""
    with closing(reader(source)) as old:
        for (sql,) in rows_of(old, "SELECT sql FROM sqlite_schema WHERE name = ?", (MIGRATIONS_TABLE,)):
            connection.execute(sql)
            rows = rows_of(old, f"SELECT name, idx FROM {MIGRATIONS_TABLE}")  # noqa: S608 - a name of ours
            connection.executemany(f"INSERT INTO {MIGRATIONS_TABLE} VALUES (?, ?)", rows)  # noqa: S608


def loader(path: str) -> apsw.Connection:
    """A connection that fills a new file: no journal, since a file that is not finished is thrown away."""
    connection = apsw.Connection(path)
    for pragma, value in (
        ("journal_mode", "off"), ("synchronous", "off"), ("foreign_keys", 0), ("cache_size", -CACHE_KIBIBYTES),
        ("temp_store", "file"),
    ):  # fmt: skip
        connection.pragma(pragma, value)
    return connection


def reader(path: str) -> apsw.Connection:
    """A connection to a state that no one writes to."""
    return connect(path, apsw.SQLITE_OPEN_READWRITE)


def has_table(connection: apsw.Connection, table: str, schema: str = "main") -> bool:
    """Whether the table exists."""
    return bool(rows_of(connection, f"SELECT 1 FROM {schema}.sqlite_schema WHERE type = 'table' AND name = ?", (table,)))  # noqa: S608


def quoted(name: str) -> str:
    """Any name, quoted for SQL."""
    return '"' + name.replace('"', '""') + '"'
