"""The failure sets that the cluster has committed, in this node's fault log.

One rule: a set is durable here before anything that follows it in the cluster group's log is applied. So a node that acts on a
later entry can never be taken for one that has not heard of the set (`replay.plan.directory_lineage`).
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from cmdlog.wal.fault_log import FaultLog, FaultLogForked, FaultRecord, make_record
from cmdlog.wal.format.cluster_record import FaultSet
from cmdlog.wal.format.record import RecordKind, decode_record, peek_record

log = structlog.get_logger("cmdlog.cluster")


class FaultSets:
    """Under the driver's lock."""

    def __init__(self, faults: FaultLog, cluster_id: bytes, changed: Callable[[FaultRecord], None]) -> None:
        """`changed` gets each record once it is durable."""
        self._faults, self._cluster_id, self._changed = faults, cluster_id, changed

    @property
    def sequence(self) -> int:
        """Of the newest record; 0: there never was one."""
        newest = self._faults.newest
        return 0 if newest is None else newest.sequence

    @property
    def failed(self) -> frozenset[int]:
        """The failure set in force."""
        return self._faults.failed

    @property
    def records(self) -> tuple[FaultRecord, ...]:
        """What is kept, ascending."""
        return self._faults.records

    def observe(self, record: bytes) -> None:
        """An entry of the cluster group is committed, and nothing has followed from it yet. Raises: as `adopt_set`."""
        if peek_record(record).kind is RecordKind.FAULTS:
            self.adopt_set(FaultSet.from_record(decode_record(record)))

    def adopt_set(self, stated: FaultSet) -> None:
        """A committed FAULTS entry; durable on return. One that is here already changes nothing.

        Raises: FaultLogForked, DiskFull, WriteFailed, Wedged; then nothing may act on the entry.
        """
        known = {record.sequence: record for record in self._faults.records}
        previous = known.get(stated.sequence - 1)
        if previous is None and stated.sequence > 1:
            if self.sequence >= stated.sequence:
                return  # older than what is kept
            raise FaultLogForked(
                f"failure set {stated.sequence} is committed, but the fault log ends with record {self.sequence}: records of "
                f"this node are missing"
            )
        record = make_record(
            self._cluster_id, previous, failed=stated.failed, epoch=stated.epoch, term=stated.term, author=stated.author,
            demotions=stated.demotions, reason=stated.reason,
        )  # fmt: skip
        if self._faults.adopt([record]):
            log.warning("failure_set", sequence=record.sequence, failed=sorted(record.failed), reason=record.reason)
            self._changed(record)
