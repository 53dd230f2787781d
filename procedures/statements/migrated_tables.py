"""What a migration's statement may touch: every table of the state, in the form that it has at that moment.

One rule: numbers keep their value. What a statement takes for a Numeric(p, s) must be one in the state, with the same decimals:
a declaration of later code would read units of another size.

Replicated tables have equal copies on all partitions, so what a migration writes into one is not taken from partitioned rows:
neither by one statement, nor by one after rows of a partitioned table were read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import apsw

from procedures.errors import StatementRefused
from procedures.guard.authorizer import Authorizer, Mode
from procedures.guard.probe import Probe
from procedures.numeric.marks import marked_numerics
from procedures.numeric.numeric_types import ScaledNumeric, is_exact
from procedures.statements.compiled import Compiled

if TYPE_CHECKING:
    from procedures.declaration.database import Database


class MigratedTables:
    """The rules of one migration on one connection."""

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
    """Of a column as a statement has it; None: it is no exact number there."""
    if isinstance(type_, ScaledNumeric):
        return type_.scale
    return type_.scale if is_exact(type_) else None
