"""What new code changes in the tables of each partition, and whether calls can run meanwhile.

One rule: read only. The states are in use by their sites; what is planned here is run by them, as an entry of the log.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Final

import apsw

from cmdlog.node.migrating.table_changes import plan_states
from procedures import Database
from procedures.declaration.schema_plan import SchemaPlan
from procedures.storage.state import open_reader
from replay.state.trust import state_path

_COLUMN: Final = re.compile(
    r"ALTER TABLE (?:\"[^\"]+\"|\S+) ADD COLUMN (?!.*\b(?:CHECK|REFERENCES|UNIQUE|GENERATED)\b)", re.DOTALL
)
# Of a Numeric: rows that exist get NULL or the default, which is in its range, or the declaration is refused.
_DIGITS: Final = re.compile(r' CONSTRAINT "numeric\([0-9]+,[0-9]+\) [^"]+" CHECK \([^()\s]+ BETWEEN -[0-9]+ AND [0-9]+\)\Z')
_INDEX: Final = re.compile(r"CREATE INDEX (?:\"[^\"]+\"|\S+) ON (?:\"[^\"]+\"|\S+) ?\([^()]*\)\Z")


def plan_tables(db: Database, directory: str, partitions: int) -> dict[int, SchemaPlan]:
    """Plans by partition; those where nothing has to change are not in it. Raises: SchemaConflict, DefinitionError."""

    def readers() -> Iterator[tuple[int, apsw.Connection]]:
        for partition in range(partitions):
            connection, _ = open_reader(state_path(directory, partition))
            with contextlib.closing(connection):
                yield partition, connection

    return plan_states(db, readers())


def find_pausing(planned: Mapping[int, SchemaPlan], narrowed: str = "") -> str:
    """What has to be tried on the rows first, while no call runs; "" when nothing has.

    `narrowed`: a column whose type may take less than before.
    """
    pending = dict.fromkeys(name for plan in planned.values() for name in plan.pending)
    if pending:
        return f"migrations {', '.join(pending)}" if len(pending) > 1 else f"migration {next(iter(pending))}"
    failing = (sql for plan in planned.values() for sql in plan.statements if not cannot_fail(sql))
    found = next((f"<{sql}>, in whose way rows may stand" for sql in failing), "")
    return found or (narrowed and f"column {narrowed}, whose type may not take what rows hold")


def cannot_fail(statement: str) -> bool:
    """Whether no row can stand in its way: a new table, a plain index, a column without conditions, an index less."""
    if statement.startswith(("CREATE TABLE ", "DROP INDEX ")):
        return True
    return bool(_COLUMN.match(_DIGITS.sub("", statement)) or _INDEX.match(statement))
