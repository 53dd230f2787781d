"""The rows that a change of tables leaves, judged by the types of their columns before the change may be logged.

One rule: a value is judged as statements read and write it (`held_values`). Each table is read once, row by row, and what is
found says table, column and count, and where values are shown, key and value. A replay judges nothing: what it runs was judged.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import apsw
from sqlalchemy import Table

from procedures.declaration.columns.held_values import Check, row_check, shown_value, value_in_text
from procedures.declaration.create_text import quoted
from procedures.errors import RowsUnfit
from procedures.migration.stated_change import RehearsedStep

KNOWN_MAX: Final = 1 << 14  # values of a column that need not be judged again


@dataclass(frozen=True, slots=True)
class UnfitRows:
    """Rows of one column that cannot stay; key, value and reason are those of the first one."""

    count: int
    key: Mapping[str, Any]
    value: Any
    why: str

    def sentence(self, table: str, column: str) -> str:
        hold = f"{self.count} rows of {table} hold" if self.count > 1 else f"1 row of {table} holds"
        first = value_in_text(self, lambda _: f"; the first is {shown_row(self.key)}, with {shown_row({column: self.value})}", "")
        return f"{hold} a {column} that {self.why}{first}"


def judge_rows(connection: apsw.Connection, table: Table, columns: Collection[str], migration: str) -> Iterator[RehearsedStep]:
    """What was looked at, if any row was. Raises: RowsUnfit, for the first column with a value that its type refuses."""
    found = ((column.name, row_check(column.type)) for column in table.columns if column.name in columns)
    checks = {name: check for name, check in found if check is not None}
    if not checks:
        return
    begun = time.monotonic()
    keys = [column.name for column in table.primary_key.columns]
    sql = f"SELECT {', '.join(map(quoted, (*keys, *checks)))} FROM {quoted(table.name)}"  # noqa: S608 - names of the schema
    rows = _judge_rows_of(connection.execute(sql), table, keys, checks)
    if rows:
        yield RehearsedStep(migration, sql, rows, time.monotonic() - begun)


def shown_row(values: Mapping[str, Any]) -> str:
    """By the names of its columns."""
    return ", ".join(f"{name} = {shown_value(value)}" for name, value in values.items())


def _judge_rows_of(read: Iterable[tuple[Any, ...]], table: Table, keys: list[str], checks: Mapping[str, Check]) -> int:
    """How many rows there are, each its key and the values to be judged. Raises: RowsUnfit."""
    found: dict[str, UnfitRows] = {}
    types = {column.name: column.type for column in table.columns}
    judges = [(place, name, check, set[Any]()) for place, (name, check) in enumerate(checks.items(), len(keys))]
    rows = 0
    for row in read:
        rows += 1
        for place, name, check, known in judges:
            value = row[place]
            if value in known:
                continue
            if why := check(value):
                first = found.get(name) or UnfitRows(
                    0, dict(zip(keys, row, strict=False)), value, f"is no {types[name]!r} ({why})"
                )
                found[name] = replace(first, count=first.count + 1)
            elif len(known) < KNOWN_MAX:
                known.add(value)
    for name, unfit in found.items():
        raise RowsUnfit(unfit.sentence(table.name, name))
    return rows
