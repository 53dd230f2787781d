"""The opening: what a start adds to the log before its first entry.

One rule: it takes ordinary room only. The reserve is for getting out of a full log, and a start that used it up, time after time,
would leave a log that nothing gets out.

Hard states (the term of this start) ride in the first block that is written at all: a start that has nothing to say writes
nothing. *Changes* (code, environment, configuration, tables) get a block of their own as soon as there is room for them, and no
call is taken before it. Until then the node serves reads with the code it has, and snapshots make room.

That a term is only raised with the first block is enough for "no index is given twice in one term": the hard state file has the
term, durable, before that block is written (`Log._settle`), so it is known even when the block is cut.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from cmdlog.node.outcome import Done
from cmdlog.node.sequencing.flight import BATCH_OVERHEAD_BYTES
from cmdlog.node.sequencing.pipeline_set import PipelineSet
from cmdlog.wal.format.block import RECORD_ALIGN
from cmdlog.wal.format.record import RecordKind

Entry = tuple[int, RecordKind, dict[str, Any]]  # partition, kind and value of a control entry
Placed = tuple[int, tuple[RecordKind, dict[str, Any], Done]]  # partition, and the entry as its stream keeps it


class Opening:
    """Belongs to the sequencer's lock: `add` and `waits_for_room` take it, whatever else is called holds it."""

    def __init__(self, terms: Sequence[bytes], pipelines: PipelineSet) -> None:
        self._pipelines, self._lock = pipelines, pipelines.lock
        self._terms = list(terms)
        self._records: deque[bytes] = deque()
        self._entries: list[Entry] = []
        self._done: Callable[[], None] = lambda: None
        self.waits = False  # changes have been stated, and are not taken yet
        self.tables_wait = False  # some of them are of tables: a procedure cannot read before
        self.terms_bytes = size_of(terms)  # 0 once they are written
        self.bytes = self.terms_bytes  # that the log has to take before any call

    def add(self, records: Sequence[bytes], entries: Sequence[Entry], *, done: Callable[[], None]) -> None:
        """Changes: records of the cluster group, then entries of partitions. `done` is called when all of them are durable."""
        with self._lock:
            self._records, self._entries, self._done = deque(records), list(entries), done
            self.waits, self.tables_wait = bool(records or entries), bool(entries)
            entries_bytes = sum([len(orjson.dumps(value)) + BATCH_OVERHEAD_BYTES for _, _, value in entries])
            self.bytes = self.terms_bytes + size_of(records) + entries_bytes
        self._pipelines.wake_log()

    @property
    def waits_for_room(self) -> bool:
        """The log has no ordinary room for the changes, so calls are refused until it has."""
        with self._lock:
            return self.waits and not self.fits

    @property
    def fits(self) -> bool:
        """Whether the log has ordinary room for what is left."""
        return self._pipelines.log.room_bytes() >= self.bytes

    def take_terms(self) -> list[bytes]:
        """The hard states, for the first block; [] for every later one."""
        terms, self._terms = self._terms, []
        self.bytes -= self.terms_bytes
        self.terms_bytes = 0
        return terms

    def take_records(self, bytes_max: int) -> tuple[list[bytes], list[Placed], list[Callable[[], None]]]:
        """What the next block gets: records, with the last of them the entries, and the callbacks for when they are durable."""
        records = self.take_terms()
        total = size_of(records)
        while self._records and (not records or total + len(self._records[0]) + RECORD_ALIGN <= bytes_max):
            record = self._records.popleft()
            records.append(record)
            total += len(record) + RECORD_ALIGN
            self.bytes -= len(record) + RECORD_ALIGN
        if self._records:
            return records, [], []
        self.waits, self.tables_wait, self.bytes = False, False, 0
        if not self._entries:
            return records, [], [self._done]
        return records, self._placed(), []

    def _placed(self) -> list[Placed]:
        """The entries; entries become durable in order, so the last one speaks for all."""
        last = len(self._entries) - 1
        dones: list[Done] = [lambda _reply: None] * last + [lambda _reply: self._done()]
        return [(partition, (kind, value, done)) for (partition, kind, value), done in zip(self._entries, dones, strict=True)]


def size_of(records: Sequence[bytes]) -> int:
    """At most what the records take in a block's body."""
    return sum([len(record) + RECORD_ALIGN for record in records])
