"""What a deploy answers: the version, what changes on each partition, and for how long no call could be placed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from procedures.declaration.schema_plan import SchemaPlan


@dataclass(frozen=True, slots=True)
class DeployAnswer:
    """See the module."""

    version: int  # of the code that calls run from now on
    changed: bool = True  # False: that code runs already
    partitions: Mapping[str, Sequence[str]] = field(default_factory=dict)  # partition -> SQL; unchanged ones are left out
    migrations: Sequence[str] = field(default_factory=list)  # that run
    pauses: str = ""  # of a plan: why calls have to pause
    former_cannot_run: str = ""  # of a plan: why the former code could not serve the new tables
    steps: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # of a trial: partition -> [migration, SQL, rows, seconds]
    pause_ms: float = 0.0  # of a plan: as long as the slowest partition took

    @classmethod
    def of_plan(cls, version: int, tables: Mapping[int, SchemaPlan], pauses: str) -> Self:
        """What would be done."""
        names = dict.fromkeys(name for plan in tables.values() for name in plan.pending)
        return cls(version, True, {str(p): list(plan.statements) for p, plan in tables.items()}, list(names), pauses)

    def with_trial(self, trial: Mapping[str, Any]) -> DeployAnswer:
        """This plan, with what a trial on copies of the states has found."""
        tried = trial["partitions"]
        return replace(
            self,
            partitions={partition: [sql for _, sql, _, _ in found["steps"] if sql] for partition, found in tried.items()},
            steps={partition: found["steps"] for partition, found in tried.items()},
            former_cannot_run=trial["former_cannot_run"],
            pause_ms=round(max((found["seconds"] for found in tried.values()), default=0.0) * 1000, 3),
        )

    @classmethod
    def of_entries(cls, version: int, entries: Mapping[int, Mapping[str, Any]], pause_ms: float) -> Self:
        """What was done, by the values of the SCHEMA entries."""
        names = dict.fromkeys(run["name"] for entry in entries.values() for run in entry.get("migrations", ()))
        statements = {str(partition): statements_of(entry) for partition, entry in entries.items()}
        return cls(version, True, statements, list(names), pause_ms=pause_ms)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def statements_of(entry: Mapping[str, Any]) -> list[str]:
    """All SQL of a SCHEMA entry's value, in order."""
    of_migrations = [sql for run in entry.get("migrations", ()) for step in run["steps"] for sql in step]
    return [*of_migrations, *entry["statements"]]
