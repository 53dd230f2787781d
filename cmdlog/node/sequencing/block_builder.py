"""What goes into the next block: open calls become batches, with numbers, transaction ids and bytes.

One rule: under the sequencer's lock, in the log's turn, and in a stated order: control entries first, then every stream's
batches, then at most one multi-partition call, in all streams or in none.
"""

from __future__ import annotations

from cmdlog.node.clock import HybridClock
from cmdlog.node.sequencing.flight import (
    BATCH_OVERHEAD_BYTES,
    CALL_OVERHEAD_BYTES,
    Flight,
    MultiPartitionStep,
    Pending,
)
from cmdlog.node.sequencing.partition_pipeline import Limits, PartitionPipeline
from cmdlog.node.sequencing.pipeline_set import PipelineSet
from cmdlog.wal.format.block import RECORD_ALIGN
from cmdlog.wal.format.call_places import places_bytes_max
from cmdlog.wal.ids import MULTI_PARTITION, TxnId

Taken = list[tuple[PartitionPipeline, Flight]]


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

    def close_batches(self, bytes_max: int) -> tuple[Taken, int]:
        """What the block of this size gets, and how many bytes of calls (`Pending.size_bytes`) that closes."""
        taken = self.take_entries(bytes_max)
        room = bytes_max - sum([len(flight.record) + RECORD_ALIGN for _, flight in taken])
        closed_bytes, flights_max = 0, self._limits.site_batches_max
        for stream in list(self._busy.values()):
            while (stream.open.params or stream.closed) and not stream.entries and len(stream.flights) < flights_max:
                ended_bytes = stream.ended_bytes if stream.ended else 0
                pending = self._next_pending(stream, room - ended_bytes)
                if pending is None:
                    break
                room -= pending.size_bytes + BATCH_OVERHEAD_BYTES + ended_bytes
                closed_bytes += pending.size_bytes
                first = self._clock.reserve(len(pending.params))
                taken.append((stream, stream.launch(pending, tick=first, bits=stream.partition, catalog=self.catalog)))
            if not stream.open.params and not stream.closed and not stream.entries:
                del self._busy[stream.partition]
        if self._busy and self.step_is_next():
            closed_bytes += self._take_step(taken, room)
        return taken, closed_bytes

    def take_entries(self, bytes_max: int, *, first: bool = True) -> Taken:
        """Control entries, before any batch: these go into one block, and batches take what room is left.

        The `first` of a block are taken whatever room there is.
        """
        taken: Taken = []
        room, self.short = bytes_max, False
        for stream in self._busy.values():
            while stream.entries:
                if (taken or not first) and stream.next_entry_bytes > room:
                    self.short = True
                    break
                taken.append((stream, stream.launch_entry(tick=self._clock.reserve(1))))
                room -= len(taken[-1][1].record) + RECORD_ALIGN
        return taken

    def step_is_next(self) -> bool:
        """Whether every stream has come to a multi-partition call, which is then the same one in all of them."""
        for stream in self._streams.values():
            head = stream.closed[0] if stream.closed and not stream.entries else None
            if not isinstance(head, Pending) or not head.everywhere or len(stream.flights) >= self._limits.site_batches_max:
                return False
        return True

    def _take_step(self, taken: Taken, room: int) -> int:
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
            flight = stream.launch(call, tick=tick, bits=MULTI_PARTITION, catalog=self.catalog, places=places)
            flight.join_step(step, stream.partition)
            taken.append((stream, flight))
            self._pipelines.pass_reads(stream)
            self.short = self.short or bool(stream.open.params or stream.closed)
        return closed_bytes

    def _next_pending(self, stream: PartitionPipeline, room: int) -> Pending | None:
        """The next single-partition batch of the stream that fits, removed from it; None when there is none now."""
        if stream.closed:
            self._pipelines.pass_reads(stream)
        source = stream.closed[0] if stream.closed else stream.open
        if not isinstance(source, Pending) or source.everywhere or not source.params:
            return None
        limits = self._limits
        bytes_max = room if room < limits.batch_bytes_max else limits.batch_bytes_max
        if source.size_bytes <= bytes_max and len(source.params) <= limits.batch_calls_max:
            if stream.closed:
                stream.closed.popleft()
                self._pipelines.pass_reads(stream)
            else:
                stream.take_open()
            return source
        if len(source.params[0]) + CALL_OVERHEAD_BYTES > room:
            self.short = True
            return None
        return source.split(limits.batch_calls_max, bytes_max)
