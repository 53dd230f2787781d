"""What the log is fed with, and what becomes of it when it is written, durable and committed.

One rule: one thread takes at a time, in the log's turn; blocks are written and durable in the order in which they were taken. Who
decides that a batch is committed says so once per batch, in the order of its partition: on a node that votes alone the log, when
the block is durable; in a cluster consensus, when a majority has it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from cmdlog.node.outcome import CallOutcome, Done
from cmdlog.node.sequencing.block_builder import BlockBuilder, ControlRecords, Note, NoteDone, Opening, Taken, size_of
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


TakenBlock = tuple[Taken, list[NoteDone]]
"""What one `take_records` handed to the log: its flights, and what is called when it is durable."""
DueAnswers = list[partial[None]]
"""Answers, to be given once the lock is free."""


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
        self.notes = ControlRecords(room_bytes=pipelines.log.notes_room_bytes, kept_bytes=pipelines.log.kept_bytes)
        self.written_block, self.votes_alone = start.block, start.votes_alone
        self.blocks = 0  # taken so far
        self.waits = False  # a caller waits until what was taken last is durable
        self.lax = False  # some of its calls do not
        self._taken: deque[TakenBlock] = deque()  # from `take_records` until `durable`
        self._unwritten: deque[Taken] = deque()  # from `take_records` until `written`
        self._marked = self._streams.values() if start.votes_alone else ()  # whose commit this node states by itself
        self._marks_bytes = len(self._streams) * BATCH_OVERHEAD_BYTES

    # -- the log ---------------------------------------------------------------------------------------------------------

    def take_records(self, bytes_max: int) -> Sequence[bytes]:
        """Closes, numbers and encodes the next block's batches; every call's TxnId is given here."""
        with self._lock:
            now, opening, notes, builder = self._pipelines.now(), self._opening, self.notes, self._builder
            if opening.waits:
                self._admission.let_go()
                # What the start adds comes before any call. Without room for it nothing is taken: snapshots make room.
                if not opening.fits:
                    return ()
                if records := self._take_opening(bytes_max, now):
                    return records
            room = bytes_max - self._marks_bytes - opening.terms_bytes
            riders, riders_bytes = notes.take_records(room) if notes.waiting else ([], 0)
            taken, closed_bytes = builder.close_batches(room - riders_bytes, now)
            # Either the block was too short for what is left, which the next one gets, or sites have as many batches as they may:
            # then what is left waits for an answer of theirs, and is not announced to the log until then.
            more = builder.short or (bool(self._busy) and builder.step_is_next())
            self._admission.end_take(closed_bytes, bytes_max, holds_rest=not more)
            # A block is made for batches; for control records alone in two cases: they are due because the node is idle, or
            # they took the room that the first batch needs, and must be out of its way.
            if not taken and not (notes.due and notes.fit) and not (riders and builder.short):
                notes.put_back(riders)
                return ()
            due = notes.due or notes.waiting or now >= notes.marks_due_at
            marks = notes.end_block(self._marked, builder.closed_txn(), now) if due else []
            if not (taken or riders or marks):
                return ()
            records = opening.take_terms() if opening.terms_bytes else []
            self._hand_over(records, taken, riders, [])
            records += marks
        if more or notes.due:
            self._pipelines.wake_log()
        return records

    def _take_opening(self, bytes_max: int, now: float) -> list[bytes]:
        """Of what the start adds, what the next block takes; entries follow the last record, and come before any call.

        They share its block where there is room: then the log has the code with its tables, or neither.
        """
        records, entries, dones = self._opening.take_records(bytes_max)
        for partition, entry in entries:
            self._busy[partition] = stream = self._streams[partition]
            stream.entries.append(entry)
        if not records:
            return []
        taken, room = Taken(), bytes_max - size_of(records)
        for stream in self._busy.values():
            room = self._builder.take_entries(stream, taken, room, now, first=False)
        self._admission.end_take(0, bytes_max, holds_rest=False)
        self._hand_over(records, taken, (), dones)
        if self._opening.waits or len(taken) < len(entries):
            self._pipelines.wake_log()
        return records

    def _hand_over(self, records: list[bytes], taken: Taken, riders: Sequence[Note], dones: list[NoteDone]) -> None:
        """The log gets a block of them; their records come after those that are there."""
        strict = lax = False
        for _, flight in taken:
            records.append(flight.record)
            strict, lax = strict or flight.strict, lax or flight.lax_calls > 0
        for record, done in riders:
            records.append(record)
            if done is not None:
                dones.append(done)
        self.blocks += 1
        self.waits, self.lax = strict or bool(dones), lax
        self._taken.append((taken, dones))
        self._unwritten.append(taken)

    def written(self, block: int) -> None:
        """The oldest taken block is in the page cache."""
        with self._lock:
            self.written_block = block
            ready_at = self._pipelines.now() if self.votes_alone else None  # else its place may go to another batch
            for stream, flight in self._unwritten.popleft():
                flight.write(block, ready_at)
                if ready_at is not None:
                    self._pipelines.pump(stream, ready_at)

    def durable(self, block: int) -> None:
        """The oldest taken block survives power loss: committed, if this node is the only voter."""
        now = self._pipelines.now()
        with self._lock:
            taken, dones = self._taken.popleft()
            due = self.commit(taken, now) if self.votes_alone else []
        for give in due:
            give()
        for note_done in dones:
            note_done()

    def failed(self, error: BaseException) -> None:
        """The log is wedged."""
        self._failed(error)

    @property
    def pending_bytes(self) -> int:
        """The ring looks at it to close a block, or to move on."""
        return self._admission.pending_bytes

    # -- control records -------------------------------------------------------------------------------------------------

    def add_record(self, record: bytes, done: NoteDone | None = None) -> None:
        """A control record for the next block; `done` is called once that is durable."""
        with self._lock:
            self.notes.waiting.append((record, done))

    @property
    def notes_fit(self) -> bool:
        """Whether the log has room for notes; what is left then is kept for skips."""
        return not self._opening.waits and self.notes.fit

    def when_taken_is_durable(self, done: NoteDone) -> None:
        """Calls `done`, maybe at once, when every block that the log has taken so far is durable."""
        with self._lock:
            taken = bool(self._taken)
            if taken:
                self._taken[-1][1].append(done)
        if taken:
            self._pipelines.log.hasten()
        else:
            done()

    def flush_notes(self) -> None:
        """Gives notes a block of their own unless calls bring one; called when the node is idle."""
        with self._lock:
            due = self.notes.find_due(self._marked) or self._opening.waits
        if due:
            self._pipelines.wake_log()

    # -- commits, under the lock -----------------------------------------------------------------------------------------

    def commit(self, flights: Iterable[tuple[PartitionPipeline, Flight]], now: float) -> DueAnswers:
        """These batches are committed: each partition's in order, and none left out."""
        due, pipelines = DueAnswers(), self._pipelines
        for stream, flight in flights:
            if stream.make_durable(flight, now):  # it was executed before: the others of its calls are answered
                due.append(partial(answer, flight, flight.outcomes, lax=False if flight.lax_calls else None))
                self._meter.finish(flight, stream.partition, durable_at=now)
                self._admission.release_rest(flight)
            if flight.on_durable is not None and not pipelines.ended:
                due.append(partial(flight.on_durable, CallOutcome(0, flight.txn_ids[0], b"")))
            if stream.unsent:
                pipelines.pump(stream, now)
            if stream.held:
                due += self._reads.release(stream)
        return due

    @property
    def settling(self) -> bool:
        """A site has answered a batch, and a caller waits until it is committed."""
        return any(flight.stage is EXECUTED for taken, _ in self._taken for _, flight in taken)

    def drop_callers(self) -> tuple[list[Done], list[int]]:
        """Who waits for blocks that the log has taken, and is answered by other means; procedures of what was executed."""
        flights = [flight for taken, _ in self._taken for _, flight in taken]
        executed = [flight for flight in flights if flight.stage is EXECUTED]
        procedures = [procedure for flight in executed for procedure in flight.of_waiting(flight.procedures)]
        return [done for flight in flights for done in flight.drop_callers()], procedures
