"""The way from the tables of a state to those of an application, where no row has to change.

One rule: what is logged is the SQL text, and it is the same on every partition and in every replay. Whether a state has the
declared tables is decided by its CREATE statements alone: column by column and constraint by constraint (`create_text`).

    added      tables, indexes, columns that may be NULL or have a constant default
    replaced   indexes that are declared differently; those of a declared table that are declared no more are dropped
    kept       tables that are declared no more, and columns without which rows may be inserted: an older program can run
    refused    everything else: rows would have to change, which is the work of a migration; additions by a program without a
               migration that is done: it is an older one
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Column, Table

from procedures.declaration.create_text import ColumnText, parse_table, text_key
from procedures.declaration.dialect import DIALECT
from procedures.declaration.schema import column_definition, create_indexes, create_table
from procedures.errors import SchemaConflict

_INDEX_OF: Final = re.compile(r'CREATE (?:UNIQUE )?INDEX (?:"[^"]+"|\S+) ON (?:"([^"]+)"|([^\s(]+))')


@dataclass(frozen=True, slots=True)
class SchemaPlan:
    """What leads from the tables of a state to those of an application."""

    statements: tuple[str, ...] = ()  # with pending migrations not known yet: they are planned after those ran
    pending: tuple[str, ...] = ()  # migrations that have to run, in order
    marked: tuple[str, ...] = ()  # migrations that count as done: the tables are created as they leave them

    def __bool__(self) -> bool:
        return bool(self.statements or self.pending or self.marked)


def plan_migrations(existing: Mapping[str, str], done: Collection[str], declared: Sequence[str]) -> SchemaPlan:
    """The migrations that a state lacks. Raises: SchemaConflict when one is declared before one that is done."""
    if not existing and not done:
        return SchemaPlan(marked=tuple(declared))
    pending = [name for name in declared if name not in done]
    late = [name for name in declared if name in done]
    if pending and late and declared.index(pending[0]) < declared.index(late[-1]):
        raise SchemaConflict(
            f"migration {pending[0]!r} is declared before {late[-1]!r}, which the state has done already; declare it after the "
            "others: each runs once, in the order of declaration"
        )
    return SchemaPlan(pending=tuple(pending))


def check_older_program(statements: Iterable[str], done: Collection[str], declared: Collection[str]) -> None:
    """An older program runs on the tables of a newer one, and adds nothing: what it lacks, a migration has renamed or dropped.

    Raises: SchemaConflict.
    """
    unknown = [name for name in done if name not in declared]
    added = next((sql for sql in statements if sql.startswith(("CREATE TABLE ", "ALTER TABLE "))), "")
    if unknown and added:
        raise SchemaConflict(
            f"the tables have been through migration {unknown[-1]!r}, which this program does not have; it would add empty what "
            f"that may have renamed or dropped: <{added}>; a program that changes tables declares all former migrations"
        )


def plan_schema(existing: Mapping[str, str], tables: Iterable[Table]) -> list[str]:
    """Statements that lead from the tables of a state to those of an application; [] when they agree.

    Args:
        existing: name → CREATE statement of the state's tables and indexes (`PartitionState.schema`).

    Raises:
        SchemaConflict: rows that exist would have to change.
    """
    statements = []
    for table in tables:
        found = existing.get(table.name)
        statements += [create_table(table)] if found is None else _added_columns(table, found)
        statements += _index_changes(table, existing)
    return statements


def kept_columns(existing: Mapping[str, str], tables: Iterable[Table]) -> list[tuple[str, str]]:
    """(table, column) of what declared tables have in a state and not in the declaration."""
    return [
        (table.name, column.name)
        for table in tables
        if table.name in existing
        for column in parse_table(existing[table.name]).columns
        if column.name not in table.columns
    ]


def _added_columns(table: Table, found: str) -> list[str]:
    """Statements that add what the state's table `found` lacks. Raises: SchemaConflict."""
    wanted_text = create_table(table)
    wanted, held = parse_table(wanted_text), parse_table(found)
    differs = [
        f"column {column.name!r} is gone" for column in held.columns if not (wanted.column(column.name) or _is_omittable(column))
    ]
    differs += [
        f"column {column.name!r} is another one"
        for column in wanted.columns
        if (had := held.column(column.name)) and had.key != column.key
    ]
    same_rules = held.constraint_keys == wanted.constraint_keys and text_key(held.options) == text_key(wanted.options)
    # Three cases: rows would have to change; a column cannot be added to rows that exist; columns are added, if any.
    if differs or not same_rules:
        what = "; ".join(differs) or "its constraints are others"
        raise SchemaConflict(
            f"table {table.name!r} differs from the state's: {what}; state has <{found}>, application has <{wanted_text}>; write "
            "a migration that leads there, @db.migration('0001_…') (WRITING.md, “Changing tables”), or go back to the old "
            "declaration"
        )
    missing = [column for column in table.columns if held.column(column.name) is None]
    for column in missing:
        if why := why_not_added(column):
            raise SchemaConflict(f"table {table.name!r}: column {column.name!r} cannot be added to rows that exist: {why}")
    quoted = DIALECT.identifier_preparer.format_table(table)
    return [f"ALTER TABLE {quoted} ADD COLUMN {column_definition(column)}" for column in missing]


def _is_omittable(column: ColumnText) -> bool:
    """Whether rows may be inserted without it."""
    return not column.not_null or column.default != "" or column.generated


def why_not_added(column: Column[Any]) -> str:
    """Why SQLite cannot add the column to rows that exist; "" if it can."""
    if column.primary_key:
        return "it belongs to the primary key"
    if column.computed is not None:
        return "it is generated and stored"
    if not column.nullable and column.server_default is None:
        return "it is NOT NULL and has no server_default; give it one, or let it be NULL"
    return ""


def _index_changes(table: Table, existing: Mapping[str, str]) -> Iterator[str]:
    wanted = create_indexes(table)
    for name, statement in existing.items():
        if index_table(statement) == table.name and not _is_same(wanted.get(name), statement):
            yield f"DROP INDEX {DIALECT.identifier_preparer.quote(name)}"
    yield from (statement for name, statement in wanted.items() if not _is_same(existing.get(name), statement))


def _is_same(one: str | None, other: str) -> bool:
    return one is not None and text_key(one) == text_key(other)


def index_table(statement: str) -> str:
    """Table of a CREATE INDEX; "" of another statement."""
    match = _INDEX_OF.match(statement)
    return (match[1] or match[2]) if match else ""
