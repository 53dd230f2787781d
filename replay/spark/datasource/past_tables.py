"""The tables of a partition as they were at a moment, without its rows: what a driver must know before a task replays.

One rule: it goes the way of the replay. The tables of the plan's snapshot, or none, are made in an empty database, and the SCHEMA
entries that follow run there: their statements, and the steps of their migrations. Those that change rows find none.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

import apsw

from cmdlog.wal.directory.instance import load_instance
from cmdlog.wal.files import Files
from cmdlog.wal.format.control_record import SchemaChange
from cmdlog.wal.format.record import Record, RecordKind
from cmdlog.wal.ids import Lsn
from procedures.idempotency.known_outcome import KeyPolicy
from procedures.migration.stated_change import StatedChange
from procedures.numeric.functions import register_numeric_functions
from replay.errors import PlanOutdated
from replay.loop import EntryQueue, ReplayLoop
from replay.plan.node_plan import Plan, Planned
from replay.spark.jobs.fetched_inputs import bring_images
from snapshot.catalog import list_archived, list_snapshots
from snapshot.manifest import IMAGE_NAME
from snapshot.table_digest import open_image

_TABLES = "SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL AND substr(name, 1, 8) <> '_cmdlog_' ORDER BY rowid"


class TablesAlone:
    """The policy of a replay that leaves rows out."""

    calls = 0
    awaits_digest = False

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def apply_entry(self, _lsn: Lsn, record: Record, _digest: Record | None) -> None:
        if record.kind is not RecordKind.SCHEMA:
            return
        change = StatedChange.from_json(SchemaChange.from_record(record).value)
        for statement in (sql for run in change.migrations for step in run.steps for sql in step):
            self._connection.execute(statement)
        for statement in change.statements:
            self._connection.execute(statement)

    def compare_late(self, digest: Record) -> None:
        """Nothing was run that has a digest."""

    def change_key_policy(self, policy: KeyPolicy) -> None:
        """Nothing has a key."""


def tables_at(files: Files, legs: Sequence[Plan]) -> dict[str, str]:
    """Table -> its CREATE statement at the end of these legs of one partition.

    Raises: PlanOutdated, WalError, what `ReplayLoop.run` raises.
    """
    with contextlib.closing(apsw.Connection(":memory:")) as connection:
        register_numeric_functions(connection)
        connection.pragma("foreign_keys", 0)
        for leg in legs:
            part = leg.partitions[0]
            if part.source == "snapshot":
                for statement in _image_tables(files, leg):
                    connection.execute(statement)
            queue = EntryQueue(
                part.partition,
                TablesAlone(connection),
                after_index=part.from_index,
                to_index=part.to_index,
                voids=part.voids,
                progress=lambda _partition, _calls: None,
            )
            ReplayLoop({part.partition: queue}).run(Planned.of(files, leg).records(), leg.directory)
        return {str(name): str(sql) for name, sql in connection.execute(_TABLES) if str(sql).startswith("CREATE TABLE")}


def _image_tables(files: Files, leg: Plan) -> Iterator[str]:
    """CREATE statements in the image of the leg's snapshot; a delta has the tables of its base."""
    bring_images(files, [leg])
    part = leg.partitions[0]
    origin = leg.origins.get(part.partition, leg.directory)
    identity = load_instance(files, origin).identity
    for snapshot in (*list_snapshots(files, origin, identity), *list_archived(files, origin, identity)):
        if snapshot.name == part.name:
            with contextlib.closing(open_image(os.path.join(snapshot.chain[-1].path, IMAGE_NAME))) as image:
                yield from [str(sql) for _, sql in image.execute(_TABLES)]
            return
    raise PlanOutdated(f"snapshot {part.name} no longer exists")
