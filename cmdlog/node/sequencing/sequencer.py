"""The sequencer: gives every call its place, closes batches, and hands batches to the sites in order.

One rule: all state here belongs to one lock; nothing slow happens under it, and callers are answered outside it.

A partition's *stream* is a pipeline, each stage first-in first-out:
    open calls -> closed (after a multi-partition step) -> in the log -> written -> at the site -> durable -> answered
                  [Pending]                                 `flights`, one Flight per batch

The log pulls: `take` closes what is open and is called by the one thread that holds the turn, so a batch closes exactly when a
log thread is free (adaptive group commit). A stream with `site_batches_max` flights under way keeps its batch open: when the
site is the bottleneck batches grow instead of queueing.

A multi-partition call is placed in every stream in one step, under the lock, and all its batches go into one block; a
multi-partition read takes the same place without being logged, so it sees all or nothing of any such write
(`cmdlog.node.sequencing.read_requests`).

On a node alone a batch goes to its site as soon as it is written, and is executed while the disk syncs it: a state that is ahead
of the log is discarded at start. What leaves the node waits: the answer of a call until its batch is durable (then all before it
are), and that of a read until everything is durable that its site had been given, since what it read must not be taken back by a
power cut. *Lax* calls and reads do not wait: durability is promised call by call. In a cluster a batch waits for its commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cmdlog.node.clock import HybridClock
from cmdlog.node.outcome import CallRefused, Done, NotReady, UnknownOutcome
from cmdlog.node.sequencing.block_builder import BlockBuilder, Opening
from cmdlog.node.sequencing.intake import Admission, Closed, Intake
from cmdlog.node.sequencing.log_feed import LogFeed, SequencerStart
from cmdlog.node.sequencing.partition_pipeline import Deliver, Limits, LogControls, PartitionPipeline, PipelineSet
from cmdlog.node.sequencing.read_requests import ReadRequests
from cmdlog.node.sequencing.replicated_pipelines import ReplicatedPipelines
from cmdlog.node.sequencing.site_feed import SiteFeed
from cmdlog.node.telemetry.stage_timings import StageTimings
from cmdlog.operator_error import full_text


class Sequencer:
    """The pipelines' faces: `intake` and `reads` for callers, `log_feed` for the log, `site_feed` for the sites. Thread-safe."""

    def __init__(
        self,
        clock: HybridClock,
        streams: Iterable[PartitionPipeline],
        deliver: Deliver,
        log: LogControls,
        *,
        limits: Limits,
        start: SequencerStart,
        meter: StageTimings,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self.meter, self.clock, self._on_failure = meter, clock, on_failure
        pipelines = self._pipelines = PipelineSet(streams, deliver, log, now=meter.now, proposes=start.votes_alone)
        self._lock, self._streams = pipelines.lock, pipelines.by_partition
        admission = self.admission = Admission(limits, room_bytes=log.room_bytes, why_full=log.why_full)
        builder = BlockBuilder(pipelines, limits, clock, catalog=start.catalog, names_places=not start.votes_alone)
        self.opening = Opening(start.terms, pipelines)
        self.reads = ReadRequests(pipelines, admission, self.opening, meter)
        self.intake = Intake(pipelines, admission=admission, builder=builder, opening=self.opening)
        self.log_feed = LogFeed(
            pipelines, builder=builder, admission=admission, opening=self.opening, reads=self.reads, start=start, meter=meter,
            failed=self.failed,
        )  # fmt: skip
        self.site_feed = SiteFeed(pipelines, log_feed=self.log_feed, admission=admission, reads=self.reads, meter=meter)
        self.replicated = ReplicatedPipelines(pipelines, self.log_feed, admission, builder, self.reads)

    def failed(self, error: BaseException) -> None:
        """The node cannot continue: calls under way are answered `outcome_unknown`, and none is accepted from now on."""
        why = full_text(error)
        if self.abandon(NotReady(f"the node must be restarted: {why}"), f"the node failed during the call: {why}"):
            self._on_failure(error)

    def abandon(self, refusal: CallRefused, why: str) -> bool:
        """Answers all waiting callers `outcome_unknown`, and refuses calls from now on; False if that was done before."""
        with self._lock:
            if not self._pipelines.end():
                return False
            self.admission.close(Closed.NODE, refusal)
            dones = self._drop_all()
            self.admission.clear()
        unknown = UnknownOutcome(why)
        for done in dones:
            done(unknown)
        return True

    @property
    def idle(self) -> bool:
        """Nothing is open, on its way to a site, at one, or waiting to be durable."""
        with self._lock:
            under_way = any(s.flights or s.open.rows or s.closed or s.entries for s in self._streams.values())
            return not (under_way or self.reads.under_way or self.log_feed.settling)

    def watermarks(self) -> dict[int, dict[str, int]]:
        """Per partition: term, durable, committed and applied index, and calls waiting for a batch."""
        with self._lock:
            return {stream.partition: stream.watermarks() for stream in self._streams.values()}

    def _drop_all(self) -> list[Done]:
        """Under the lock: empties everything; who waits."""
        dones, procedures = self.reads.drop()
        for waiting, of_part in (self.log_feed.drop_callers(), *(stream.drop() for stream in self._streams.values())):
            dones += waiting
            procedures += of_part
        self.meter.unknown(procedures)
        return dones
