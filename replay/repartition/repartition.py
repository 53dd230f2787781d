"""Recovery into another number of partitions: rows, keys and sessions go where the slot map of the new number sends calls.

One rule: nothing is guessed. Every row is either in the one partition that its partition column states, by the new slot map, or,
of a replicated table, in all of them; a row without such a place is refused by name, and nothing is made.

    partitioned table   by the slot of its partition column; a row that lies elsewhere already in the old shape is refused, since
                        calls would find it in one shape and not in the other
    replicated table    whole in every partition; the old copies must be equal
    keys, sessions      see `replay.repartition.keys` and `replay.repartition.sessions`
    position            one after the highest old index, in the highest old term, at the highest old transaction id: no place of
    the old history is used again

The states are read and written by SQLite, a row at a time; memory holds a page cache and what one partition knows of named
calls, the disk both shapes at once.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any, Final

import apsw
import google_crc32c

from cmdlog.wal.directory.instance import BadSettings, Instance
from cmdlog.wal.directory.sizing import RingSize, reserve_for
from cmdlog.wal.files import Files
from cmdlog.wal.group_state import GroupState, GroupStates, Stated
from cmdlog.wal.ids import CLUSTER_GROUP, PARTITIONS_MAX
from procedures.code.procedure_versions import partitions_of
from procedures.declaration.hash_slots import slot_ranges
from procedures.declaration.row_placement import check_kinds
from procedures.errors import StateRefused
from procedures.idempotency.known_outcome import KeyPolicy
from procedures.storage.state import PartitionState, Position, rows_of
from replay.errors import ReshapeRefused
from replay.machine_errors import named_fault
from replay.repartition.keys import open_keys
from replay.repartition.rows import (
    RowPlacement,
    TableOfStates,
    check_copies,
    copy_migrations,
    has_table,
    loader,
    quoted,
    reader,
    tables_of,
    write_homes,
)
from replay.repartition.sessions import open_sessions
from replay.results import PartitionResult, WorkPace
from replay.state.trust import STATE_FOLDER, Trust, read_position, state_path
from snapshot.catalog import remove_state

REPORT_EVERY_ROWS: Final = 20_000
OF_CLUSTER: Final = frozenset({"partitions", "slots", "key_policy"})  # in the cluster group's configuration alone
HOMES_NAME: Final = "homes.sqlite"  # see `replay.repartition.rows`
NEW_FOLDER: Final = "reshaped"  # below state/, until all new states are made


def check_shape(groups: GroupStates, partitions: int, instance: Instance) -> Instance:
    """The instance that a log for so many partitions needs. Called before the replay, which takes long, while this is known at
    once.

    Raises: ReshapeRefused.
    """
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise ReshapeRefused(f"the number of partitions must be between 1 and {PARTITIONS_MAX}, not {partitions}")
    if partitions == groups.cluster.partitions:
        return instance
    try:
        RingSize(partitions, instance.segments, instance.segment_bytes, instance.log_reserve_bytes).check()
        check_kinds(RowPlacement.of(groups).newest)
    except (BadSettings, StateRefused) as error:
        raise ReshapeRefused(str(error.args[0])) from None
    return replace(instance, log_reserve_bytes=reserve_for(partitions, instance.segment_bytes, instance.log_reserve_bytes))


def reshape(
    files: Files,
    out: str,
    groups: GroupStates,
    *,
    partitions: int,
    progress: Callable[[WorkPace], None] = lambda _rows: None,
    replacing: Callable[[], None] = lambda: None,
) -> list[PartitionResult]:
    """Turns the states in `out` and the `groups`, which end where those are, into those of so many partitions.

    `out` is a node in the making. All new states are made next to the old ones; then `replacing` is called, the old states are
    removed and the new ones take their names. So an interruption before `replacing` can be repeated, and a later one leaves
    nothing of use. Returns the position of each new state. Same number: nothing is done.
    Raises: ReshapeRefused, naming table and value; DiskFull, WriteFailed.
    """
    try:
        if partitions != groups.cluster.partitions:
            _Reshaping(files, out, groups, partitions, progress).run(replacing)
    except apsw.Error as error:
        raise named_fault(error, out) from error
    return [_stands(out, partition) for partition in range(partitions)]


def _stands(out: str, partition: int) -> PartitionResult:
    at = read_position(state_path(out, partition), partition)
    if isinstance(at, str):
        raise StateRefused(f"partition {partition}: {at}")
    return PartitionResult(partition, index=at.index, term=at.term, checksum=at.checksum, txn_id=at.txn_id)


class _Reshaping:
    """One recovery into another number of partitions."""

    def __init__(self, files: Files, out: str, groups: GroupStates, new: int, progress: Callable[[WorkPace], None]) -> None:
        self._files, self._out, self._groups, self._new = files, out, groups, new
        self._old = groups.cluster.partitions
        self._began, self._progress = time.monotonic(), progress
        self._folder = os.path.join(out, STATE_FOLDER, NEW_FOLDER)
        self._homes = os.path.join(self._folder, HOMES_NAME)
        self._sources = [state_path(out, partition) for partition in range(self._old)]
        self._tables, self._indexes = tables_of(self._sources, RowPlacement.of(groups))
        self._keys = open_keys(self._sources, KeyPolicy(**groups.cluster.key_policy))
        self._sessions = open_sessions(self._sources, self._keys.policy, self._keys.lags())
        self._end = self._choose_end()
        self._rows = 0
        self._rows_total = self._count()

    def run(self, replacing: Callable[[], None]) -> None:
        for table in self._tables:
            if table.info.replicated:
                check_copies(self._sources, table.name, table.columns, table.key)
        shutil.rmtree(self._folder, ignore_errors=True)  # of an interrupted run
        self._files.mkdir(self._folder)
        write_homes(self._homes, self._sources, self._tables, partitions=self._new)
        for partition in range(self._new):
            self._fill(partition)
        replacing()
        self._replace()
        self._regroup()
        self._report_progress(last=True)

    # -- where the new history begins ------------------------------------------------------------------------------------

    def _choose_end(self) -> Position:
        """The place at which every new stream begins; its checksum is that of no record."""
        keys = self._keys
        groups = [self._groups.state(partition) for partition in range(self._old)]
        index = 1 + max(*(group.last_index for group in groups), keys.rows_max, self._sessions.rows_max)
        term = max(state.term for state in self._groups.by_partition.values())
        told = f"{index} {term} {self._old} {self._new} " + " ".join(str(group.last_checksum) for group in groups)
        txn_id = max(self._groups.txn_id_max, keys.txn_id_max)
        return Position(index, term, int(google_crc32c.value(told.encode())), txn_id)

    def _regroup(self) -> None:
        """The groups of the new number, all at the same place, under the old voters; the cluster group has the new slot map."""
        groups, end = self._groups, self._end
        txn_id = end.txn_id
        voters = groups.state(0).configurations[-1:] or groups.state(CLUSTER_GROUP).configurations[-1:]
        vote = groups.state(0).vote
        who = {name: value for name, value in voters[0].value.items() if name not in OF_CLUSTER}
        for partition in range(max(self._old, self._new)):
            groups.by_partition.pop(partition, None)
        for partition in range(self._new):
            groups.by_partition[partition] = GroupState(
                term=end.term, vote=vote, commit=end.index, last_index=end.index, last_term=end.term,
                last_checksum=end.checksum, closed_txn=txn_id, last_txn=txn_id,
                configurations=[Stated(end.index, end.term, who)],
            )  # fmt: skip
        cluster = groups.state(CLUSTER_GROUP)
        shape = {**(cluster.configuration or {}), "partitions": self._new, "slots": slot_ranges(self._new)}
        for catalog in cluster.catalogs.values():
            if partitions_of(catalog.value) is not None:
                catalog.value = {**catalog.value, "partitions": self._new}  # calls from here on run on these
        cluster.last_index += 1
        cluster.last_term, cluster.last_checksum, cluster.commit = end.term, end.checksum, cluster.last_index
        cluster.term = max(cluster.term, end.term)
        cluster.configurations = [Stated(cluster.last_index, end.term, shape)]

    # -- rows ------------------------------------------------------------------------------------------------------------

    def _fill(self, partition: int) -> None:
        """Makes the state of a new partition."""
        path, end, parents = self._path(partition), self._end, parents_of(partition, old=self._old, new=self._new)
        PartitionState.open(path, partition=partition).close()
        with closing(loader(path)) as connection:
            for table in self._tables:
                connection.execute(table.sql)
            copy_migrations(connection, self._sources[parents[0]])
            connection.create_scalar_function("tick", self._tick, 0)
            connection.execute("ATTACH ? AS homes", (self._homes,))
            for source in parents:
                connection.execute("ATTACH ? AS old", (self._sources[source],))
                for table in self._tables:
                    if has_table(connection, table.name, "old") and (source == parents[0] or not table.info.replicated):
                        self._move(connection, table, partition, source)
                connection.execute("DETACH old")
            connection.execute("DETACH homes")
            for sql in self._indexes:
                _make_index(connection, sql, partition)
            _check_references(connection, partition)
            clock = self._keys.write(connection, partition, parents)
            self._sessions.write(connection, partition, parents)
            position = (end.index, end.term, end.checksum, end.txn_id, clock)
            connection.execute("UPDATE _cmdlog_meta SET idx = ?, term = ?, checksum = ?, txn_id = ?, clock = ?", position)

    def _move(self, connection: apsw.Connection, table: TableOfStates, partition: int, source: int) -> None:
        """Copies a table's rows of the attached old partition that belong to the new one."""
        try:
            connection.execute(table.move(), () if table.info.replicated else (table.name, source, partition))
        except apsw.ConstraintError as error:
            raise ReshapeRefused(
                f"table {table.name}: rows of several old partitions conflict in partition {partition} ({error}): "
                "every unique key of a table has to contain its partition column"
            ) from None

    def _count(self) -> int:
        """Counts the rows to be written."""
        total = 0
        for number, source in enumerate(self._sources):
            with closing(reader(source)) as connection:
                for table in self._tables:
                    if (number == 0 or not table.info.replicated) and has_table(connection, table.name):
                        rows = rows_of(connection, f"SELECT count(*) FROM {quoted(table.name)}")[0][0]  # noqa: S608
                        total += rows * (self._new if table.info.replicated else 1)
        return total

    def _tick(self, *_: Any) -> int:
        """Counts one written row."""
        self._rows += 1
        if self._rows % REPORT_EVERY_ROWS == 0:
            self._report_progress()
        return 1

    def _report_progress(self, *, last: bool = False) -> None:
        rows = self._rows_total if last else self._rows
        self._progress(WorkPace(rows, self._rows_total, time.monotonic() - self._began))

    # -- files -----------------------------------------------------------------------------------------------------------

    def _path(self, partition: int) -> str:
        return os.path.join(self._folder, os.path.basename(state_path(self._out, partition)))

    def _replace(self) -> None:
        """The new states take the place of the old ones."""
        trust = Trust(self._files, self._out)
        for partition in range(self._old):
            trust.discard(partition)
        for partition in range(self._new, self._old):
            remove_state(f"{state_path(self._out, partition)}.lock")
        for partition in range(self._new):
            os.rename(self._path(partition), state_path(self._out, partition))
            trust.grant(partition)
        os.unlink(self._homes)
        os.rmdir(self._folder)


def _make_index(connection: apsw.Connection, sql: str, partition: int) -> None:
    try:
        connection.execute(sql)
    except apsw.ConstraintError as error:
        raise ReshapeRefused(
            f"the rows for partition {partition} do not fit <{sql}> ({error}): every unique key of a table has to contain its "
            f"partition column"
        ) from None


def _check_references(connection: apsw.Connection, partition: int) -> None:
    """Raises: ReshapeRefused when a foreign key points at nothing."""
    broken = connection.execute("PRAGMA foreign_key_check").fetchone()
    if broken is not None:
        raise ReshapeRefused(
            f"a row of table {broken[0]} refers to one of table {broken[2]} that is not in partition {partition}: both "
            "must be partitioned by the same value"
        )


def parents_of(partition: int, *, old: int, new: int) -> list[int]:
    """The old partitions some of whose slots the new one has."""
    lo, hi, _ = slot_ranges(new)[partition]
    return [p for first, end, p in slot_ranges(old) if first < hi and lo < end]
