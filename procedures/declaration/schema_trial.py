"""What SQLite says about declared tables: they are made in an empty database in memory, under the rules of a state.

One rule: what a state would refuse when the node starts, or what would fail each call, is refused where it is declared, in a
sentence that names the table. Nothing here knows SQL: SQLite compiles the text, and its authorizer names the functions.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from typing import Final

import apsw
from sqlalchemy import Table, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.sql import util

from procedures.declaration.dialect import DIALECT
from procedures.declaration.schema import create_indexes, create_table
from procedures.errors import DefinitionError, StatementRefused
from procedures.numeric.functions import register_numeric_functions
from procedures.storage.authorizer import Authorizer, Mode, alternative_to, probe

_FUNCTION: Final = re.compile(r"\bfunction:? (\w+)")
_MISMATCH: Final = "foreign key mismatch"


def try_table(table: Table) -> None:
    """Makes the table, its indexes, and the expressions of its defaults. Raises: DefinitionError."""
    with contextlib.closing(_Trial()) as trial:
        trial.make(table)
        for column in table.columns:
            for name, default in (("default", column.default), ("onupdate", column.onupdate)):
                if default is not None and default.is_clause_element:
                    expression = default.arg  # type: ignore[attr-defined]  # a ColumnElementColumnDefault has one
                    for named in util.find_tables(expression, include_selects=True, include_joins=True):
                        trial.make_named(table, getattr(named, "name", ""))
                    trial.prepare(f"column {table.name}.{column.name}: {name}", str(select(expression).compile(dialect=DIALECT)))


def try_references(tables: Iterable[Table]) -> None:
    """Makes all tables, and asks whether rows of each can be written and removed. Raises: DefinitionError."""
    with contextlib.closing(_Trial()) as trial:
        listed = list(tables)
        for table in listed:
            trial.make(table)
        for table in listed:
            quoted = DIALECT.identifier_preparer.format_table(table)
            try:
                trial.prepare(f"table {table.name!r}", f"DELETE FROM {quoted}")  # noqa: S608 - it is quoted, and does not run
            except DefinitionError as error:
                if _MISMATCH not in str(error):
                    raise
                raise DefinitionError(f"{error}; what a foreign key refers to is a primary key, or unique as a whole") from None


class _Trial:
    """An empty database with the settings of a state that decide what is accepted."""

    def __init__(self) -> None:
        self._connection = apsw.Connection(":memory:")
        self._connection.pragma("foreign_keys", 1)
        self._connection.pragma("trusted_schema", 0)
        self._connection.config(apsw.SQLITE_DBCONFIG_DQS_DML, 0)
        self._connection.config(apsw.SQLITE_DBCONFIG_DQS_DDL, 0)
        register_numeric_functions(self._connection)
        self._guard = Authorizer()
        self._connection.authorizer = self._guard
        self._made: set[str] = set()

    def make(self, table: Table) -> None:
        """The table and its indexes."""
        if table.name in self._made:
            return
        self._made.add(table.name)
        self._guard.mode = Mode.SCHEMA
        try:
            with self._named(f"table {table.name!r}"):
                self._connection.execute(create_table(table))
            for name, statement in create_indexes(table).items():
                with self._named(f"index {name!r} of table {table.name!r}"):
                    self._connection.execute(statement)
        finally:
            self._guard.mode = Mode.FRAMEWORK

    def make_named(self, beside: Table, name: str) -> None:
        """A declared table that an expression names."""
        if (other := beside.metadata.tables.get(name)) is not None:
            self.make(other)

    def prepare(self, what: str, sql: str) -> None:
        """A statement as a procedure would run it."""
        with self._named(what):
            probe(self._connection, self._guard, sql)

    def close(self) -> None:
        self._connection.close()

    @contextlib.contextmanager
    def _named(self, what: str) -> Iterator[None]:
        self._guard.denied = None
        try:
            yield
        except (apsw.Error, SQLAlchemyError, StatementRefused) as error:
            denied: str | None = self._guard.denied  # by the authorizer, which SQLite's own message does not quote
            reason = denied or str(error)
            function = _FUNCTION.search(reason)
            instead = alternative_to(function[1]) if function else ""
            raise DefinitionError(f"{what}: {reason}{'; ' * bool(instead)}{instead}") from None
