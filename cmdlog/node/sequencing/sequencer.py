"""The sequencer: gives every call its place, closes batches, and hands durable batches to the sites in order.

One rule: all state here belongs to one lock; nothing slow happens under it, and callers are answered outside it.

A partition's *stream* is a pipeline, each stage first-in first-out:
    open calls -> closed (behind a multi-partition step) -> in the log -> durable -> at the site -> answered
                  [Pending]                                 `flights`, one Flight per batch or read marker

The log pulls: `take` closes what is open and is called by the one thread that holds the turn, so a batch closes exactly when a
log thread is free (adaptive group commit). A stream with `site_batches_max` flights under way keeps its batch open: when the
site is the bottleneck batches grow instead of queueing.

A multi-partition call is placed in every stream in one step, under the lock, and all its batches go into one block; a
multi-partition read leaves an unlogged marker at the same place, so it sees all or nothing of any such write.

Durability is promised call by call. A *lax* call is answered once it is executed, and a batch that holds one goes to the site as
soon as it is written, with all batches of its stream before it: order is kept, and a state that is ahead of the log is discarded
at start. Everything else that leaves the node waits: the answer of a call that is not lax until its batch is durable (then all
before it are), and that of a read until everything is durable that its site had been given, since what it read must not be taken
back by a power cut. A lax read does not wait.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from cmdlog.node.clock import HybridClock
from cmdlog.node.outcome import (
    CallOutcome,
    CallRefused,
    CallTooLarge,
    Done,
    LogFullRefusal,
    NotReady,
    Overloaded,
    Reply,
    UnknownOutcome,
)
from cmdlog.node.sequencing.admission import Admission
from cmdlog.node.sequencing.block_builder import Closing, Taken
from cmdlog.node.sequencing.control_records import Notes
from cmdlog.node.sequencing.halted_partitions import Standstill
from cmdlog.node.sequencing.opening import Opening, size_of
from cmdlog.node.sequencing.partition_pipeline import (
    BATCH_OVERHEAD_BYTES,
    CALL_OVERHEAD_BYTES,
    Deliver,
    Flight,
    Limits,
    PartitionPipeline,
    Pending,
    RawOutcome,
    Read,
    ReadMarker,
    TakenBlock,
    answer,
    close_open,
    drop_all,
)
from cmdlog.node.telemetry.stage_timings import StageTimings
from cmdlog.wal.errors import WalError
from cmdlog.wal.format.record import RecordKind


class Sequencer:
    """Feeds the log (`cmdlog.wal.log.RecordSource`) and the sites. Thread-safe."""

    def __init__(
        self,
        clock: HybridClock,
        streams: Iterable[PartitionPipeline],
        deliver: Deliver,
        *,
        limits: Limits,
        catalog: int,
        first_block: int,
        room_bytes: Callable[[], int],
        on_failure: Callable[[BaseException], None],
        meter: StageTimings,
        terms: Sequence[bytes] = (),
        notes_room_bytes: Callable[[], int] = lambda: 1 << 30,
    ) -> None:
        self.meter, self._now = meter, meter.now
        self.clock, self.limits = clock, limits
        self.kick: Callable[[], None] = lambda: None  # set to the log's once that runs
        self.hasten: Callable[[], None] = lambda: None  # the same: somebody waits until what is written is durable
        self.admission = Admission(limits, room_bytes=room_bytes)
        self.blocks = 0  # taken so far
        self.waits = False  # somebody waits until what was taken last is durable
        self.hasty = 0  # batches that were taken, are not written, and may be executed once they are
        self._written_block = first_block
        self._streams = {stream.partition: stream for stream in streams}
        self._closing = Closing(self._streams, limits, clock, catalog=catalog, pump=self._pump)
        self._busy = self._closing.busy
        self._deliver, self._on_failure = deliver, on_failure
        self._lock = threading.RLock()
        self._taken: deque[TakenBlock] = deque()  # from `take` until `durable`
        self._unwritten: deque[TakenBlock] = deque()  # from `take` until `written`
        self._reads: dict[int, Read] = {}  # by ident, from call to the site's answer
        self._settling = 0  # batches and reads that a site has answered, and somebody waits until they are durable
        self._notes = Notes(room_bytes=notes_room_bytes)
        self.opening = Opening(terms, lock=self._lock, room_bytes=room_bytes, kick=self._kick)
        self.standstill = Standstill(self._lock, self._streams, forget=self.admission.forget, pump=self._pump, kick=self._kick)
        self._gone = False  # everybody was told that the outcome is unknown: what comes afterwards is nobody's

    # -- callers ---------------------------------------------------------------------------------------------------------

    def add(self, partition: int, procedure: int, params: bytes, key: bytes, done: Done, *, lax: bool) -> None:
        """Places one call; `done` gets its outcome. Raises: CallRefused, and nothing is logged."""
        size = len(params) + CALL_OVERHEAD_BYTES
        with self._lock:
            self._raise_refusal(partition)
            self._admit(1, size)
            self._busy[partition] = stream = self._streams[partition]
            pending = stream.open
            if not pending.params:
                pending.opened_at = self._now()
            pending.append(procedure, params, key, done, lax)

    def add_many(self, calls: Sequence[tuple[int, int, bytes, bytes, Done, bool]]) -> None:
        """Places calls (partition, procedure, params, key, done, lax) in order, all or none. Raises: CallRefused."""
        now = self._now()
        with self._lock:
            for partition in {call[0] for call in calls}:
                self._raise_refusal(partition)
            self._admit(len(calls), sum(len(call[2]) for call in calls) + CALL_OVERHEAD_BYTES * len(calls))
            for partition, procedure, params, key, done, lax in calls:
                self._busy[partition] = stream = self._streams[partition]
                if not stream.open.params:
                    stream.open.opened_at = now
                stream.open.append(procedure, params, key, done, lax)

    def add_everywhere(self, procedure: int, params: bytes, key: bytes, dones: Sequence[Done], *, lax: bool) -> None:
        """Places one call in every stream, under one TxnId and in one block; one `done` per stream, in partition order."""
        size = len(params) + CALL_OVERHEAD_BYTES
        total = size * len(self._streams)
        if total + BATCH_OVERHEAD_BYTES * len(self._streams) > self.limits.batch_bytes_max:
            raise CallTooLarge(f"the call takes {total} bytes over all partitions, limit {self.limits.batch_bytes_max}")
        now = self._now()
        with self._lock:
            for partition in self._streams:
                self._raise_refusal(partition)
            self._admit(len(self._streams), total)
            for stream, done in zip(self._streams.values(), dones, strict=True):
                close_open(stream)
                step = Pending(everywhere=True, opened_at=now)
                step.append(procedure, params, key, done, lax)
                stream.closed.append(step)
                self._busy[stream.partition] = stream

    def read(self, partition: int, ident: int, calls: bytes, done: Done, *, procedure: int, lax: bool) -> None:
        """Sends a read behind everything the site was given: it sees every write that anyone was told of."""
        now = self._now()
        with self._lock:
            stream = self._streams[partition]
            self._admit_read(stream)
            self._reads[ident] = Read(partition, procedure, done, lax, now, stream.sent_index)
            self._deliver.read(partition, ident, calls)

    def read_everywhere(self, idents: Sequence[int], calls: bytes, dones: Sequence[Done], *, lax: bool) -> None:
        """Leaves a read marker at one place of the common order in every stream; each site answers for its partition."""
        now = self._now()
        with self._lock:
            for partition, stream in self._streams.items():
                self._admit_read(stream)
                if stream.halted:  # the marker would wait behind what is held back
                    self._raise_refusal(partition)
            for stream, ident, done in zip(self._streams.values(), idents, dones, strict=True):
                self._reads[ident] = Read(stream.partition, -1, done, lax, now)
                close_open(stream)
                stream.closed.append(ReadMarker(ident, calls))
                self._busy[stream.partition] = stream
                self._closing.pass_markers(stream)
        self._kick()

    def when_durable(self, partition: int, done: Done) -> None:
        """Calls `done`, maybe at once, when everything is durable that the partition's site has been given so far."""
        with self._lock:
            reply: Reply = UnknownOutcome("the node has failed") if self._gone else CallOutcome(0, 0, b"")
            held = not self._gone and self._hold(self._streams[partition].sent_index, partition, done, reply)
        if not held:
            done(reply)

    def add_entries(self, entries: Sequence[tuple[int, RecordKind, dict[str, Any]]], done: Done) -> None:
        """Places control entries that go into one block; `done` gets the reply of the last of them."""
        with self._lock:
            for partition, kind, value in entries[:-1]:
                self.add_entry(partition, kind, value, lambda _reply: None)
            self.add_entry(*entries[-1], done)

    def add_entry(self, partition: int, kind: RecordKind, value: dict[str, Any], done: Done) -> None:
        """Places a control entry ahead of what waits; `done` is called once it is durable, or told that nobody knows."""
        with self._lock:
            gone = self._gone
            if not gone:
                self._busy[partition] = stream = self._streams[partition]
                stream.entries.append((kind, value, done))
        if gone:
            done(UnknownOutcome("the node has failed"))
        self._kick()

    def note(self, record: bytes, done: Callable[[], None] | None = None) -> None:
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
            self.hasten()
        else:
            done()

    def flush_notes(self) -> None:
        """Gives notes a block of their own unless calls bring one; called when the node is idle."""
        with self._lock:
            due = self._notes.look(self._streams.values()) or self.opening.waits
        if due:
            self._kick()

    # -- the log: cmdlog.wal.log.RecordSource ----------------------------------------------------------------------------------

    def take(self, bytes_max: int) -> Sequence[bytes]:
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
            notes = self._notes.take(room)
            closing = self._closing
            taken, closed_bytes = closing.take(room - size_of([record for record, _ in notes]))
            admission.pending_bytes -= closed_bytes
            more = closing.short or (bool(self._busy) and closing.step_is_next())
            if not more:
                admission.hold_rest()
            if not taken and not self._notes.wanted and not (notes and closing.short):
                self._notes.put_back(notes)
                return ()
            records = [flight.record for _, flight in taken] + [record for record, _ in notes]
            records += self._notes.commit_marks(self._streams.values(), closed=self.clock.closed())
            self._notes.taken()
            if not records:
                return ()
            records = opening.take_terms() + records
            self._hand_over(taken, [done for _, done in notes if done is not None], bytes_max)
        if more or self._notes.due:
            self._kick()
        return records

    def _take_opening(self, bytes_max: int) -> list[bytes]:
        """Of what the start adds, what the next block takes; with its last record, entries come before any call."""
        records, entries, dones = self.opening.take(bytes_max)
        for partition, entry in entries:
            self._busy[partition] = stream = self._streams[partition]
            stream.entries.append(entry)
        if records:
            self._hand_over([], dones, bytes_max)
        if self.opening.waits or (records and entries):
            self._kick()
        return records

    def _hand_over(self, taken: Taken, note_dones: list[Callable[[], None]], bytes_max: int) -> None:
        """The log gets a block of them."""
        self.blocks += 1
        self.admission.took(bytes_max)
        block = TakenBlock(taken, note_dones)
        self.waits = block.begin(self._now())
        self.hasty += block.hasty
        self._taken.append(block)
        self._unwritten.append(block)

    def written(self, block: int) -> None:
        """The oldest taken block is in the page cache."""
        with self._lock:
            self._written_block = block
            for stream, flight in self._unwritten.popleft().flights:
                flight.block = block
                if flight.hasty:
                    self.hasty -= 1
                    self._pump(stream, stream.hurry(upto=flight, now=self._now()))

    def durable(self, block: int) -> None:
        """The oldest taken block survives power loss: committed, since this node is the only voter."""
        settled: list[Flight] = []
        told: list[tuple[Done, Reply]] = []
        now = self._now()
        with self._lock:
            taken = self._taken.popleft()
            for stream, flight in taken.flights:
                stream.durable_index = flight.index
                flight.durable = True
                if not flight.ready:
                    flight.ready, flight.ready_at = True, now
                if flight.outcomes is not None:
                    settled.append(flight)
                    self._settle(flight, now)
                if flight.on_durable is not None and not self._gone:
                    told.append((flight.on_durable, CallOutcome(0, flight.txn_ids[0], b"")))
            for stream, _ in taken.flights:
                self._pump(stream, now)
                while stream.held and stream.held[0][0] <= stream.durable_index:
                    told.append(stream.held.popleft()[1:])
                    self._settling -= 1
        for flight in settled:
            answer(flight, flight.outcomes, lax=False)
        for done, reply in told:
            done(reply)
        for note_done in taken.note_dones:
            note_done()

    def failed(self, error: BaseException) -> None:
        """The node cannot go on: whoever waits is told that the outcome is unknown, and nobody is let in any more."""
        if self.abandon(NotReady(f"the node must be restarted: {error}"), f"the node failed during the call: {error}"):
            self._on_failure(error)

    def abandon(self, refusal: CallRefused, why: str) -> bool:
        """Tells whoever waits that the outcome is unknown, and refuses everybody from now on; False if that was done before."""
        with self._lock:
            if self._gone:
                return False
            self._gone = True
            self.admission.refusal = refusal
            dones, procedures = drop_all(self._reads, self._taken, self._streams.values())
            self.meter.unknown(procedures)
            self.admission.clear()
            self._settling = 0
        unknown = UnknownOutcome(why)
        for done in dones:
            done(unknown)
        return True

    # -- the sites -------------------------------------------------------------------------------------------------------

    def answered(self, partition: int, index: int, outcomes: Sequence[RawOutcome], statuses: bytes | bytearray) -> None:
        """The site has applied batch `index`: an outcome per call, and their statuses once more as bytes."""
        now = self._now()
        with self._lock:
            if self._gone:
                return
            stream = self._streams[partition]
            if not stream.flights or stream.flights[0].index != index:
                raise RuntimeError(f"partition {partition} answered batch {index} out of order")
            flight = stream.flights.popleft()
            stream.applied_block = flight.block
            self.meter.answered(flight, partition, statuses, idle_until=stream.answered_at, now=now)
            stream.answered_at = now
            self._pass_step(flight)
            waits = not flight.durable and False in flight.lax
            if waits:
                flight.outcomes, flight.answered_at = outcomes, now
                self._settling += 1
                self.admission.inflight_calls -= sum(flight.lax)
            else:
                self.admission.release(flight)
            more = stream.open.params or stream.closed
            if more:
                self.admission.let_go()
        if more:
            self._kick()
        answer(flight, outcomes, lax=True if waits else None)

    def read_answered(self, ident: int, reply: Reply) -> None:
        """The site has served a read."""
        now = self._now()
        with self._lock:
            if self._gone:
                return
            read = self._reads.pop(ident)
            if read.procedure >= 0 and isinstance(reply, CallOutcome):
                self.meter.reads.add(now - read.placed_at)
                self.meter.calls[read.procedure][reply.status] += 1
            held = not read.lax and self._hold(read.after, read.partition, read.done, reply)
        if not held:
            read.done(reply)

    def site_down(self, partition: int) -> None:
        """The site is gone: batches wait for its successor, reads are refused (repeating them is safe)."""
        with self._lock:
            stream = self._streams[partition]
            stream.up = False
            lost = [ident for ident, read in self._reads.items() if read.partition == partition]
            dones = [self._reads.pop(ident).done for ident in lost]
            stream.drop_markers()
        for done in dones:
            done(NotReady(f"partition {partition} is being restored"))

    def site_up(self, partition: int, position: int) -> None:
        """A site serves the partition again, with everything up to `position` applied; the rest is sent once more, in order."""
        with self._lock:
            stream = self._streams[partition]
            gone = [flight for flight in stream.flights if flight.index <= position]
            for flight in gone:
                stream.flights.popleft()
                self.admission.release(flight)
                self.meter.unknown(flight.procedures)
            for flight in gone:
                self._pass_step(flight)
            stream.unsent = deque(stream.flights)
            stream.up = True
            self._pump(stream)
        for flight in gone:
            answer(flight, None)
        self._kick()

    def refuse(self, reason: CallRefused) -> None:
        """From now on every call is refused with this reason."""
        with self._lock:
            self.admission.refusal = reason

    @property
    def pending_bytes(self) -> int:
        """See `cmdlog.wal.writing.watermarks.RecordSource`: the ring looks at it to close a block, or to move on."""
        return self.admission.pending_bytes

    @property
    def idle(self) -> bool:
        """Nothing is open, on its way to a site, at one, or waiting to be durable."""
        with self._lock:
            under_way = any(s.flights or s.open.params or s.closed or s.entries for s in self._streams.values())
            return not (under_way or self._reads or self._settling)

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

    def _kick(self) -> None:
        """A wedged log tells everybody by `failed`; whoever only wanted to wake it need not know."""
        with contextlib.suppress(WalError):
            self.kick()

    def _admit(self, calls: int, size_bytes: int) -> None:
        overhead_bytes = BATCH_OVERHEAD_BYTES * len(self._streams) + self.opening.bytes
        self.admission.admit(calls, size_bytes, overhead_bytes=overhead_bytes)

    def _raise_refusal(self, partition: int) -> None:
        if (refusal := self._streams[partition].refusal) is not None:
            raise refusal.again()

    def _admit_read(self, stream: PartitionPipeline) -> None:
        self.admission.raise_refusal()
        if self.opening.tables_wait:
            raise LogFullRefusal(f"the tables of this version wait for room: {self.admission.why_full()}")
        if not stream.up:
            self._raise_refusal(stream.partition)
            raise NotReady(f"partition {stream.partition} is being restored")
        if len(self._reads) >= self.limits.inflight_calls_max:
            raise Overloaded(f"{len(self._reads)} reads are in flight")

    def _settle(self, flight: Flight, now: float) -> None:
        """It was executed before it was durable, and now it is: the others of its calls are answered."""
        waited = len(flight.lax) - sum(flight.lax)
        self.meter.stages["settle"].add(now - flight.answered_at, waited)
        self.admission.settle(flight, waited)
        self._settling -= 1

    def _hold(self, index: int, partition: int, done: Done, reply: Reply) -> bool:
        """Keeps the reply until the batch is durable, and has the log make haste; False when it is."""
        stream = self._streams[partition]
        if stream.durable_index >= index:
            return False
        stream.held.append((index, done, reply))
        self._settling += 1
        self.hasten()
        return True

    def _pass_step(self, flight: Flight) -> None:
        """A multi-partition call is done on the first partition: the others get it."""
        if flight.step is not None and not flight.step.done:
            flight.step.done = True
            for stream in self._streams.values():
                self._pump(stream)

    def _pump(self, stream: PartitionPipeline, now: float = 0.0) -> None:
        while stream.up and not stream.halted and stream.unsent and stream.unsent[0].may_go(stream.partition):
            item = stream.unsent.popleft()
            if isinstance(item, Flight):
                stream.sent_index = item.index
                item.sent_at = item.sent_at or now or self._now()
                self._deliver.batch(stream.partition, item.record, item.index)
            else:
                self._reads[item.ident].after = stream.sent_index
                self._deliver.read(stream.partition, item.ident, item.calls)
