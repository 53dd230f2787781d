"""One loop that reads a log once and gives each entry, with its digest, to the policy of its partition.

One rule: it knows order and nothing else. Records of the cluster group say which code and which key policy hold from there on;
what is done with an entry is decided by an `EntryPolicy`: a recovery (`replay.recover.partition_replay`), a fork
(`replay.fork.rerun`), or both histories at once (`replay.fork.side_by_side`).

An entry is passed on when its digest is at hand. The log holds the digest of a batch a few blocks after the batch, so entries
wait in their partition's queue. A policy can then compare a batch while its transaction is still open, and undo it. A batch that
has no digest (the last calls before a crash) is passed on without; if its digest comes after all, it is compared then.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Generic, Protocol, TypeVar

from cmdlog.wal.format.control_record import CatalogVersion, GroupConfiguration
from cmdlog.wal.format.record import Record, RecordKind
from cmdlog.wal.group_state import GroupState
from cmdlog.wal.ids import CLUSTER_GROUP, Lsn
from procedures.errors import EnvironmentFault
from procedures.idempotency.known_outcome import KeyPolicy
from procedures.raised_errors import is_raised
from replay.engine import Catalogs
from replay.errors import Divergence, EntryMissing, Poison
from replay.log.log_fold import is_void
from replay.machine_errors import named_fault

_CATALOG: Final = RecordKind.CATALOG
_STATE_KEY_POLICY: Final = (RecordKind.CONFIGURATION, RecordKind.SHAPE)
_CHECKPOINT: Final = RecordKind.CHECKPOINT
_DIGEST: Final = RecordKind.DIGEST  # an enum member costs ten times a constant, for every record
LOOK_EVERY_RECORDS: Final = 64  # whether all is done: a look costs as much as a record that is passed over
WAITING_MAX: Final = 1024  # entries of a partition that wait for a digest, which the log holds a few blocks later
WAITING_BYTES_MAX: Final = 32 << 20
UNCOMPARED_MAX: Final = 1024  # batches that were applied without their digest
REPORT_EVERY_CALLS: Final = 2000  # so a progress display moves ten times a second and costs nothing


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


T = TypeVar("T")


class EntryPolicy(Protocol):
    """What is done with the entries of one partition."""

    @property
    def calls(self) -> int:
        """How many calls were run so far."""

    @property
    def awaits_digest(self) -> bool:
        """Whether a batch was applied whose digest may still come."""

    def apply_entry(self, lsn: Lsn, record: Record, digest: Record | None) -> object:
        """Applies the next entry in force; `digest` says what the live run did. Raises: PartitionStopped."""

    def compare_late(self, digest: Record) -> None:
        """Compares a batch that was applied without its digest, if it was. Raises: PartitionStopped."""

    def change_key_policy(self, policy: KeyPolicy) -> None:
        """In force for the entries that follow."""


class PartitionStopped(Exception):
    """The partition goes no further; the others do."""

    def __init__(self, error: Divergence | Poison) -> None:
        self.error = error


class EntryQueue:
    """Passes one partition's entries to its policy. One thread."""

    def __init__(
        self,
        partition: int,
        policy: EntryPolicy,
        *,
        after_index: int,
        to_index: int,
        voids: Iterable[tuple[int, int, int]],
        progress: Callable[[int, int], None],
    ) -> None:
        """
        Args:
            after_index: the last entry that the policy's state holds.
            to_index: the last entry to be applied.
            voids: (block, offset, index): entries from that index on that are before that place are not in force.
            progress: given (partition, calls so far).
        """
        self.policy, self.stopped = policy, None
        self._partition, self._to_index, self._voids, self._progress = partition, to_index, list(voids), progress
        self._last = after_index  # of the entries that were put
        self._waiting: deque[tuple[Lsn, Record] | KeyPolicy] = deque()
        self._waiting_bytes = 0
        self._reported = 0

    stopped: Divergence | Poison | None  # why the partition goes no further

    @property
    def finished(self) -> bool:
        """The last entry was applied and nothing waits for a digest, or the partition goes no further."""
        return self.stopped is not None or (self._last >= self._to_index and not self._waiting and not self.policy.awaits_digest)

    def put_entry(self, lsn: Lsn, record: Record) -> None:
        """The next entry of the log; one that is not to be applied is left out.

        Raises: EntryMissing when the one before it was not put; what the policy raises.
        """
        index, waiting = record.index, self._waiting
        if not self._last < index <= self._to_index or self.stopped is not None:
            return
        if self._voids and is_void(self._voids, lsn, index):
            return
        if index != self._last + 1:
            raise EntryMissing(f"partition {self._partition}: entry {self._last + 1} is not in the log, entry {index} is")
        self._last = index
        waiting.append((lsn, record))
        self._waiting_bytes += len(record.raw)
        if record.kind is not RecordKind.BATCH and len(waiting) == 1:
            self._pass_on(index)
        while len(waiting) > WAITING_MAX or self._waiting_bytes > WAITING_BYTES_MAX:
            first = waiting[0]
            self._pass_on(0 if isinstance(first, KeyPolicy) else first[1].index)

    def put_key_policy(self, policy: KeyPolicy) -> None:
        """In force for the entries that follow."""
        if self._waiting:
            self._waiting.append(policy)
        else:
            self.policy.change_key_policy(policy)

    def put_digest(self, digest: Record) -> None:
        """What the live run did in a batch; the batches before it that have none get none."""
        if self.stopped is None:
            self._pass_on(digest.index, digest)

    def finish(self) -> None:
        """There are no more digests: passes on what waits."""
        self._pass_on(self._to_index)
        if self.stopped is None:
            self._progress(self._partition, self.policy.calls)

    def _pass_on(self, upto: int, digest: Record | None = None) -> None:
        """Everything that waits, up to the entry of that index."""
        waiting, policy = self._waiting, self.policy
        try:
            # A key policy holds from here on; a batch has this digest, or none.
            while waiting:
                first = waiting[0]
                if isinstance(first, KeyPolicy):
                    policy.change_key_policy(first)
                    waiting.popleft()
                    continue
                lsn, record = first
                if record.index > upto:
                    break
                waiting.popleft()
                self._waiting_bytes -= len(record.raw)
                if digest is not None and record.index == upto and record.term == digest.term:
                    policy.apply_entry(lsn, record, digest)
                    digest = None
                else:
                    policy.apply_entry(lsn, record, None)
                self._report()
            if digest is not None:
                policy.compare_late(digest)
        except PartitionStopped as stop:
            self.stopped = stop.error
            waiting.clear()

    def _report(self) -> None:
        calls = self.policy.calls
        if calls - self._reported >= REPORT_EVERY_CALLS:
            self._reported = calls
            self._progress(self._partition, calls)


class UncomparedBatches(Generic[T]):
    """What was applied before its digest was met, by index; of too many the first are forgotten."""

    def __init__(self) -> None:
        self._found: OrderedDict[int, tuple[int, T]] = OrderedDict()  # index -> (term, what is compared)

    def __len__(self) -> int:
        return len(self._found)

    @property
    def indexes(self) -> list[int]:
        """Of the batches, ascending."""
        return list(self._found)

    def add(self, record: Record, applied: T) -> None:
        self._found[record.index] = record.term, applied
        if len(self._found) > UNCOMPARED_MAX:
            self._found.popitem(last=False)

    def forget(self, index: int) -> None:
        self._found.pop(index, None)

    def pop(self, digest: Record) -> T | None:
        """What the digest is of; None when it was compared, or is not known."""
        term, applied = self._found.get(digest.index, (None, None))
        if term != digest.term:
            return None
        del self._found[digest.index]
        return applied
