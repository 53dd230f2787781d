"""What goes into the next block: what the start adds, open calls as batches, and control records that ride along.

One rule: under the sequencer's lock, in the log's turn, and in a stated order: control entries first, then every stream's
batches, then at most one multi-partition call, in all streams or in none; control records take what they leave.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import orjson

from cmdlog.node.clock import HybridClock
from cmdlog.node.outcome import Done
from cmdlog.node.sequencing.flight import (
    BATCH_OVERHEAD_BYTES,
    CALL_OVERHEAD_BYTES,
    Flight,
    MultiPartitionStep,
    Pending,
)
from cmdlog.node.sequencing.partition_pipeline import Limits, PartitionPipeline, PipelineSet
from cmdlog.wal.format.block import HEADER, RECORD_ALIGN, SECTOR_BYTES
from cmdlog.wal.format.call_places import places_bytes_max
from cmdlog.wal.format.record import RecordKind, encode_commit_mark
from cmdlog.wal.ids import MULTI_PARTITION, TxnId

MARKS_EVERY_S: Final = 0.05  # commit marks and closed TxnIds of all streams, while the log is written

Taken = list[tuple[PartitionPipeline, Flight]]
NoteDone = Callable[[], None]
Note = tuple[bytes, NoteDone | None]  # a control record, and what is called when it is durable
Entry = tuple[int, RecordKind, dict[str, Any]]  # partition, kind and value of a control entry
Placed = tuple[int, tuple[RecordKind, dict[str, Any], Done]]  # partition, and the entry as its stream keeps it


class BlockBuilder:
    """Takes from the pipelines that are busy."""

    def __init__(self, pipelines: PipelineSet, limits: Limits, clock: HybridClock, *, catalog: int, names_places: bool) -> None:
        """`names_places`: other nodes vote, so each group commits by itself, and a call on all partitions names its entries."""
        self.short = False  # the last `take` left something for want of room in its block
        self._pipelines, self._streams, self._busy = pipelines, pipelines.by_partition, pipelines.busy
        self._limits, self._clock, self.catalog, self._names_places = limits, clock, catalog, names_places
        places_bytes = places_bytes_max(len(self._streams)) if names_places else 0
        self.step_overhead_bytes = (BATCH_OVERHEAD_BYTES + places_bytes) * len(self._streams)  # of a call on all partitions

    def run_catalog(self, version: int) -> None:
        """Batches from now on run this version of the code."""
        self.catalog = version

    def reserve_tick(self) -> int:
        """A tick of its own."""
        return self._clock.reserve(1)

    def closed_txn(self) -> TxnId:
        """No later call gets a TxnId up to it."""
        return self._clock.closed()

    def close_batches(self, bytes_max: int, now: float) -> tuple[Taken, int]:
        """What the block of this size gets, and how many bytes of calls (`Pending.size_bytes`) that closes."""
        taken: Taken = []
        room, closed_bytes, flights_max, self.short = bytes_max, 0, self._limits.site_batches_max, False
        for stream in self._busy.values():
            if stream.entries:
                room = self.take_entries(stream, taken, room, now)
        for stream in list(self._busy.values()):
            while (stream.open.rows or stream.closed) and not stream.entries and len(stream.flights) < flights_max:
                ended_bytes = stream.ended_bytes if stream.ended else 0
                if (pending := self._next_pending(stream, room - ended_bytes)) is None:
                    break  # what is next does not fit, or is not the partition's alone
                room -= pending.size_bytes + BATCH_OVERHEAD_BYTES + ended_bytes
                closed_bytes += pending.size_bytes
                first = self._clock.reserve(len(pending.rows))
                taken.append((stream, stream.launch(pending, tick=first, bits=stream.partition, catalog=self.catalog, now=now)))
            if not stream.open.rows and not stream.closed and not stream.entries:
                del self._busy[stream.partition]
        if self._busy and self.step_is_next():
            closed_bytes += self._take_step(taken, room, now)
        return taken, closed_bytes

    def take_entries(self, stream: PartitionPipeline, taken: Taken, room: int, now: float, *, first: bool = True) -> int:
        """Adds its control entries to what is taken, before any batch: batches take what room is left, which is returned.

        The `first` of a block are taken whatever room there is.
        """
        while stream.entries:
            if (taken or not first) and stream.next_entry_bytes > room:
                self.short = True
                break
            taken.append((stream, stream.launch_entry(tick=self._clock.reserve(1), now=now)))
            room -= len(taken[-1][1].record) + RECORD_ALIGN
        return room

    def step_is_next(self) -> bool:
        """Whether every stream has come to a multi-partition call, which is then the same one in all of them."""
        for stream in self._streams.values():
            head = stream.closed[0] if stream.closed and not stream.entries else None
            if not isinstance(head, Pending) or not head.everywhere or len(stream.flights) >= self._limits.site_batches_max:
                return False
        return True

    def _take_step(self, taken: Taken, room: int, now: float) -> int:
        """The multi-partition call that every stream has come to, in all of them, if the block has room for it."""
        heads = [stream.closed[0] for stream in self._streams.values()]
        if sum(head.size_bytes for head in heads if isinstance(head, Pending)) + self.step_overhead_bytes > room:
            self.short = True
            return 0
        tick, step, closed_bytes = self._clock.reserve(1), MultiPartitionStep(), 0
        places = [stream.next_place for stream in self._streams.values()] if self._names_places else []
        for stream in self._streams.values():
            call = stream.closed.popleft()
            assert isinstance(call, Pending)
            closed_bytes += call.size_bytes
            flight = stream.launch(call, tick=tick, bits=MULTI_PARTITION, catalog=self.catalog, now=now, places=places)
            flight.join_step(step, stream.partition)
            taken.append((stream, flight))
            self._pipelines.pass_reads(stream)
            self.short = self.short or bool(stream.open.rows or stream.closed)
        return closed_bytes

    def _next_pending(self, stream: PartitionPipeline, room: int) -> Pending | None:
        """The next single-partition batch of the stream that fits, removed from it; None when there is none now."""
        if stream.closed:
            self._pipelines.pass_reads(stream)
        source = stream.closed[0] if stream.closed else stream.open
        if not isinstance(source, Pending) or source.everywhere or not source.rows:
            return None
        limits = self._limits
        bytes_max = room if room < limits.batch_bytes_max else limits.batch_bytes_max
        if source.size_bytes <= bytes_max and len(source.rows) <= limits.batch_calls_max:
            if stream.closed:
                stream.closed.popleft()
                self._pipelines.pass_reads(stream)
            else:
                stream.take_open()
            return source
        if len(source.rows[0][2]) + CALL_OVERHEAD_BYTES > room:
            self.short = True
            return None
        return source.split(limits.batch_calls_max, bytes_max)


class ControlRecords:
    """What rides along: digests, snapshot marks and commit marks. `due` asks for a block though no calls bring one.

    They cost no sync of their own while calls bring blocks; an idle node gives them one.
    """

    __slots__ = ("_kept_bytes", "_room_bytes", "due", "marks_due_at", "waiting")

    def __init__(self, *, room_bytes: Callable[[], int], kept_bytes: int) -> None:
        self._room_bytes = room_bytes  # that the log has for them: they never take the last of its reserve
        self._kept_bytes = kept_bytes  # of the log's room, for others
        self.waiting: deque[Note] = deque()
        self.marks_due_at = 0.0  # though nothing else is due
        self.due = False

    @property
    def fit(self) -> bool:
        """Whether the log has room for a block of them."""
        return self._room_bytes() >= SECTOR_BYTES

    def find_due(self, streams: Iterable[PartitionPipeline]) -> bool:
        """Whether anything has to be written to the log; it is `due` then."""
        self.due = bool(self.waiting) or any(stream.marked_index < stream.durable_index for stream in streams)
        return self.due

    def take_records(self, block_bytes: int) -> tuple[list[Note], int]:
        """Those for the next block, in half of its room, or one in all of it, and their size; the rest follows in a block after.

        One that the rest of the segment is too short for waits: nothing that could wait for a free segment is taken.
        """
        taken, total = list[Note](), 0
        first_bytes, room_bytes = len(self.waiting[0][0]), block_bytes - self._kept_bytes - HEADER.bytes
        if first_bytes > room_bytes:  # at the end of a segment: the log knows whether there is another one
            room_bytes = min(block_bytes, self._room_bytes() - HEADER.bytes)
            if first_bytes > room_bytes:
                return taken, total
        bytes_max = min(block_bytes // 2, room_bytes)
        while self.waiting and (not taken or total + len(self.waiting[0][0]) <= bytes_max):
            taken.append(self.waiting.popleft())
            total += len(taken[-1][0]) + RECORD_ALIGN
        return taken, total

    def put_back(self, notes: list[Note]) -> None:
        """The block that they were taken for was not made."""
        self.waiting.extendleft(reversed(notes))

    def end_block(self, streams: Iterable[PartitionPipeline], closed: TxnId, now: float) -> list[bytes]:
        """A block has what was taken; what is left wants the next one. Its commit marks: of every stream, every MARKS_EVERY_S
        while blocks are written, and once more when the node is idle.

        A one-voter group has committed what is durable, so marks add nothing new: they are there for readers of the log.
        """
        due, self.due = self.due, bool(self.waiting)
        if not due and now < self.marks_due_at:
            return []
        self.marks_due_at = now + MARKS_EVERY_S
        marks = []
        for stream in streams:
            stream.mark_committed()
            marks.append(
                encode_commit_mark(partition=stream.partition, term=stream.term, commit=stream.durable_index, closed_txn=closed)
            )
        return marks


class Opening:
    """What a start adds to the log before its first entry. `add` and `waits_for_room` take the lock, all else is called under it.

    It takes ordinary room only. The reserve is for getting out of a full log, and a start that used it up, time after time, would
    leave a log that nothing gets out.

    Hard states (the term of this start) ride in the first block that is written at all: a start that has nothing to say writes
    nothing. *Changes* (code, environment, configuration, tables) get a block of their own as soon as there is room for them, and
    no call is taken before it. Until then the node serves reads with the code it has, and snapshots make room.

    That a term is only raised with the first block is enough for "no index is given twice in one term": the hard state file has
    the term, durable, before that block is written (`Log._settle`), so it is known even when the block is cut.
    """

    def __init__(self, terms: Sequence[bytes], pipelines: PipelineSet) -> None:
        self._pipelines, self._lock = pipelines, pipelines.lock
        self._terms = list(terms)
        self._records: deque[bytes] = deque()
        self._entries: list[Entry] = []
        self._done: NoteDone = lambda: None
        self.waits = False  # changes have been stated, and are not taken yet
        self.tables_wait = False  # some of them are of tables: a procedure cannot read before
        self.terms_bytes = size_of(terms)  # 0 once they are written
        self.bytes = self.terms_bytes  # that the log has to take before any call

    def add(self, records: Sequence[bytes], entries: Sequence[Entry], *, done: NoteDone) -> None:
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

    def take_records(self, bytes_max: int) -> tuple[list[bytes], list[Placed], list[NoteDone]]:
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
