"""Which tables a statement may touch: by the procedure that runs it, or in a migration by the state at that moment."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import apsw

from procedures.declaration.procedure import Access
from procedures.errors import StatementRefused
from procedures.numeric.marks import marked_numerics
from procedures.numeric.numeric_types import ScaledNumeric, is_exact
from procedures.statements.compiled import Compiled
from procedures.storage.authorizer import Authorizer, Mode, Probe

if TYPE_CHECKING:
    from procedures.declaration.database import Database


_OR_IGNORE: Final = re.compile(r"\bOR\s+IGNORE\b", re.IGNORECASE)
_NO_IGNORE: Final = "; instead of OR IGNORE, which also passes over numbers out of range, write on_conflict_do_nothing()"


class AllowedTables:
    """The rules of one database for one kind of access."""

    def __init__(self, database: Database, access: Access) -> None:
        self._database = database
        self._access = access

    def check_statement(self, compiled: Compiled, facts: Probe) -> None:
        """Holds the statement to what its procedure may touch; see `Access`.

        Raises: StatementRefused.
        """
        self._check_tables(facts)
        if compiled.raw_text or any(not self._is_declared(table) for table in compiled.tables):
            self._check_raw_text(facts, compiled.sql)

    def _check_tables(self, facts: Probe) -> None:
        tables = self._database.tables
        if unknown := sorted((facts.seen.reads | facts.seen.changes) - tables.keys()):
            raise StatementRefused(f"table {unknown[0]} is not declared in database {self._database.name!r}")
        if self._access in (Access.READ, Access.READ_ALL) and not facts.readonly:
            raise StatementRefused("a read_only procedure changes nothing; drop read_only=True")
        changed = sorted(name for name in facts.seen.changes if tables[name].replicated)
        if changed and self._access in (Access.SINGLE, Access.EACH):
            raise StatementRefused(
                f"table {changed[0]} is replicated: only a procedure with partition_by=None changes it, on all partitions"
            )
        local = sorted(name for name in facts.seen.reads | facts.seen.changes if not tables[name].replicated)
        if local and self._access is Access.EVERYWHERE:
            raise StatementRefused(
                f"table {local[0]} is partitioned: a writing procedure with partition_by=None touches replicated tables "
                "alone, because its partitions would decide differently; partition_by=EACH lets each write rows of its own"
            )

    def _is_declared(self, table: Any) -> bool:
        known = self._database.tables.get(table.name)
        return known is not None and bool(table == known.table)  # also where it is annotated, as that of a class is

    def _check_raw_text(self, facts: Probe, sql: str) -> None:
        """SQL text, and a table that is not the declared one, would see the integers that stand for exact numbers."""
        more = _NO_IGNORE if _OR_IGNORE.search(sql) else ""
        for table in sorted(facts.seen.reads | facts.seen.changes):
            exact = {c.name: c.type for c in self._database.tables[table].table.columns if isinstance(c.type, ScaledNumeric)}
            inserted = (table, "") in facts.seen.columns and table in facts.seen.changes and not facts.readonly
            for name, type_ in exact.items():
                if (table, name) in facts.seen.columns or inserted:
                    raise StatementRefused(
                        f"the statement has parts in SQL text, or not of the declared tables, and uses {table}.{name}, a "
                        f"{type_}, of which SQLite holds units of 10^-{type_.scale}; write those parts as SQLAlchemy "
                        f"expressions of db.tables[{table!r}].table{more}"
                    )


class MigratedTables:
    """The rules of one migration on one connection: every table of the state, in the form that it has at that moment.

    Numbers keep their value. What a statement takes for a Numeric(p, s) must be one in the state, with the same decimals: a
    declaration of later code would read units of another size.

    Replicated tables have equal copies on all partitions, so what a migration writes into one is not taken from partitioned rows:
    neither by one statement, nor by one after rows of a partitioned table were read.
    """

    def __init__(self, database: Database, connection: apsw.Connection, guard: Authorizer) -> None:
        self._replicated = {name: info.replicated for name, info in database.tables.items()}
        self._connection, self._guard = connection, guard
        self._read_rows = ""  # a partitioned table of which the migration has seen rows

    def check_statement(self, compiled: Compiled, facts: Probe) -> None:
        """Raises: StatementRefused."""
        self._check_copies(facts)
        for table in sorted(facts.seen.reads | facts.seen.changes):
            self._check_numbers(table, compiled, facts)

    def _check_copies(self, facts: Probe) -> None:
        local = sorted(name for name in facts.seen.reads | facts.seen.changes if self._replicated.get(name) is False)
        changed = sorted(name for name in facts.seen.changes if self._replicated.get(name))
        source = local[0] if local else self._read_rows
        if changed and source:
            raise StatementRefused(
                f"table {changed[0]} is replicated, and the migration has read {source}, which is partitioned: its copies would "
                "differ; change replicated tables first, or in a migration of their own"
            )
        if local and facts.columns:
            self._read_rows = local[0]

    def _check_numbers(self, table: str, compiled: Compiled, facts: Probe) -> None:
        before, self._guard.mode = self._guard.mode, Mode.FRAMEWORK
        try:
            held = {name: scale for name, (_, scale) in marked_numerics(self._connection, table).items()}
        finally:
            self._guard.mode = before
        stated: dict[str, Any] = {}
        for found in compiled.tables:
            if found.name == table:
                stated |= {column.name: column.type for column in found.columns}
        used = {column for name, column in facts.seen.columns if name == table}
        if table in facts.seen.changes and "" in used:  # an INSERT names no columns here
            used |= stated.keys()
        for name in sorted(used):
            decimals = _decimals(stated.get(name))
            if decimals != held.get(name) or (name in held and compiled.raw_text):
                raise StatementRefused(self._why(table, name, decimals, held.get(name)))

    @staticmethod
    def _why(table: str, name: str, decimals: int | None, held: int | None) -> str:
        if held is None:
            return f"{table}.{name} is no Numeric at this point of the migrations, and the statement takes it for one"
        stated = "does not say so" if decimals is None else f"takes it for one with {decimals}"
        return (
            f"{table}.{name} is a Numeric with {held} decimals at this point of the migrations, and the statement {stated}; "
            "use the table as it is there: declared once more, on a Database of its own in the same module"
        )


def _decimals(type_: Any) -> int | None:
    """Decimals of a column as a statement has it; None: it is no exact number there."""
    if isinstance(type_, ScaledNumeric):
        return type_.scale
    return type_.scale if is_exact(type_) else None
