"""Multi-partition calls in a cluster: executed on all partitions or on none, through every change of leader.

One rule: the entry of such a call is handed to a site only when every partition has it committed. The entries of a partition keep
their order, so those after it wait with it.

A leader puts the call into all groups in one block, but each group commits by itself: a leader that dies leaves it in some of
them. Its successor finds it (`parted`) before it takes a call, and skips it wherever it is (SKIP, as for a call that cannot be
run). So the running cluster does what `replay.log.split_calls` does with the same logs: a call that some partition lacks was
answered to nobody, and is run nowhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cmdlog.wal.format.batch import batch_span
from cmdlog.wal.format.control_record import Skip
from cmdlog.wal.format.record import KIND_OFFSET, RecordKind, decode_record, peek_record
from cmdlog.wal.ids import MULTI_PARTITION, txn_partition

_BATCH = int(RecordKind.BATCH)
_SKIP = int(RecordKind.SKIP)

Released = list[tuple[int, list[tuple[int, bytes]]]]  # (partition, [(index, record)]), in order


@dataclass(frozen=True, slots=True)
class PartedEntry:
    """A multi-partition call that some partitions lack: where it is."""

    txn_id: int
    places: Sequence[tuple[int, int]]  # (partition, index), ascending


class MultiCallGate:
    """Under the driver's lock."""

    def __init__(self, run_upto: Mapping[int, int]) -> None:
        """`run_upto`: of every partition the TxnId up to which its state holds all."""
        self._run_upto = dict(run_upto)
        self._waiting: dict[int, deque[tuple[int, bytes, int]]] = {partition: deque() for partition in run_upto}
        self._held: dict[int, dict[int, int]] = {}  # TxnId -> partition -> index, of calls that wait
        self._skipped: set[tuple[int, int]] = set()  # (partition, index) of waiting calls that are not run

    def add(self, partition: int, entries: Iterable[tuple[int, bytes]]) -> tuple[Released, list[tuple[int, Skip]]]:
        """The partition's next committed entries (index, record). What may be run now, on any partition, and the skips among
        these entries, which a site must know first."""
        skips: list[tuple[int, Skip]] = []
        queue = self._waiting[partition]
        touched = {partition}
        for index, record in entries:
            kind, txn_id = record[KIND_OFFSET], 0
            if kind == _SKIP:
                skip = Skip.from_record(decode_record(record))
                skips.append((partition, skip))
                if any(held.get(partition) == skip.batch for held in self._held.values()):
                    self._skipped.add((partition, skip.batch))
            elif kind == _BATCH and (txn_id := _multi_txn(record)):
                held = self._held.setdefault(txn_id, {})
                held[partition] = index
                if self._everywhere(txn_id):
                    touched |= held.keys()
            queue.append((index, record, txn_id))
        return self._release(sorted(touched)), skips

    def parted(self) -> list[PartedEntry]:
        """The calls that wait for partitions which may not have them at all, ascending; not the places whose skip is known."""
        return [
            PartedEntry(txn_id, places)
            for txn_id, held in sorted(self._held.items())
            if not self._everywhere(txn_id) and (places := sorted(held.items() - self._skipped))
        ]

    @property
    def waits(self) -> bool:
        """Whether anything committed may not be run yet."""
        return any(self._waiting.values())

    def _everywhere(self, txn_id: int) -> bool:
        held = self._held.get(txn_id, {})
        return all(partition in held or upto >= txn_id for partition, upto in self._run_upto.items())

    def _release(self, partitions: Iterable[int]) -> Released:
        released: Released = []
        for partition in partitions:
            queue, run = self._waiting[partition], list[tuple[int, bytes]]()
            while queue:
                index, record, txn_id = queue[0]
                if txn_id and not self._everywhere(txn_id) and (partition, index) not in self._skipped:
                    break
                queue.popleft()
                run.append((index, record))
                self._skipped.discard((partition, index))
                if txn_id:
                    self._leave(txn_id, partition)
            if run:
                released.append((partition, run))
        return released

    def _leave(self, txn_id: int, partition: int) -> None:
        """The partition may run the call: it holds all up to it from now on."""
        self._run_upto[partition] = max(self._run_upto[partition], txn_id)
        held = self._held[txn_id]
        del held[partition]
        if not held:
            del self._held[txn_id]


def _multi_txn(record: bytes) -> int:
    """The TxnId of a batch that is a multi-partition call; 0 for any other."""
    first, _, count = batch_span(peek_record(record))
    return first if count == 1 and txn_partition(first) == MULTI_PARTITION else 0
