"""What a start logs of tables: the SCHEMA entries that lead from the states to the program's tables, each tried out first.

One rule: an entry is made by running it on the state that it is for. What it does once, it does in every replay, and a change
that fails on one partition is logged on none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import apsw

from cmdlog.wal.format.record import RecordKind
from cmdlog.wal.ids import MULTI_PARTITION, PARTITION_BITS, txn_millis
from procedures import Database
from procedures.declaration.schema_plan import SchemaPlan
from procedures.errors import MigrationNeeded
from procedures.execution.executor import Executor
from procedures.idempotency.request_history import VersionFacts
from procedures.migration.stated_change import Rehearsal
from procedures.storage.state import PartitionState, read_migrations, read_schema
from replay.state.trust import state_path

SchemaEntry = tuple[int, RecordKind, dict[str, Any]]  # partition, SCHEMA, the entry's value
ShowState = Callable[[apsw.Connection, int], None]  # gets a state and its partition


def ignore_state(_connection: apsw.Connection, _partition: int) -> None:
    """A `ShowState` that wants nothing of it."""


@dataclass(frozen=True, slots=True)
class NewTables:
    """What the states are to be brought to."""

    db: Database
    catalog: int  # the version of the code that the entries name
    partitions: int
    tick: int  # of the transaction id that migrations see as theirs
    migrates: bool  # whether migrations may run
    facts: VersionFacts  # what the record of that version states
    is_new: bool  # whether the log has no such record yet

    @property
    def judges_rows(self) -> bool:
        """Whether rows are looked at although the tables may be as the program has them."""
        return self.is_new and bool(self.facts.judged)


def table_changes(new: NewTables, directory: str, each: ShowState = ignore_state) -> list[SchemaEntry]:
    """The SCHEMA entry of every partition whose tables are not those of the program; `each` is shown every state.

    Raises: MigrationNeeded, SchemaConflict, MigrationFailed; nothing was changed.
    """
    rehearsals = rehearse_changes(new, state_paths(directory, new.partitions), each)
    return [(partition, RecordKind.SCHEMA, rehearsal.change.to_json()) for partition, rehearsal in rehearsals.items()]


def state_paths(directory: str, partitions: int) -> list[str]:
    """By partition."""
    return [state_path(directory, partition) for partition in range(partitions)]


def rehearse_changes(new: NewTables, paths: Sequence[str], each: ShowState = ignore_state) -> dict[int, Rehearsal]:
    """Partition → what the change does to its state, at that path, which is as before on return; none where nothing changes.

    Raises: as `table_changes`.
    """
    plans = plan_changes(new.db, paths, each)
    if not new.migrates and (pending := next((plan.pending for plan in plans.values() if plan.pending), None)):
        raise MigrationNeeded(new.db.name, pending)
    found: dict[int, Rehearsal] = {}
    for partition in range(len(paths)) if new.judges_rows else plans:
        with contextlib.closing(PartitionState.open(paths[partition], partition=partition)) as state:
            if (rehearsal := rehearse_change(new, state)) is not None:
                found[partition] = rehearsal
    return found


def plan_changes(db: Database, paths: Sequence[str], each: ShowState = ignore_state, *, first: int = 0) -> dict[int, SchemaPlan]:
    """Partition → what leads its state to the program's tables; none where it has them. `first`: partition of the first path.

    No site has the states. Raises: SchemaConflict.
    """

    def states() -> Iterator[tuple[int, apsw.Connection]]:
        for partition, path in enumerate(paths, first):
            with contextlib.closing(PartitionState.open(path, partition=partition)) as state:
                yield partition, state.connection
                each(state.connection, partition)

    return plan_states(db, states())


def plan_states(db: Database, states: Iterable[tuple[int, apsw.Connection]]) -> dict[int, SchemaPlan]:
    """The same of open states; each is asked before the next one is taken. Raises: SchemaConflict, DefinitionError."""
    found: dict[int, SchemaPlan] = {}
    plans: dict[tuple[frozenset[tuple[str, str]], tuple[str, ...]], SchemaPlan] = {}  # partitions mostly have the same tables
    for partition, connection in states:
        schema, done = read_schema(connection), tuple(read_migrations(connection))
        same = frozenset(schema.items()), done
        plan = plans[same] if same in plans else plans.setdefault(same, db.plan_change(schema, done))
        if plan:
            found[partition] = plan
    return found


def rehearse_change(new: NewTables, state: PartitionState) -> Rehearsal | None:
    """What the change does to this state, which is as before on return. Raises: SchemaConflict, MigrationFailed."""
    executor = Executor(
        state,
        lambda _version: new.db,
        digest_rows=True,
        millis_of=txn_millis,
        progress=None,
        facts=lambda _version: replace(new.facts, partitions=new.partitions),
    )
    try:
        return executor.rehearse_change(catalog=new.catalog, at=new.tick << PARTITION_BITS | MULTI_PARTITION, keep=False)
    finally:
        executor.close()
