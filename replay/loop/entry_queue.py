"""The entries of one partition in order, each batch with its digest.

One rule: an entry is passed on when its digest is at hand. The log holds the digest of a batch a few blocks after the batch, so
entries wait here. A policy can then compare a batch while its transaction is still open, and undo it. A batch that has no digest
(the last calls before a crash) is passed on without; if its digest comes after all, it is compared then.

What is done with an entry is decided by an `EntryPolicy`: a recovery (`replay.recover.partition_replay`), a fork
(`replay.fork.rerun`), or both histories at once (`replay.fork.side_by_side`).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Final, Generic, Protocol, TypeVar

from cmdlog.wal.format.record import Record, RecordKind
from cmdlog.wal.ids import Lsn
from procedures.idempotency.known_outcome import KeyPolicy
from replay.errors import Divergence, EntryMissing, Poison
from replay.log.log_fold import is_void

WAITING_MAX: Final = 1024  # entries of a partition that wait for a digest, which the log holds a few blocks later
WAITING_BYTES_MAX: Final = 32 << 20
UNCOMPARED_MAX: Final = 1024  # batches that were applied without their digest
REPORT_EVERY_CALLS: Final = 2000  # so a progress display moves ten times a second and costs nothing

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
