"""One partition's pipeline: what its stages hold, and the limits between them.

One rule: plain data of the sequencer, under its lock; no lock, clock or thread here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import compress
from operator import not_
from typing import Any, Final, Protocol

import orjson

from cmdlog.node.outcome import CallOutcome, CallRefused, Done, Reply, UnknownOutcome
from cmdlog.wal.format.batch import NO_KEY, encode_batch
from cmdlog.wal.format.record import RecordKind, encode_json
from cmdlog.wal.ids import PARTITION_BITS

CALL_OVERHEAD_BYTES: Final = 48  # columns of a keyed call, its share of headers, and rounding
BATCH_OVERHEAD_BYTES: Final = 128  # record and batch headers, commit mark

RawOutcome = tuple[int, int, bytes]  # status, transaction id of an earlier execution or 0, JSON body


@dataclass(frozen=True, slots=True)
class Limits:
    """Named limits of what may be under way; units last."""

    batch_calls_max: int = 1024
    batch_bytes_max: int = 1 << 20
    site_batches_max: int = 2  # flights of one stream: one executing at the site, one in the log or queued
    inflight_calls_max: int = 100_000
    inflight_bytes_max: int = 64 << 20


@dataclass(slots=True)
class Pending:
    """Calls waiting to become a batch. `everywhere` marks the one call of a multi-partition step."""

    procedures: list[int] = field(default_factory=list)
    params: list[bytes] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    dones: list[Done] = field(default_factory=list)
    lax: list[bool] = field(default_factory=list)  # may be answered before it is durable
    keyed: bool = False
    size_bytes: int = 0
    everywhere: bool = False
    opened_at: float = 0.0  # when the first call was placed

    def append(self, procedure: int, params: bytes, key: bytes, done: Done, lax: bool) -> None:
        self.procedures.append(procedure)
        self.params.append(params)
        self.keys.append(key)
        self.dones.append(done)
        self.lax.append(lax)
        self.size_bytes += len(params) + CALL_OVERHEAD_BYTES
        if key is not NO_KEY:
            self.keyed = True

    def split(self, calls_max: int, bytes_max: int) -> Pending:
        """Removes and returns the first calls that fit both limits, at least one."""
        count, total = 0, 0
        for part in self.params[:calls_max]:
            total += len(part) + CALL_OVERHEAD_BYTES
            if count and total > bytes_max:
                break
            count += 1
        head = Pending(self.procedures[:count], self.params[:count], self.keys[:count], self.dones[:count], self.lax[:count])
        head.keyed, head.opened_at = self.keyed, self.opened_at
        head.size_bytes = sum(map(len, head.params)) + CALL_OVERHEAD_BYTES * count
        del self.procedures[:count], self.params[:count], self.keys[:count], self.dones[:count], self.lax[:count]
        self.size_bytes -= head.size_bytes
        return head


@dataclass(slots=True)
class MultiPartitionStep:
    """A multi-partition call on its way. The first partition runs it; only when that is done do the others get it.

    So a call that hangs or ends its site is met on the first partition alone, and can be skipped on all; once it is done there,
    it is never skipped anywhere.
    """

    places: list[tuple[int, int]] = field(default_factory=list)  # (partition, index), ascending
    done: bool = False  # on the first partition


@dataclass(slots=True)
class Flight:
    """One batch from its place in the log to its last answer.

    Invariants: a flight that the site has is written, and all flights of its stream before it are; `outcomes` is set from the
    site's answer until the block is durable, and only when some of the calls must wait for that.
    """

    index: int
    txn_ids: Sequence[int]
    dones: list[Done]
    size_bytes: int
    record: bytes
    procedures: Sequence[int] = ()  # of calls that are counted here: not of a multi-partition one, and an entry has none
    lax: Sequence[bool] = ()  # for each call: may be answered before it is durable
    opened_at: float = 0.0  # when its first call was placed
    hasty: bool = False  # some call in it is answered without waiting until it is durable
    strict: bool = True  # somebody waits until it is durable
    ready: bool = False  # may go to the site: durable, or written and needed by a call that does not wait for more
    durable: bool = False
    outcomes: Sequence[RawOutcome] | None = None
    on_durable: Done | None = None  # of a control entry
    block: int = 0  # number of the block that it is in, once written
    step: MultiPartitionStep | None = None  # of a multi-partition call
    taken_at: float = 0.0  # by the log
    ready_at: float = 0.0
    sent_at: float = 0.0  # to the site, for the first time
    answered_at: float = 0.0  # by the site

    def may_go(self, partition: int) -> bool:
        """Whether the site of the partition may have it now."""
        return self.ready and (self.step is None or self.step.done or self.step.places[0][0] == partition)


@dataclass(slots=True)
class ReadMarker:
    """An unlogged read at one place of the common order."""

    ident: int
    calls: bytes

    def may_go(self, _partition: int) -> bool:
        """It waits for nothing but its place."""
        return True


@dataclass(slots=True)
class Read:
    """A read-only call from its placing to its answer."""

    partition: int
    procedure: int  # -1: one partition's part of a call that is counted as a whole elsewhere
    done: Done
    lax: bool  # may tell what is not durable yet
    placed_at: float
    after: int = 0  # index of the last batch that the site had been given: what the read may have seen


@dataclass(slots=True)
class PartitionPipeline:
    """One partition's pipeline.

    Invariants: `flights` holds consecutive indexes, all below `next_index`; the batches in `unsent` are its last ones, in order.
    """

    partition: int
    term: int
    next_index: int
    durable_index: int  # committed too: this node is the only voter
    open: Pending = field(default_factory=Pending)
    closed: deque[Pending | ReadMarker] = field(default_factory=deque)
    flights: deque[Flight] = field(default_factory=deque)  # taken by the log, not answered
    unsent: deque[Flight | ReadMarker] = field(default_factory=deque)  # not yet given to the site
    entries: deque[tuple[RecordKind, dict[str, Any], Done]] = field(
        default_factory=deque
    )  # control entries, taken before any batch
    held: deque[tuple[int, Done, Reply]] = field(default_factory=deque)  # answers of reads until this index is durable; ascending
    sent_index: int = 0  # of the last batch that any site of this partition was given
    marked_index: int = 0
    applied_block: int = 0  # block of the last entry that the site answered
    answered_at: float = 0.0  # when the site answered last
    up: bool = False  # the site takes batches and reads
    halted: bool = False  # it gets no batch at present: it could not run it
    refusal: CallRefused | None = None  # why calls to this partition are refused at present

    def launch(self, pending: Pending, *, tick: int, bits: int, catalog: int) -> Flight:
        """Numbers and encodes a batch: TxnIds from clock tick `tick` on, with `bits` as their partition bits."""
        first = tick << PARTITION_BITS | bits
        txn_ids = range(first, first + (len(pending.params) << PARTITION_BITS), 1 << PARTITION_BITS)
        record = encode_batch(
            partition=self.partition,
            term=self.term,
            index=self.next_index,
            catalog=catalog,
            txn_ids=txn_ids,
            procedures=pending.procedures,
            params=pending.params,
            keys=pending.keys if pending.keyed else None,
        )
        procedures = () if pending.everywhere else pending.procedures
        flight = Flight(self.next_index, txn_ids, pending.dones, pending.size_bytes, record, procedures, pending.lax)
        flight.opened_at, flight.hasty, flight.strict = pending.opened_at, True in pending.lax, False in pending.lax
        return self._fly(flight)

    @property
    def next_entry_bytes(self) -> int:
        """At most what the next entry takes, if it may wait for another block: skips of several partitions go into one."""
        kind, value, _ = self.entries[0]
        return len(orjson.dumps(value)) + BATCH_OVERHEAD_BYTES if kind is RecordKind.SCHEMA else 0

    def launch_entry(self, *, tick: int) -> Flight:
        """Numbers and encodes the next control entry."""
        kind, value, done = self.entries.popleft()
        txn_id = tick << PARTITION_BITS | self.partition
        record = encode_json(kind, {**value, "txn_id": txn_id}, partition=self.partition, term=self.term, index=self.next_index)
        return self._fly(Flight(self.next_index, (txn_id,), [], 0, record, on_durable=done))

    def _fly(self, flight: Flight) -> Flight:
        self.next_index += 1
        self.flights.append(flight)
        self.unsent.append(flight)
        return flight

    def hurry(self, *, upto: Flight, now: float) -> float:
        """The site may have a written flight, and so those before it, which are written too: blocks are told in order."""
        for flight in self.flights:
            if flight.index <= upto.index and not flight.ready:
                flight.ready, flight.ready_at = True, now
        return now

    def drop_markers(self) -> None:
        """Forgets the reads that the site was not given."""
        self.unsent = deque(item for item in self.unsent if isinstance(item, Flight))
        self.closed = deque(item for item in self.closed if isinstance(item, Pending))

    def drop(self) -> tuple[list[Done], list[int]]:
        """Empties the pipeline; returns who waits for calls and entries in it, and the calls' procedures."""
        dones = [done for _, _, done in self.entries]
        procedures: list[int] = []
        dones += [done for _, done, _ in self.held]
        for batch in (*self.closed, self.open, *self.flights):
            if not isinstance(batch, ReadMarker):
                dones += batch.dones
                procedures += () if isinstance(batch, Pending) and batch.everywhere else batch.procedures
        self.open = Pending()
        for stage in (self.entries, self.closed, self.flights, self.unsent, self.held):
            stage.clear()
        return dones, procedures

    def watermarks(self) -> dict[str, int]:
        """Term, durable, committed and applied index, and what is under way."""
        return {
            "term": self.term,
            "durable": self.durable_index,
            "committed": self.durable_index,
            "applied": self.flights[0].index - 1 if self.flights else self.next_index - 1,
            "open_calls": len(self.open.params),
            "batches_under_way": len(self.flights),
        }


