"""Reads a log once and gives each record to the partition that it concerns.

One rule: it knows order and nothing else. Records of the cluster group say which code and which key policy hold from there on;
entries and digests go to the partition's queue (`replay.loop.entry_queue`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from cmdlog.wal.format.control_record import CatalogVersion, GroupConfiguration
from cmdlog.wal.format.record import Record, RecordKind
from cmdlog.wal.group_state import GroupState
from cmdlog.wal.ids import CLUSTER_GROUP, Lsn
from procedures.errors import EnvironmentFault
from procedures.idempotency.known_outcome import KeyPolicy
from procedures.raised_errors import is_raised
from replay.engine import Catalogs
from replay.loop.entry_queue import EntryQueue
from replay.machine_errors import named_fault

_CATALOG: Final = RecordKind.CATALOG
_STATE_KEY_POLICY: Final = (RecordKind.CONFIGURATION, RecordKind.SHAPE)
_CHECKPOINT: Final = RecordKind.CHECKPOINT
_DIGEST: Final = RecordKind.DIGEST  # an enum member costs ten times a constant, for every record
LOOK_EVERY_RECORDS: Final = 64  # whether all is done: a look costs as much as a record that is passed over


class ReplayLoop:
    """Replays some partitions from one log. One thread."""

    def __init__(
        self,
        queues: Mapping[int, EntryQueue],
        catalogs: Catalogs | None = None,
        *,
        diverged: Mapping[int, int] | None = None,
    ) -> None:
        """`catalogs` are given each version of the code that the log states.

        `diverged`: partition -> the entry from which on this log's digests are of a state that other nodes did not have.
        """
        self._queues, self._catalogs, self._diverged = queues, catalogs, diverged or {}
        self._key_policy = KeyPolicy()

    @property
    def finished(self) -> bool:
        """Every partition is at its end, or goes no further, and nothing waits for a digest."""
        return all(queue.finished for queue in self._queues.values())

    def run(self, records: Iterable[tuple[Lsn, Record]], folder: str) -> None:
        """Until every partition is at its end, or the records are. `folder` holds the states, for errors of the disk.

        Raises: EntryMissing, DiskFull, WriteFailed, KeyboardInterrupt naming the call; EnvironmentFault; what policies raise.
        """
        try:
            for count, (lsn, record) in enumerate(records):
                if not count % LOOK_EVERY_RECORDS and self.finished:
                    break
                self.put_record(lsn, record)
            for queue in self._queues.values():
                queue.finish()
        except EnvironmentFault as fault:
            raise _end_of(fault, folder) from fault

    def put_beginning(self, catalogs: Iterable[Mapping[str, Any]], key_policy: Mapping[str, int]) -> None:
        """What holds where the log begins, when its first records do not say it; `key_policy` is empty if nothing states it."""
        for value in catalogs:
            self._add_catalog(int(value["version"]), value)
        if key_policy:
            self.put_key_policy(key_policy)

    def put_record(self, lsn: Lsn, record: Record) -> None:
        """The next record of the log."""
        if record.partition == CLUSTER_GROUP:
            self._read_cluster(record)
        elif (queue := self._queues.get(record.partition)) is None:
            return
        elif record.is_entry:
            queue.put_entry(lsn, record)
        elif record.kind is _DIGEST and record.index < self._diverged.get(record.partition, record.index + 1):
            queue.put_digest(record)

    def put_key_policy(self, limits: Mapping[str, int]) -> None:
        """The key policy in force from here on, as a configuration states it."""
        policy = KeyPolicy(**limits)
        if policy == self._key_policy:
            return
        self._key_policy = policy
        for queue in self._queues.values():
            queue.put_key_policy(policy)

    def _add_catalog(self, version: int, value: Mapping[str, Any]) -> None:
        if self._catalogs is not None:
            self._catalogs.add_logged(version, value)

    def _read_cluster(self, record: Record) -> None:
        if record.kind is _CATALOG:
            catalog = CatalogVersion.from_record(record)
            self._add_catalog(catalog.version, catalog.value)
        elif record.kind in _STATE_KEY_POLICY:
            if limits := GroupConfiguration.from_record(record).key_policy:
                self.put_key_policy(limits)
        elif record.kind is _CHECKPOINT:
            state = GroupState.from_checkpoint(record)
            for version, stated in state.catalogs.items():
                self._add_catalog(version, stated.value)
            if state.configuration is not None:
                self.put_key_policy(GroupConfiguration.from_json(state.configuration).key_policy)


def _end_of(fault: EnvironmentFault, folder: str) -> BaseException:
    """The error to raise for a fault in the middle of an entry: of Ctrl-C, of the disk, or the fault itself."""
    if is_raised(fault.__cause__, KeyboardInterrupt):
        return KeyboardInterrupt(*([f"in {fault.procedure}, transaction {fault.txn_id}"] if fault.procedure else []))
    return named_fault(fault, folder)
