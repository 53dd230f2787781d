"""What a SCHEMA entry says: the change of one partition's tables, finished before it is logged. FORMAT.md "Schema changes".

One rule: everything that a replay needs is here or in the bundle that `catalog` names; no Alembic, no comparison. Beside it a
`Rehearsal` has what people want to know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Step = tuple[str, ...]  # SQL of one call of `op`, in order; () where it changed nothing


@dataclass(frozen=True, slots=True)
class RunMigration:
    """A migration that ran, and what its calls of `op` did."""

    name: str
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class StatedChange:
    """A change as it is logged; the empty one lets time pass."""

    statements: tuple[str, ...] = ()  # additive ones, after the migrations
    migrations: tuple[RunMigration, ...] = ()
    marked: tuple[str, ...] = ()  # migrations that count as done: the tables were created by code that had them
    catalog: int = 0  # version of the code that has the migrations; 0 where none run
    at: int = 0  # TxnId that the migrations see as theirs
    rows_digest: str = ""  # of the rows that their `tx` changed, 16 hexadecimal digits; "" where it was not computed

    @property
    def done(self) -> tuple[str, ...]:
        """Names that the state lists after it."""
        return (*self.marked, *(migration.name for migration in self.migrations))

    def to_json(self) -> dict[str, Any]:
        """Without members that are empty, except the statements."""
        value: dict[str, Any] = {"statements": list(self.statements)}
        if self.migrations:
            value |= {"catalog": self.catalog, "at": self.at}
            value["migrations"] = [{"name": run.name, "steps": [list(step) for step in run.steps]} for run in self.migrations]
        if self.marked:
            value["marked"] = list(self.marked)
        if self.rows_digest:
            value["rows_digest"] = self.rows_digest
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StatedChange:
        """Raises: KeyError, TypeError, ValueError for what is no change."""
        migrations = tuple(
            RunMigration(str(run["name"]), tuple(tuple(map(str, step)) for step in run["steps"]))
            for run in value.get("migrations", ())
        )
        return cls(
            tuple(map(str, value["statements"])),
            migrations,
            tuple(map(str, value.get("marked", ()))),
            int(value.get("catalog", 0)),
            int(value.get("at", 0)),
            str(value.get("rows_digest", "")),
        )


@dataclass(frozen=True, slots=True)
class RehearsedStep:
    """One statement, or what a migration did by `tx`."""

    what: str  # migration that it belongs to; "" for what is done without one
    sql: str
    rows: int  # that it changed or copied
    seconds: float


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A change that was done on a state, and taken back or kept open."""

    change: StatedChange
    steps: tuple[RehearsedStep, ...]
    seconds: float  # of the run that counts: how long the partition would wait
    schema: Mapping[str, str]  # name -> CREATE statement of the tables and indexes that it leads to