class Deliver(Protocol):
    """What takes durable batches: the sites. Called under the sequencer's lock; must not block."""

    def batch(self, partition: int, record: bytes, index: int) -> None: ...
    def read(self, partition: int, ident: int, calls: bytes) -> None: ...


@dataclass(slots=True)
class TakenBlock:
    """What one `take` handed to the log."""

    flights: list[tuple[PartitionPipeline, Flight]]
    note_dones: list[Callable[[], None]]
    hasty: int = 0  # batches that may be executed once they are written

    def begin(self, now: float) -> bool:
        """The log has it now; whether somebody waits until it is durable."""
        waits = bool(self.note_dones)
        for _, flight in self.flights:
            flight.taken_at = now
            self.hasty += flight.hasty
            waits = waits or flight.strict
        return waits

    def drop(self) -> list[Done]:
        """Who waits until it is durable: for entries, and for the answers of batches that a site has executed before."""
        dones: list[Done] = []
        for _, flight in self.flights:
            if flight.on_durable is not None:
                dones.append(flight.on_durable)
            if flight.outcomes is not None:
                dones += compress(flight.dones, map(not_, flight.lax))
                flight.outcomes = None
        return dones


def drop_all(
    reads: dict[int, Read], taken: Iterable[TakenBlock], streams: Iterable[PartitionPipeline]
) -> tuple[list[Done], list[int]]:
    """Empties everything; returns who waits, and the procedures of the calls that are counted one by one."""
    dones = [read.done for read in reads.values()]
    procedures = [read.procedure for read in reads.values() if read.procedure >= 0]
    reads.clear()
    for block in taken:
        dones += block.drop()
    for stream in streams:
        waiting, of_stream = stream.drop()
        dones += waiting
        procedures += of_stream
    return dones, procedures


def close_open(stream: PartitionPipeline) -> None:
    """Shuts the open batch, so that what comes next stands behind it."""
    if stream.open.params:
        stream.closed.append(stream.open)
        stream.open = Pending()


def answer(flight: Flight, outcomes: Sequence[RawOutcome] | None, *, lax: bool | None = None) -> None:
    """Tells all its callers, or only those whose calls are lax, or are not. Without outcomes nobody knows them."""
    if not flight.dones:
        return  # a control entry
    if outcomes is None:
        unknown = UnknownOutcome("the site ended between executing the call and answering it")
        for done in flight.dones:
            done(unknown)
        return
    calls = zip(flight.dones, flight.txn_ids, outcomes, strict=True)
    if lax is not None:
        calls = (call for call, is_lax in zip(calls, flight.lax, strict=True) if is_lax is lax)  # type: ignore[assignment]
    for done, txn_id, (status, earlier, body) in calls:
        done(CallOutcome(status, earlier or txn_id, body))
