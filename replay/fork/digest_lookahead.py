"""Records of a log with each batch's digest before it, so that a batch can be compared as soon as it has run.

One rule: the order stays that of the log, apart from digests, which come early. A digest is a few blocks after its batch, so
what is held is small; of a batch that has none (the log ends, or was written without) no more than the limits below is held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from cmdlog.wal.format.record import Record, RecordKind
from cmdlog.wal.ids import Lsn

HELD_MAX: Final = 4096  # records
HELD_BYTES_MAX: Final = 32 << 20
_Key = tuple[int, int, int]


def digests_first(
    records: Iterable[tuple[Lsn, Record]],
    waits: Callable[[Lsn, Record], bool],
    *,
    held_max: int = HELD_MAX,
    held_bytes_max: int = HELD_BYTES_MAX,
) -> Iterator[tuple[Lsn, Record]]:
    """The records, held back after the first batch that `waits` for its digest."""
    held: deque[tuple[Lsn, Record]] = deque()
    waiting: set[_Key] = set()
    held_bytes = 0
    for lsn, record in records:
        if record.kind is RecordKind.DIGEST:
            waiting.discard(_key(record))
            yield lsn, record
        else:
            if waits(lsn, record):
                waiting.add(_key(record))
            held.append((lsn, record))
            held_bytes += len(record.raw)
        while held and (_key(held[0][1]) not in waiting or len(held) > held_max or held_bytes > held_bytes_max):
            first = held.popleft()
            held_bytes -= len(first[1].raw)
            waiting.discard(_key(first[1]))
            yield first
    yield from held


def _key(record: Record) -> _Key:
    return record.partition, record.index, record.term
