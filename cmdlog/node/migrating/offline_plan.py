"""What migrations would do to a directory that nobody serves, without an entry in its log.

One rule: states are brought to the log's end, as `cmdlog recover` does, and then only copies of them are changed.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

import apsw

from cmdlog.node.boot import OtherApplication
from cmdlog.node.migrating.table_changes import NewTables, plan_changes, rehearse_change
from cmdlog.operator_error import OperatorError
from cmdlog.wal.files import Files
from cmdlog.wal.ids import CLUSTER_GROUP, txn_tick
from cmdlog.wal.log import Log
from procedures import Database
from procedures.code.bundle import Bundle, bundle_of
from procedures.code.loaded_modules import load_bundle
from procedures.code.procedure_versions import catalog_value, facts_of
from procedures.declaration.columns.held_values import values_shown
from procedures.declaration.schema_plan import check_older_program
from procedures.errors import ProceduresError, SchemaConflict
from procedures.migration.stated_change import Rehearsal
from procedures.storage.state import PartitionState, open_reader
from replay.plan.in_place_plan import distrust_damaged, plan_in_place
from replay.plan.sole_voter import check_served_alone
from replay.recover.execute import RecoveryProgress
from replay.recover.in_place import replay_in_place
from replay.recover.target import Target
from replay.state.trust import state_path

Recovering = Callable[[RecoveryProgress], None]
Rehearsing = Callable[[int, int], None]  # partitions that are done, of how many


class NoCode(OperatorError):
    """The directory was made, and no program has started in it so far."""

    hint = "start the application in it; its first start makes the tables"


@dataclass(frozen=True, slots=True)
class OfflinePlan:
    """What a start with the new code would do."""

    version: int  # that the code would get
    former: int  # the version that the log has now
    by_partition: dict[int, Rehearsal]  # none where nothing changes
    partitions: int
    former_cannot_run: str  # why the code that the log has could not serve the tables afterwards; "" if it could


def plan_offline(
    files: Files, directory: str, db: Database, bundle: Bundle, *, recovering: Recovering, rehearsing: Rehearsing
) -> OfflinePlan:
    """Brings the states to the log's end, and tries the change out on a copy of each, which takes the space of one state.

    Raises: WalError, ReplayError, SchemaConflict, MigrationFailed, OtherApplication.
    """
    wal = Log.open(files, directory)
    try:
        check_served_alone(files, directory, wal.instance.identity, wal.recovered.groups)
        cluster = wal.recovered.groups.state(CLUSTER_GROUP)
        if not cluster.catalogs:
            raise NoCode(f"the log of {directory} holds no code yet, so no tables: there is nothing to migrate")
        former = max(cluster.catalogs)
        stated = cluster.catalogs[former].value
        if (made_for := stated.get("database", db.name)) != db.name:
            raise OtherApplication(f"the directory belongs to database {made_for!r}, not to {db.name!r}")
        target = Target(files, directory)
        distrust_damaged(wal, target.trust)
        found = plan_in_place(files, wal, target.trust)
        replay_in_place(target, found, progress=recovering)
        target.trust.seal(part.partition for part in found.plan.partitions)
        known = stated["hash"] == bundle.hash
        version, partitions = former if known else former + 1, wal.recovered.groups.cluster.partitions
        value = stated if known else catalog_value(db, bundle, version, stated, partitions=partitions)
        tick = txn_tick(wal.recovered.txn_id_max) + 1
        new = NewTables(db, version, partitions, tick, migrates=True, facts=facts_of(value), is_new=not known)
        with values_shown():  # who asks has the files, and repairs the rows
            rehearsals = rehearse_on_copies(new, directory, rehearsing)
    finally:
        wal.close()
    why = ""
    if rehearsals and version != former:
        why = why_former_fails(bundle_of(former, stated), next(iter(rehearsals.values())))
    return OfflinePlan(version, former, rehearsals, partitions, why)


def rehearse_on_copies(new: NewTables, directory: str, rehearsing: Rehearsing) -> dict[int, Rehearsal]:
    """Partition -> what the change does to a copy of its state, which may be in use. Raises: SchemaConflict, MigrationFailed."""
    found: dict[int, Rehearsal] = {}
    with tempfile.TemporaryDirectory(prefix="cmdlog-migrate-") as folder:
        for partition in range(new.partitions):
            rehearsing(partition, new.partitions)
            copy = os.path.join(folder, "state")
            _copy_state(state_path(directory, partition), copy)
            if plan_changes(new.db, [copy], first=partition) or new.judges_rows:
                with contextlib.closing(PartitionState.open(copy, partition=partition)) as state:
                    if (rehearsal := rehearse_change(new, state)) is not None:
                        found[partition] = rehearsal
            for name in os.listdir(folder):
                os.unlink(os.path.join(folder, name))
    rehearsing(new.partitions, new.partitions)
    return found


def _copy_state(path: str, copy: str) -> None:
    reader, _ = open_reader(path)
    made = apsw.Connection(copy)
    with contextlib.closing(reader), contextlib.closing(made), made.backup("main", reader, "main") as backup:
        backup.step()


def why_former_fails(bundle: Bundle, rehearsal: Rehearsal) -> str:
    """Why that code could not serve the tables that the change leads to; "" if it could."""
    try:
        former = load_bundle(bundle)
        statements = former.plan_schema(rehearsal.schema)  # its migrations are done
        check_older_program(statements, rehearsal.change.done, [migration.name for migration in former.migrations])
    except SchemaConflict as error:
        return str(error)
    except ProceduresError as error:
        return f"its code cannot be loaded here: {error}"
    return ""
