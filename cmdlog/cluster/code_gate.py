"""Batches and migrations wait for their code: each group commits by itself, so a batch, or a SCHEMA entry with migrations, may be
committed here before the version that it names. A site that gets it without its code fails.

One rule: a site gets an entry only when the version of the code that it names is known. Entries of a partition keep their order,
so those after it wait with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from cmdlog.wal.format.batch import batch_catalog
from cmdlog.wal.format.record import KIND_OFFSET, RecordKind, peek_record

_BATCH, _SCHEMA = int(RecordKind.BATCH), int(RecordKind.SCHEMA)


class CodeGate:
    """Under the driver's lock."""

    def __init__(self) -> None:
        self._newest = 0  # version up to which all are known
        self._waiting: dict[int, deque[tuple[int, bytes]]] = {}  # by partition; none of them is empty

    def add(self, partition: int, entries: Iterable[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """The partition's next entries (index, record); those of them whose code is known."""
        passed, waiting = list[tuple[int, bytes]](), self._waiting.get(partition) or deque()
        for entry in entries:
            if waiting or self._lacks(entry[1]):
                waiting.append(entry)
            else:
                passed.append(entry)
        if waiting:
            self._waiting[partition] = waiting
        return passed

    def learn(self, version: int) -> dict[int, list[tuple[int, bytes]]]:
        """One more version is known. What may be run now, by partition."""
        if version <= self._newest:
            return {}
        self._newest, released = version, dict[int, list[tuple[int, bytes]]]()
        for partition, waiting in list(self._waiting.items()):
            del self._waiting[partition]
            released[partition] = self.add(partition, waiting)
        return released

    @property
    def waits(self) -> bool:
        """Whether any entry waits for its code."""
        return bool(self._waiting)

    def _lacks(self, record: bytes) -> bool:
        kind = record[KIND_OFFSET]
        if kind == _BATCH:
            return batch_catalog(peek_record(record)) > self._newest
        return kind == _SCHEMA and int(peek_record(record).json().get("catalog", 0)) > self._newest
