"""Multi-partition calls that a recovery of the same logs drops: their rows are omitted from a read.

One rule: only where the logs prove every group. Then a call that the chosen log of one partition lacks was acknowledged nowhere
(`replay.log.split_calls`). A log that may just lag proves nothing. A stream does not check: it reads on, and has delivered such
a call before the logs could show it, as with a SKIP that comes later.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cmdlog.wal.ids import MULTI_PARTITION, BlockNumber, Lsn
from cmdlog.wal.skips import Skips
from replay.log.log_fold import is_void
from replay.log.split_calls import PartitionSpan, find_parted, left_out
from replay.spark.reading.chosen_logs import Floor, Logs, NodeLog
from replay.spark.reading.segment_index import IndexedEntries, skips_of_stretches


def unparted(logs: Logs, floor: Floor, gone: Mapping[int, Skips], *, fail: bool) -> dict[int, Skips]:
    """What is omitted from each partition, with these calls. Raises: as `Logs.looked_through`."""
    verdicts = logs.verdict.groups
    if len(logs.partitions) < 2 or not all(of.proved for of in verdicts.values()):
        return dict(gone)
    lines: dict[int, PartitionSpan] = {}
    for partition in logs.partitions:
        log = logs.looked_through(logs.by_directory(verdicts[partition].chosen), floor, fail=fail)
        if log.damages:
            return dict(gone)
        lines[partition] = _line(log, partition, verdicts[partition].last_index)
    found = find_parted(lines)
    return {p: {**of, **dict.fromkeys(left_out(found, p), (0,))} for p, of in gone.items()}


def _line(log: NodeLog, partition: int, upto: int) -> PartitionSpan:
    entries = log.entries(partition)
    line = PartitionSpan(next((of.base_txn for of in entries if of.based), 0))
    for number, of in enumerate(entries):
        later = [void for other in entries[number:] for void in other.voids]
        for txn, index, block, offset in _multi(of):
            if index <= upto and not is_void(later, Lsn(BlockNumber(block), offset), index):
                line.calls[txn] = index
    line.skipped = skips_of_stretches(entries).by_batch(upto=upto).keys() & line.calls.values()
    return line


def _multi(of: IndexedEntries) -> list[tuple[int, int, int, int]]:
    """(TxnId, index, block, offset) of the multi-partition calls."""
    if not of.firsts:
        return []
    firsts = np.array(of.firsts)
    at = np.flatnonzero(((firsts & MULTI_PARTITION) == MULTI_PARTITION) & (np.array(of.counts) == 1))
    return [(of.firsts[n], of.indexes[n], of.blocks[n], of.offsets[n]) for n in at.tolist()]
