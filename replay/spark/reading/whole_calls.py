"""Multi-partition calls that a recovery of the same logs drops: their rows are omitted from a read.

One rule: only where the logs prove every group. Then a call that the chosen log of one partition lacks was acknowledged nowhere
(`replay.log.split_calls`). A log that may just lag proves nothing. A stream does not check: it reads on, and has delivered such
a call before the logs could show it, as with a SKIP that comes later.
"""

from __future__ import annotations

from collections.abc import Mapping

from cmdlog.wal.skips import Skips
from replay.log.split_calls import PartitionSpan, find_parted, left_out
from replay.spark.reading.chosen_logs import Floor, Logs, NodeLog
from replay.spark.reading.segment_index import skips_of_stretches


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
        later = [first for other in entries[number + 1 :] for _, _, first in other.voids]
        live = min([upto + 1, *later])  # entries from there on are void, or not on the line
        line.calls |= {txn: call for txn, call in of.multi.items() if call.index < live}
        line.ran |= {txn for txn in of.ran if of.multi[txn].index < live}
        line.passed = max(line.passed, min(of.executed, live - 1))
        line.terms.extend(of.term_table.upto(live - 1))
    line.skipped = skips_of_stretches(entries).by_batch(upto=upto).keys() & {call.index for call in line.calls.values()}
    return line
