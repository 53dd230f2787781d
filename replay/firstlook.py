"""A first look at a log for a merge: which entries are void, and which calls were taken out.

One rule: it looks at every record up to the log's end, keeps a pair of numbers for each void range and each skip, and nothing
else. A recovery knows both from its plan (`replay.scan`); this look is for whoever has only the log.

Neither can be known on the way. A SKIP is an entry of its own and may stand anywhere behind the batch that it concerns: in front
of the batch's digest when the node that executed it wrote it, behind the digest when another node's leader could not execute
what this one could. A void suffix is known to be void only where its replacement stands. What is *not* made void by any later
record is either below a commit mark or belongs to the end of the log, where the chosen log counts up to its given last index:
so nothing in the second pass has to wait for a mark to be sure of an entry.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from cmdlog.wal.ids import Lsn
from cmdlog.wal.record import Kind, Record

Void = tuple[int, int, int]  # (block, offset, index): entries from index on that stand before are void


@dataclass(slots=True)
class Look:
    """One partition's stream, as far as it concerns what is left out."""

    last_index: int = 0
    voids: list[Void] = field(default_factory=list)
    taken_out: list[tuple[int, int, int]] = field(default_factory=list)  # (index of the SKIP, index of the batch, position)

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
            if kind is Kind.SKIP:
                value = record.json()
                stream.taken_out.append((record.index, int(value["index"]), int(value["position"])))
        elif kind is Kind.TRUNCATION:
            _void(stream, lsn, record.index)
            stream.last_index = record.index - 1
        elif kind is Kind.CHECKPOINT:
            stream.last_index = max(stream.last_index, int(record.json()["last_index"]))
    return streams


def _void(stream: Look, lsn: Lsn, index: int) -> None:
    stream.voids.append((int(lsn.block), lsn.offset, index))
    stream.taken_out = [skip for skip in stream.taken_out if skip[0] < index]
