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

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cmdlog.node.clock import HybridClock
from cmdlog.node.outcome import CallRefused, CallTooLarge, Done, NotReady, UnknownOutcome, when_all
from cmdlog.node.sequencing.admission import Admission
from cmdlog.node.sequencing.block_builder import Closing, Taken
from cmdlog.node.sequencing.code_switch import CodeSwitch
from cmdlog.node.sequencing.commits import Commits
from cmdlog.node.sequencing.control_records import Notes
from cmdlog.node.sequencing.flight import BATCH_OVERHEAD_BYTES, CALL_OVERHEAD_BYTES, CallRow, Pending, RawOutcome, answer
from cmdlog.node.sequencing.halted_partitions import Standstill
from cmdlog.node.sequencing.opening import Opening, size_of
from cmdlog.node.sequencing.partition_pipeline import Deliver, Limits, PartitionPipeline, TakenBlock
from cmdlog.node.sequencing.pipeline_set import LogControls, PipelineSet, group_calls
from cmdlog.node.sequencing.read_requests import ReadRequests
from cmdlog.node.sequencing.replicated_pipelines import ReplicatedPipelines
from cmdlog.node.telemetry.stage_timings import StageTimings
from cmdlog.operator_error import full_text
from cmdlog.wal.format.record import RecordKind


@dataclass(frozen=True, slots=True)
class SequencerStart:
    """Where a start begins: its catalog, the newest block in the log, and the hard states of its terms."""

    catalog: int
    block: int
    terms: Sequence[bytes] = ()
    votes_alone: bool = True  # what is durable here is committed


