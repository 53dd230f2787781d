"""A first pass over a log for a merge: which entries are void, which calls are skipped, which marks promised too much.

One rule: it looks at every record up to the log's end, and keeps three numbers for each of those,
two for each multi-partition call, and nothing else. A recovery
knows the first two from its plan (`replay.log.scan`); this pass is for a caller that has only the log.

None of it can be known during the merge. A SKIP is an entry of its own and may come anywhere after the batch that it concerns:
before the batch's digest when the node that executed it wrote it, after the digest when another node's leader could not execute
what this one could. A void suffix is known to be void only at its replacement. What is *not* made void by any later record is
either below a commit mark or belongs to the end of the log, where the chosen log counts up to its given last index: so nothing
in the second pass has to wait for a mark to be sure of an entry.

Marks also say up to which TxnId a stream is closed, and that word is only as good as who gave it: a leader that was deposed
without knowing it promised for itself, while its successor's clock may have been slow. Where an entry of the log contradicts
what was stated before it, the entry is right.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from cmdlog.wal.format.batch import batch_span
from cmdlog.wal.format.record import Record, RecordKind, decode_commit_mark
from cmdlog.wal.ids import Lsn
from replay.log.split_calls import PartitionSpan, multi_txn

Place = tuple[int, int, int]  # (block, offset, number): what a record there says about those before it


@dataclass(slots=True)
class Look:
    """The void and skipped parts of one partition's stream."""

    last_index: int = 0
    claimed_txn: int = 0  # the highest that was said to be closed, and that nothing has contradicted yet
    voids: list[Place] = field(default_factory=list)  # entries from that index on, before there, are void
    untrue: list[Place] = field(default_factory=list)  # of what was said before there, only that TxnId is closed
    taken_out: list[tuple[int, int, int]] = field(default_factory=list)  # (index of the SKIP, index of the batch, position)
    start_txn: int = 0  # what precedes the first entry holds every call up to here
    multi: dict[int, int] = field(default_factory=dict)  # TxnId -> index of the multi-partition calls
    executed: int = 0  # the last batch whose digest was met

    def line(self, *, upto: int) -> PartitionSpan:
        """Its entries up to there, for `replay.log.split_calls`."""
        calls = {txn: index for txn, index in self.multi.items() if index <= upto}
        skips = {index for at, index, _ in self.taken_out if at <= upto} if calls else set()
        return PartitionSpan(self.start_txn, calls, skips & set(calls.values()), self.executed)

    @property
    def skips(self) -> Mapping[int, frozenset[int]]:
        """Index of a batch -> positions that were not run."""
        found: dict[int, set[int]] = {}
        for _, index, position in self.taken_out:
            found.setdefault(index, set()).add(position)
        return {index: frozenset(positions) for index, positions in found.items()}


def look(records: Iterable[tuple[Lsn, Record]], partitions: Collection[int]) -> dict[int, Look]:
    """Reads to the end.

    Raises: BadRecord when a SKIP or CHECKPOINT does not hold what its kind says; what `records` raises.
    """
    streams = {partition: Look() for partition in partitions}
    for lsn, record in records:
        stream = streams.get(record.partition)
        if stream is None:
            continue
        kind = record.kind
        if kind < 16:
            if record.index <= stream.last_index:
                _void(stream, lsn, record.index)
            stream.last_index = record.index
            if kind is RecordKind.BATCH:
                _compare(stream, lsn, batch_span(record)[0])
                if txn := multi_txn(record):
                    stream.multi[txn] = record.index
            elif kind is RecordKind.SKIP:
                value = record.json()
                stream.taken_out.append((record.index, int(value["index"]), int(value["position"])))
        elif kind is RecordKind.TRUNCATION:
            _void(stream, lsn, record.index)
            stream.last_index = record.index - 1
        elif kind is RecordKind.DIGEST:
            stream.executed = max(stream.executed, record.index)
        elif kind is RecordKind.CHECKPOINT:
            value = record.json()
            if not stream.last_index:
                stream.start_txn = int(value.get("last_txn", 0))
            stream.last_index = max(stream.last_index, int(value["last_index"]))
            stream.claimed_txn = max(stream.claimed_txn, int(value["closed_txn"]))
        elif kind is RecordKind.COMMIT_MARK:
            stream.claimed_txn = max(stream.claimed_txn, decode_commit_mark(record))
    return streams


def _void(stream: Look, lsn: Lsn, index: int) -> None:
    stream.voids.append((int(lsn.block), lsn.offset, index))
    stream.taken_out = [skip for skip in stream.taken_out if skip[0] < index]
    stream.multi = {txn: at for txn, at in stream.multi.items() if at < index}
    stream.executed = min(stream.executed, index - 1)


def _compare(stream: Look, lsn: Lsn, first_txn: int) -> None:
    if first_txn <= stream.claimed_txn:
        stream.claimed_txn = first_txn - 1
        stream.untrue.append((int(lsn.block), lsn.offset, first_txn - 1))
