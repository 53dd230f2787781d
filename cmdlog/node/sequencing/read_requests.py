"""Read-only calls, from their placing to their answer: they are not logged, and wait for the log all the same.

One rule: what a read has seen must not be taken back by a power cut. So its answer is held until everything is durable that its
site had been given before it. A lax read does not wait.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from functools import partial
from typing import Final

import orjson

from cmdlog.node.outcome import CallOutcome, Done, LogFullRefusal, NotReady, Overloaded, Reply, UnknownOutcome
from cmdlog.node.sequencing.block_builder import Opening
from cmdlog.node.sequencing.flight import Read
from cmdlog.node.sequencing.intake import Admission, Closed
from cmdlog.node.sequencing.partition_pipeline import PartitionPipeline, PipelineSet
from cmdlog.node.sites.site_faults import ReadSuspects, SiteFault
from cmdlog.node.telemetry.stage_timings import StageTimings
from cmdlog.wal.format.record import KIND_OFFSET, RecordKind

LOOK_S: Final = 0.001  # at whether the sites have changed their tables


class ReadRequests:
    """Thread-safe, by the lock of the pipelines; `release`, `lose`, `withdraw` and `drop` are called under it."""

    def __init__(self, pipelines: PipelineSet, admission: Admission, opening: Opening, meter: StageTimings) -> None:
        self._pipelines, self._admission, self._opening, self._meter = pipelines, admission, opening, meter
        self._reads: dict[int, Read] = {}  # by ident, from call to the site's answer
        self._suspects = ReadSuspects()
        self._held = 0  # answers that wait until something is durable

    @property
    def under_way(self) -> int:
        """How many are not answered."""
        return len(self._reads) + self._held

    def place(
        self, partition: int, ident: int, calls: bytes, done: Done, *, procedure: int, lax: bool, stale: bool = False
    ) -> None:
        """Sends a read after everything the site was given: it sees every write that was acknowledged.

        One that is `stale` is also sent where calls are refused, as by a node that does not lead.
        """
        pipelines = self._pipelines
        now = pipelines.now()
        with pipelines.lock:
            pipeline = pipelines.by_partition[partition]
            self._admit(pipeline, stale=stale)
            read = self._reads[ident] = Read(ident, partition, procedure, calls, done, lax, now, pipeline.sent_index)
            pipelines.send_read(read)

    def place_everywhere(self, idents: Sequence[int], calls: bytes, dones: Sequence[Done], *, lax: bool) -> None:
        """Leaves a read at one place of the common order in every pipeline; each site answers for its partition."""
        pipelines = self._pipelines
        now = pipelines.now()
        with pipelines.lock:
            self._admission.raise_closed(Closed.MAJORITY)  # the read would wait for what is not committed
            for pipeline in pipelines.by_partition.values():
                self._admit(pipeline)
                if pipeline.halted:  # the read would wait for what is held back
                    self._admission.raise_closed_partition(pipeline.partition)
            for pipeline, ident, done in zip(pipelines.by_partition.values(), idents, dones, strict=True):
                read = self._reads[ident] = Read(ident, pipeline.partition, -1, calls, done, lax, now)
                pipeline.close_open()
                pipeline.closed.append(read)
                pipelines.busy[pipeline.partition] = pipeline
                pipelines.pass_reads(pipeline)
        pipelines.wake_log()

    def oldest_procedure(self, partition: int) -> int | None:
        """Number of the procedure of the read that the partition's site has had for longest; None when it has none."""
        with self._pipelines.lock:
            read = next((read for read in self._reads.values() if read.partition == partition), None)
        return None if read is None else _procedure_of(read)

    def find_culprit(self, fault: SiteFault) -> int | None:
        """Number of the procedure of the read that ended its site; None when there is none, or its answer came before the end."""
        with self._pipelines.lock:
            read = self._reads.get(fault.read)
            if read is None or not self._suspects.is_to_blame(fault, read.partition, read.calls):
                return None
            return _procedure_of(read)

    def answered(self, ident: int, reply: Reply) -> None:
        """The site has served a read, or the read has ended it."""
        now = self._pipelines.now()
        with self._pipelines.lock:
            if self._pipelines.ended:
                return
            read = self._reads.pop(ident)
            if isinstance(reply, CallOutcome) and not reply.status:
                self._suspects.acquit(read.partition, read.calls)
            if read.procedure >= 0 and isinstance(reply, CallOutcome):
                self._meter.reads.add(now - read.placed_at)
                self._meter.count((read.procedure,), (reply.status,))
            held = not read.lax and self._hold(read.after, read.partition, read.done, reply)
        if not held:
            read.done(reply)

    def when_durable(self, partition: int, done: Done) -> None:
        """Calls `done`, maybe at once, when everything is durable that the partition's site has been given so far."""
        pipelines = self._pipelines
        with pipelines.lock:
            reply: Reply = UnknownOutcome("the node has failed") if pipelines.ended else CallOutcome(0, 0, b"")
            held = not pipelines.ended and self._hold(pipelines.by_partition[partition].sent_index, partition, done, reply)
        if not held:
            done(reply)

    def wait_for_tables(self, partition: int | None, timeout_s: float) -> None:
        """A query reads states, which tables that a start or a deploy has just put into the log are still on their way to.

        `partition`: None for all. Blocking, for so long at most: a site may be down. Not where it cannot run what it is given.
        """
        deadline = time.monotonic() + timeout_s
        while self._tables_change(partition) and time.monotonic() < deadline:
            time.sleep(LOOK_S)

    def wait_until_durable(self, partition: int | None) -> None:
        """What a query has read may have been executed ahead of the disk, and must not be returned before it cannot be lost.

        `partition`: None for all. Raises: NotReady, when the node fails meanwhile.
        """
        for each in tuple(self._pipelines.by_partition) if partition is None else (partition,):
            replied: queue.SimpleQueue[Reply] = queue.SimpleQueue()
            self.when_durable(each, replied.put)
            if isinstance(replied.get(), UnknownOutcome):
                raise NotReady("the node failed while the query waited for what it had read to become durable")

    def release(self, pipeline: PartitionPipeline) -> list[partial[None]]:
        """Removes the answers whose batches are durable, and returns what gives them."""
        released: list[partial[None]] = []
        while pipeline.held and pipeline.held[0][0] <= pipeline.durable_index:
            _, done, reply = pipeline.held.popleft()
            released.append(partial(done, reply))
        self._held -= len(released)
        return released

    def lose(self, partition: int, culprit: int) -> list[Done]:
        """The site is gone: who waited for its answer. Repeating a read is safe, but for the one that ended the site."""
        lost = [ident for ident, read in self._reads.items() if read.partition == partition and ident != culprit]
        return [self._reads.pop(ident).done for ident in lost]

    def withdraw(self) -> list[Done]:
        """Forgets the reads that no site was given yet; who waits for them."""
        waiting = [read for pipeline in self._pipelines.by_partition.values() for read in pipeline.withdraw_reads()]
        return [self._reads.pop(read.ident).done for read in waiting]

    def drop(self) -> tuple[list[Done], list[int]]:
        """Forgets all; who waits for an answer, and the procedures of the reads that are counted one by one."""
        reads = list(self._reads.values())
        self._reads.clear()
        self._held = 0
        return [read.done for read in reads], [read.procedure for read in reads if read.procedure >= 0]

    def _tables_change(self, partition: int | None) -> bool:
        with self._pipelines.lock:
            streams = [s for s in self._pipelines.by_partition.values() if partition in (None, s.partition) and not s.halted]
            return any(flight.record[KIND_OFFSET] == RecordKind.SCHEMA for stream in streams for flight in stream.flights)

    def _admit(self, pipeline: PartitionPipeline, *, stale: bool = False) -> None:
        admission = self._admission
        if not stale:
            admission.raise_refusal()
        elif self._pipelines.ended:
            raise NotReady("the node has failed, or is stopped")
        else:
            admission.raise_closed(Closed.MIGRATION)  # its procedure may no longer suit the tables
        if self._opening.tables_wait:
            raise LogFullRefusal(f"the tables of this version wait for room: {admission.why_full()}")
        if not pipeline.up:
            admission.raise_closed_partition(pipeline.partition)
            raise NotReady(f"partition {pipeline.partition} is being restored")
        if len(self._reads) >= admission.limits.inflight_calls_max:
            raise Overloaded(f"{len(self._reads)} reads are in flight")

    def _hold(self, index: int, partition: int, done: Done, reply: Reply) -> bool:
        """Keeps the reply until the batch is durable, and has the log make haste; False when it is."""
        pipeline = self._pipelines.by_partition[partition]
        if pipeline.durable_index >= index:
            return False
        pipeline.held.append((index, done, reply))
        self._held += 1
        self._pipelines.log.hasten()
        return True


def _procedure_of(read: Read) -> int:
    return int(orjson.loads(read.calls)[0][0])