class Sequencer:
    """Feeds the log (`cmdlog.wal.log.RecordSource`) and the sites. Thread-safe."""

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
        self.meter, self._now = meter, meter.now
        self.clock, self.limits, self._log = clock, limits, log
        self.blocks = 0  # taken so far
        self.waits = False  # somebody waits until what was taken last is durable
        self.lax = False  # some of its calls do not
        self._written_block, self.votes_alone = start.block, start.votes_alone
        self._pipelines = PipelineSet(streams, deliver, log, now=meter.now, proposes=start.votes_alone)
        self._lock, self._streams, self._busy = self._pipelines.lock, self._pipelines.by_partition, self._pipelines.busy
        self._pump, self._kick = self._pipelines.pump, self._pipelines.wake_log
        self.end_session = self._pipelines.end_session
        self._on_failure = on_failure
        self._taken: deque[TakenBlock] = deque()  # from `take` until `durable`
        self._unwritten: deque[TakenBlock] = deque()  # from `take` until `written`
        self.admission = Admission(limits, room_bytes=log.room_bytes, why_full=log.why_full)
        self._notes = Notes(room_bytes=log.notes_room_bytes)
        self._closing = Closing(self._pipelines, limits, clock, catalog=start.catalog, names_places=not start.votes_alone)
        self.code = CodeSwitch(self._pipelines, self._closing, self.admission)
        self.opening = Opening(start.terms, self._pipelines)
        self.standstill = Standstill(self._pipelines, self.admission)
        self.reads = ReadRequests(self._pipelines, self.admission, self.opening, meter)
        self.commits = Commits(self._pipelines, self.admission, self.reads, meter)
        self.replicated = ReplicatedPipelines(self._pipelines, self.commits, self.admission, self._closing, self.reads)

    # -- callers ---------------------------------------------------------------------------------------------------------

    def add(self, partition: int, procedure: int, params: bytes, key: bytes, done: Done, *, lax: bool, catalog: int = 0) -> None:
        """Places one call, bound to this version of the code (0: any); `done` gets its outcome.

        Raises: CallRefused, and nothing is logged.
        """
        size = len(params) + CALL_OVERHEAD_BYTES
        with self._lock:
            self.code.check_bound(catalog)
            self._streams[partition].raise_refusal()
            self._admit(1, size)
            self._busy[partition] = stream = self._streams[partition]
            pending = stream.open
            if not pending.params:
                pending.open_at(self._now())
            pending.append(procedure, params, key, done, lax)

    def add_many(self, calls: Sequence[CallRow], *, catalog: int = 0) -> None:
        """Places calls (partition, procedure, params, key, done, lax) in order, all or none; as `add`. Raises: CallRefused."""
        now, by_partition = self._now(), group_calls(calls)
        with self._lock:
            self.code.check_bound(catalog)
            for partition in by_partition:
                self._streams[partition].raise_refusal()
            self._admit(len(calls), sum([len(call[2]) for call in calls]) + CALL_OVERHEAD_BYTES * len(calls))
            for partition, rows in by_partition.items():
                self._busy[partition] = stream = self._streams[partition]
                stream.open.extend(rows, now)

    def add_everywhere(
        self, procedure: int, params: bytes, key: bytes, dones: Sequence[Done], *, lax: bool, catalog: int = 0
    ) -> None:
        """Places one call in every stream, under one TxnId and in one block; one `done` per stream, in partition order."""
        size = len(params) + CALL_OVERHEAD_BYTES
        total = size * len(self._streams)
        if total + self._closing.step_overhead_bytes > self.limits.batch_bytes_max:
            raise CallTooLarge(f"the call takes {total} bytes over all partitions, limit {self.limits.batch_bytes_max}")
        now = self._now()
        with self._lock:
            self.code.check_bound(catalog)
            for partition in self._streams:
                self._streams[partition].raise_refusal()
            self._admit(len(self._streams), total)
            for stream, done in zip(self._streams.values(), dones, strict=True):
                stream.close_open()
                step = Pending(everywhere=True, opened_at=now)
                step.append(procedure, params, key, done, lax)
                stream.closed.append(step)
                self._busy[stream.partition] = stream

    def add_entries(self, entries: Sequence[tuple[int, RecordKind, dict[str, Any]]], done: Done) -> None:
        """Places control entries that go into one block. Each group commits by itself: `done` as `when_all` calls it."""
        told = when_all(len(entries), done)
        with self._lock:
            for partition, kind, value in entries:
                self.add_entry(partition, kind, value, told)

    def add_entry(self, partition: int, kind: RecordKind, value: dict[str, Any], done: Done) -> None:
        """Places a control entry ahead of what waits; `done` is called once it is durable, or with an unknown outcome."""
        with self._lock:
            ended, proposes = self._pipelines.ended, self._pipelines.proposes
            if not ended and proposes:
                self._busy[partition] = stream = self._streams[partition]
                stream.entries.append((kind, value, done))
        if ended or not proposes:
            done(UnknownOutcome("the node has failed" if ended else "this node does not lead"))
        self._kick()

    def add_record(self, record: bytes, done: Callable[[], None] | None = None) -> None:
        """A control record for the next block; `done` is called once that is durable."""
        with self._lock:
            self._notes.put(record, done)

    @property
    def notes_fit(self) -> bool:
        """Whether the log has room for notes; what is left then is kept for skips."""
        return not self.opening.waits and self._notes.fit

    def when_taken_is_durable(self, done: Callable[[], None]) -> None:
        """Calls `done`, maybe at once, when every block that the log has taken so far is durable."""
        with self._lock:
            taken = bool(self._taken)
            if taken:
                self._taken[-1].note_dones.append(done)
        if taken:
            self._log.hasten()
        else:
            done()

    def flush_notes(self) -> None:
        """Gives notes a block of their own unless calls bring one; called when the node is idle."""
        with self._lock:
            due = self._notes.find_due(self._own_marks()) or self.opening.waits
        if due:
            self._kick()

    # -- the log: cmdlog.wal.log.RecordSource ----------------------------------------------------------------------------------

    def take_records(self, bytes_max: int) -> Sequence[bytes]:
        """Closes, numbers and encodes the next block's batches; every call's TxnId is given here."""
        with self._lock:
            admission, opening = self.admission, self.opening
            admission.let_go()
            if opening.waits:
                if not opening.fits:
                    return ()
                if records := self._take_opening(bytes_max):
                    return records
            room = bytes_max - len(self._streams) * BATCH_OVERHEAD_BYTES - opening.terms_bytes
            notes = self._notes.take_records(room)
            closing = self._closing
            taken, closed_bytes = closing.close_batches(room - size_of([record for record, _ in notes]))
            admission.close(closed_bytes)
            more = closing.short or (bool(self._busy) and closing.step_is_next())
            if not more:
                admission.hold_rest()
            if not taken and not self._notes.wanted and not (notes and closing.short):
                self._notes.put_back(notes)
                return ()
            records = [flight.record for _, flight in taken] + [record for record, _ in notes]
            records += self._notes.commit_marks(self._own_marks(), closed=self.clock.closed())
            self._notes.taken()
            if not records:
                return ()
            records = opening.take_terms() + records
            self._hand_over(taken, [done for _, done in notes if done is not None], bytes_max)
        if more or self._notes.due:
            self._kick()
        return records

    def _take_opening(self, bytes_max: int) -> list[bytes]:
        """Of what the start adds, what the next block takes; entries follow the last record, and come before any call.

        They share its block where there is room: then the log has the code with its tables, or neither.
        """
        records, entries, dones = self.opening.take_records(bytes_max)
        for partition, entry in entries:
            self._busy[partition] = stream = self._streams[partition]
            stream.entries.append(entry)
        if not records:
            return []
        taken = self._closing.take_entries(bytes_max - size_of(records), first=False)
        self._hand_over(taken, dones, bytes_max)
        if self.opening.waits or len(taken) < len(entries):
            self._kick()
        return [*records, *(flight.record for _, flight in taken)]

    def _hand_over(self, taken: Taken, note_dones: list[Callable[[], None]], bytes_max: int) -> None:
        """The log gets a block of them."""
        self.blocks += 1
        self.admission.took(bytes_max)
        block = TakenBlock(taken, note_dones)
        self.waits, self.lax = block.mark_taken(self._now())
        self._taken.append(block)
        self._unwritten.append(block)

    def written(self, block: int) -> None:
        """The oldest taken block is in the page cache."""
        with self._lock:
            self._written_block = block
            flights = self._unwritten.popleft().flights
            for _, flight in flights:
                flight.write(block)
            if self.votes_alone:  # nobody else may give its place to another batch
                self.commits.run_ahead(flights, self._now())

    def durable(self, block: int) -> None:
        """The oldest taken block survives power loss: committed, if this node is the only voter."""
        now = self._now()
        with self._lock:
            taken = self._taken.popleft()
            due = self.commits.commit(taken.flights if self.votes_alone else (), now)
        due.give()
        for note_done in taken.note_dones:
            note_done()

    def failed(self, error: BaseException) -> None:
        """The node cannot continue: calls under way are answered `outcome_unknown`, and none is accepted any more."""
        why = full_text(error)
        if self.abandon(NotReady(f"the node must be restarted: {why}"), f"the node failed during the call: {why}"):
            self._on_failure(error)

    def abandon(self, refusal: CallRefused, why: str) -> bool:
        """Answers all waiting callers `outcome_unknown`, and refuses calls from now on; False if that was done before."""
        with self._lock:
            if not self._pipelines.end():
                return False
            self.admission.refuse(refusal)
            dones = self._drop_all()
            self.admission.clear()
            self.commits.forget_all()
        unknown = UnknownOutcome(why)
        for done in dones:
            done(unknown)
        return True

    # -- the sites -------------------------------------------------------------------------------------------------------

    def answered(self, partition: int, index: int, outcomes: Sequence[RawOutcome], statuses: bytes | bytearray) -> None:
        """The site has applied batch `index`: an outcome per call, and their statuses once more as bytes."""
        now = self._now()
        with self._lock:
            if self._pipelines.ended:
                return
            stream = self._streams[partition]
            flight, idle_until = stream.finish_first(index, now)
            waits = flight.execute(outcomes, statuses, now)
            self.meter.answered(flight, partition, statuses, idle_until=idle_until, now=now, waits=waits)
            self._pipelines.pass_step(flight)
            if waits:
                self.commits.note_executed()
                self.admission.release_lax(flight)
            else:
                self.admission.release(flight)
            more = stream.open.params or stream.closed
            if more:
                self.admission.let_go()
        if more:
            self._kick()
        if not waits or flight.lax_calls:
            answer(flight, outcomes, lax=True if waits else None)

    def site_down(self, partition: int, *, culprit: int = 0) -> None:
        """The site is gone: batches wait for its successor, reads are refused (repeating them is safe), but for the `culprit`."""
        with self._lock:
            dones = self.reads.lose(partition, culprit)
            self._streams[partition].lose_site()
        for done in dones:
            done(NotReady(f"partition {partition} is being restored"))

    def site_up(self, partition: int, position: int) -> None:
        """A site serves the partition again, with everything up to `position` applied; the rest is sent once more, in order."""
        with self._lock:
            stream = self._streams[partition]
            passed = stream.gain_site(position)
            for flight in passed:
                self.admission.release(flight)
                self.meter.unknown(flight.procedures)
            for flight in passed:
                self._pipelines.pass_step(flight)
            self._pump(stream)
        for flight in passed:
            answer(flight, None)
        self._kick()

    def refuse(self, reason: CallRefused) -> None:
        """From now on every call is refused with this reason."""
        with self._lock:
            self.admission.refuse(reason)

    @property
    def pending_bytes(self) -> int:
        """See `cmdlog.wal.writing.watermarks.RecordSource`: the ring looks at it to close a block, or to move on."""
        return self.admission.pending_bytes

    @property
    def idle(self) -> bool:
        """Nothing is open, on its way to a site, at one, or waiting to be durable."""
        with self._lock:
            under_way = any(s.flights or s.open.params or s.closed or s.entries for s in self._streams.values())
            return not (under_way or self.reads.under_way or self.commits.settling)

    def applied_block(self, partition: int) -> int:
        """Every entry that the site has not answered lies in this block or a later one."""
        with self._lock:
            stream = self._streams[partition]
            return stream.applied_block if stream.flights else self._written_block

    def watermarks(self) -> dict[int, dict[str, int]]:
        """Per partition: term, durable, committed and applied index, and calls waiting for a batch."""
        with self._lock:
            return {stream.partition: stream.watermarks() for stream in self._streams.values()}

    # -- inside, under the lock ------------------------------------------------------------------------------------------

    def _own_marks(self) -> Iterable[PartitionPipeline]:
        """The streams whose commit this node states by itself."""
        return self._streams.values() if self.votes_alone else ()

    def _admit(self, calls: int, size_bytes: int) -> None:
        overhead_bytes = self._closing.step_overhead_bytes + self.opening.bytes
        self.admission.admit(calls, size_bytes, overhead_bytes=overhead_bytes)

    def _drop_all(self) -> list[Done]:
        """Empties everything; who waits."""
        dones, procedures = self.reads.drop()
        for block in self._taken:
            waiting, of_block = block.drop()
            dones += waiting
            procedures += of_block
        for stream in self._streams.values():
            waiting, of_stream = stream.drop()
            dones += waiting
            procedures += of_stream
        self.meter.unknown(procedures)
        return dones
