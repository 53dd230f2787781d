"""Which tables a statement may touch, by the procedure that runs it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from procedures.declaration.procedure import Access
from procedures.errors import StatementRefused
from procedures.guard.probe import Probe
from procedures.numeric.numeric_types import ScaledNumeric
from procedures.statements.compiled import Compiled

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
