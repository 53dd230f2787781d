"""What the log is fed with, and what becomes of it when it is written, durable and committed.

One rule: one thread takes at a time, in the log's turn; blocks are written and durable in the order in which they were taken. Who
decides that a batch is committed says so once per batch, in the order of its partition: on a node that votes alone the log, when
the block is durable; in a cluster consensus, when a majority has it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cmdlog.node.outcome import CallOutcome, Done, Reply
from cmdlog.node.sequencing.block_builder import BlockBuilder, ControlRecords, Opening, Taken, size_of
from cmdlog.node.sequencing.flight import BATCH_OVERHEAD_BYTES, EXECUTED, Flight, answer
from cmdlog.node.sequencing.intake import Admission
from cmdlog.node.sequencing.partition_pipeline import PartitionPipeline, PipelineSet
from cmdlog.node.sequencing.read_requests import ReadRequests
from cmdlog.node.telemetry.stage_timings import StageTimings


@dataclass(frozen=True, slots=True)
class SequencerStart:
    """Where a start begins: its catalog, the newest block in the log, and the hard states of its terms."""

    catalog: int
    block: int
    terms: Sequence[bytes] = ()
    votes_alone: bool = True  # what is durable here is committed


@dataclass(slots=True)
class TakenBlock:
    """What one `take` handed to the log."""

    flights: Taken
    note_dones: list[Callable[[], None]]

    def mark_taken(self, now: float) -> tuple[bool, bool]:
        """The log has it now; whether some wait until it is durable, and whether some do not."""
        waits, lax = bool(self.note_dones), False
        for _, flight in self.flights:
            flight.mark_taken(now)
            waits, lax = waits or flight.strict, lax or flight.lax_calls > 0
        return waits, lax

    def drop(self) -> tuple[list[Done], list[int]]:
        """Who waits until it is durable, for entries and for the answers of batches that were executed; their procedures."""
        executed = [flight for _, flight in self.flights if flight.stage is EXECUTED]
        procedures = [procedure for flight in executed for procedure in flight.of_waiting(flight.procedures)]
        return [done for _, flight in self.flights for done in flight.drop_callers()], procedures


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


class LogFeed:
    """`cmdlog.wal.writing.watermarks.RecordSource`. Thread-safe, by the lock of the pipelines."""

    def __init__(
        self,
        pipelines: PipelineSet,
        *,
        builder: BlockBuilder,
        admission: Admission,
        opening: Opening,
        reads: ReadRequests,
        start: SequencerStart,
        meter: StageTimings,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._pipelines, self._builder, self._admission, self._opening = pipelines, builder, admission, opening
        self._lock, self._streams, self._busy = pipelines.lock, pipelines.by_partition, pipelines.busy
        self._reads, self._meter, self._failed = reads, meter, failed
        self._notes = ControlRecords(room_bytes=pipelines.log.notes_room_bytes)
        self.written_block, self.votes_alone = start.block, start.votes_alone
        self.blocks = 0  # taken so far
        self.waits = False  # a caller waits until what was taken last is durable
        self.lax = False  # some of its calls do not
        self.settling = 0  # batches that a site has answered, and a caller waits until they are committed
        self._taken: deque[TakenBlock] = deque()  # from `take_records` until `durable`
        self._unwritten: deque[TakenBlock] = deque()  # from `take_records` until `written`

    # -- the log ---------------------------------------------------------------------------------------------------------

    def take_records(self, bytes_max: int) -> Sequence[bytes]:
        """Closes, numbers and encodes the next block's batches; every call's TxnId is given here."""
        with self._lock:
            admission, opening, notes = self._admission, self._opening, self._notes
            admission.let_go()
            # What the start adds comes before any call. Without room for it nothing is taken: snapshots make room.
            if opening.waits and not opening.fits:
                return ()
            if opening.waits and (records := self._take_opening(bytes_max)):
                return records
            room = bytes_max - len(self._streams) * BATCH_OVERHEAD_BYTES - opening.terms_bytes
            riders = notes.take_records(room)
            builder = self._builder
            taken, closed_bytes = builder.close_batches(room - size_of([record for record, _ in riders]))
            admission.count_closed(closed_bytes)
            # Either the block was too short for what is left, which the next one gets, or sites have as many batches as they may:
            # then what is left waits for an answer of theirs, and is not announced to the log until then.
            more = builder.short or (bool(self._busy) and builder.step_is_next())
            if not more:
                admission.hold_rest()
            # A block is made for batches; for control records alone in two cases: they are due because the node is idle, or
            # they took the room that the first batch needs, and must be out of its way.
            if not taken and not notes.wanted and not (riders and builder.short):
                notes.put_back(riders)
                return ()
            records = [flight.record for _, flight in taken] + [record for record, _ in riders]
            records += notes.commit_marks(self._own_marks(), closed=builder.closed_txn())
            notes.taken()
            if not records:
                return ()
            records = opening.take_terms() + records
            self._hand_over(taken, [done for _, done in riders if done is not None], bytes_max)
        if more or notes.due:
            self._pipelines.wake_log()
        return records

    def _take_opening(self, bytes_max: int) -> list[bytes]:
        """Of what the start adds, what the next block takes; entries follow the last record, and come before any call.

        They share its block where there is room: then the log has the code with its tables, or neither.
        """
        records, entries, dones = self._opening.take_records(bytes_max)
        for partition, entry in entries:
            self._busy[partition] = stream = self._streams[partition]
            stream.entries.append(entry)
        if not records:
            return []
        taken = self._builder.take_entries(bytes_max - size_of(records), first=False)
        self._hand_over(taken, dones, bytes_max)
        if self._opening.waits or len(taken) < len(entries):
            self._pipelines.wake_log()
        return [*records, *(flight.record for _, flight in taken)]

    def _hand_over(self, taken: Taken, note_dones: list[Callable[[], None]], bytes_max: int) -> None:
        """The log gets a block of them."""
        self.blocks += 1
        self._admission.took(bytes_max)
        block = TakenBlock(taken, note_dones)
        self.waits, self.lax = block.mark_taken(self._pipelines.now())
        self._taken.append(block)
        self._unwritten.append(block)

    def written(self, block: int) -> None:
        """The oldest taken block is in the page cache."""
        with self._lock:
            self.written_block = block
            flights = self._unwritten.popleft().flights
            for _, flight in flights:
                flight.write(block)
            if self.votes_alone:  # no other node may give its place to another batch
                self.run_ahead(flights, self._pipelines.now())

    def durable(self, block: int) -> None:
        """The oldest taken block survives power loss: committed, if this node is the only voter."""
        now = self._pipelines.now()
        with self._lock:
            taken = self._taken.popleft()
            due = self.commit(taken.flights if self.votes_alone else (), now)
        due.give()
        for note_done in taken.note_dones:
            note_done()

    def failed(self, error: BaseException) -> None:
        """The log is wedged."""
        self._failed(error)

    @property
    def pending_bytes(self) -> int:
        """The ring looks at it to close a block, or to move on."""
        return self._admission.pending_bytes

    # -- control records -------------------------------------------------------------------------------------------------

    def add_record(self, record: bytes, done: Callable[[], None] | None = None) -> None:
        """A control record for the next block; `done` is called once that is durable."""
        with self._lock:
            self._notes.put(record, done)

    @property
    def notes_fit(self) -> bool:
        """Whether the log has room for notes; what is left then is kept for skips."""
        return not self._opening.waits and self._notes.fit

    def when_taken_is_durable(self, done: Callable[[], None]) -> None:
        """Calls `done`, maybe at once, when every block that the log has taken so far is durable."""
        with self._lock:
            taken = bool(self._taken)
            if taken:
                self._taken[-1].note_dones.append(done)
        if taken:
            self._pipelines.log.hasten()
        else:
            done()

    def flush_notes(self) -> None:
        """Gives notes a block of their own unless calls bring one; called when the node is idle."""
        with self._lock:
            due = self._notes.find_due(self._own_marks()) or self._opening.waits
        if due:
            self._pipelines.wake_log()

    # -- commits, under the lock -----------------------------------------------------------------------------------------

    def note_executed(self) -> None:
        """A site has answered a batch whose commit a caller waits for."""
        self.settling += 1

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

    def drop_callers(self) -> tuple[list[Done], list[int]]:
        """Who waits for blocks that the log has taken, and is answered by other means; the procedures of their calls."""
        self.settling = 0
        dropped = [block.drop() for block in self._taken]
        return [done for dones, _ in dropped for done in dones], [number for _, numbers in dropped for number in numbers]

    def _own_marks(self) -> Iterable[PartitionPipeline]:
        """The streams whose commit this node states by itself."""
        return self._streams.values() if self.votes_alone else ()
