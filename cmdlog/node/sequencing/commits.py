"""What becomes of batches when they are written, and when they are committed: they go to their sites, callers are answered.

One rule: who decides that a batch is committed says so once per batch, in the order of its partition. On a node that votes alone
it is the log, when the block is durable; in a cluster it is consensus, when a majority has it.
"""

from __future__ import annotations

from collections.abc import Iterable

from cmdlog.node.outcome import CallOutcome, Done, Reply
from cmdlog.node.sequencing.admission import Admission
from cmdlog.node.sequencing.flight import Flight, answer
from cmdlog.node.sequencing.partition_pipeline import PartitionPipeline
from cmdlog.node.sequencing.pipeline_set import PipelineSet
from cmdlog.node.sequencing.read_requests import ReadRequests
from cmdlog.node.telemetry.stage_timings import StageTimings


class DueAnswers:
    """Callers who are to be answered once the lock is free."""

    __slots__ = ("_flights", "_replies")

    def __init__(self) -> None:
        self._flights: list[Flight] = []
        self._replies: list[tuple[Done, Reply]] = []

    def add_flight(self, flight: Flight) -> None:
        """Its site has answered; it was waiting for its commit alone."""
        self._flights.append(flight)

    def add(self, done: Done, reply: Reply) -> None:
        self._replies.append((done, reply))

    def extend(self, replies: Iterable[tuple[Done, Reply]]) -> None:
        self._replies += replies

    def give(self) -> None:
        """Answers them; not under a lock."""
        for flight in self._flights:
            answer(flight, flight.outcomes, lax=False if flight.lax_calls else None)
        for done, reply in self._replies:
            done(reply)


class Commits:
    """Under the lock of the pipelines."""

    def __init__(self, pipelines: PipelineSet, admission: Admission, reads: ReadRequests, meter: StageTimings) -> None:
        self._pipelines, self._admission, self._reads, self._meter = pipelines, admission, reads, meter
        self.settling = 0  # batches that a site has answered, and somebody waits until they are committed

    def note_executed(self) -> None:
        """A site has answered a batch whose commit somebody waits for."""
        self.settling += 1

    def forget_all(self) -> None:
        """Nobody waits any more."""
        self.settling = 0

    def run_ahead(self, flights: Iterable[tuple[PartitionPipeline, Flight]], now: float) -> None:
        """These batches are written, and may go to their sites before they are committed; all before them may, too."""
        for stream, flight in flights:
            flight.make_ready(now)
            self._pipelines.pump(stream, now)

    def commit(self, flights: Iterable[tuple[PartitionPipeline, Flight]], now: float) -> DueAnswers:
        """These batches are committed: each partition's in order, and none left out."""
        due, streams = DueAnswers(), dict[int, PartitionPipeline]()
        for stream, flight in flights:
            streams[stream.partition] = stream
            if stream.make_durable(flight, now):
                due.add_flight(flight)
                self._answer_executed(flight, now)
            if flight.on_durable is not None and not self._pipelines.ended:
                due.add(flight.on_durable, CallOutcome(0, flight.txn_ids[0], b""))
        for stream in streams.values():
            self._pipelines.pump(stream, now)
            if stream.held:
                due.extend(self._reads.release(stream))
        return due

    def _answer_executed(self, flight: Flight, now: float) -> None:
        """It was executed before it was committed, and now it is: the others of its calls are answered."""
        self._meter.settled(flight, now)
        self._admission.release_rest(flight)
        self.settling -= 1
