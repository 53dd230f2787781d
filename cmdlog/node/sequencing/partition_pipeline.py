"""The pipelines of all partitions: what the stages of each hold, the limits between them, and the lock of them all.

One rule: what is here belongs to that lock, and nothing here waits.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

from cmdlog.node.outcome import Done, Reply
from cmdlog.node.sequencing.flight import (
    BATCH_OVERHEAD_BYTES,
    DURABLE,
    SESSION_ENDED_BYTES,
    SESSIONS_ENDED_MAX,
    Flight,
    MultiPartitionStep,
    Pending,
    RawOutcome,
    Read,
)
from cmdlog.wal.errors import WalError
from cmdlog.wal.format.batch import NO_KEY, encode_batch
from cmdlog.wal.format.call_places import CallPlace
from cmdlog.wal.format.record import RecordKind, encode_json
from cmdlog.wal.ids import PARTITION_BITS


@dataclass(frozen=True, slots=True)
class Limits:
    """Named limits of what may be under way; units last."""

    batch_calls_max: int = 1024
    batch_bytes_max: int = 1 << 20
    site_batches_max: int = 2  # flights of one stream: one executing at the site, one in the log or queued
    inflight_calls_max: int = 100_000
    inflight_bytes_max: int = 64 << 20


@dataclass(slots=True)
class PartitionPipeline:
    """One partition's pipeline.

    Invariants: `flights` ascend, all below `next_index`; the batches in `unsent` are its last ones, in order.
    """

    partition: int
    term: int
    next_index: int
    durable_index: int  # committed too: this node is the only voter
    open: Pending = field(default_factory=Pending)
    closed: deque[Pending | Read] = field(default_factory=deque)
    flights: deque[Flight] = field(default_factory=deque)  # taken by the log, not answered
    unsent: deque[Flight | Read] = field(default_factory=deque)  # not yet given to the site
    entries: deque[tuple[RecordKind, dict[str, Any], Done]] = field(
        default_factory=deque
    )  # control entries, taken before any batch
    held: deque[tuple[int, Done, Reply]] = field(default_factory=deque)  # answers of reads until this index is durable; ascending
    ended: deque[bytes] = field(default_factory=deque)  # sessions that have ended: the next batches say so
    sent_index: int = 0  # of the last batch that any site of this partition was given
    marked_index: int = 0
    applied_block: int = 0  # block of the last entry that the site answered
    answered_at: float = 0.0  # when the site answered last
    up: bool = False  # the site takes batches and reads
    halted: bool = False  # it gets no batch at present: it could not run it

    @property
    def next_place(self) -> CallPlace:
        """Of what is launched next."""
        return CallPlace(self.term, self.next_index)

    def launch(
        self, pending: Pending, *, tick: int, bits: int, catalog: int, now: float, places: Sequence[CallPlace] = ()
    ) -> Flight:
        """Numbers and encodes a batch: TxnIds from clock tick `tick` on, with `bits` as their partition bits; `places` of a call
        on all partitions."""
        _, procedures, params, keys, dones, lax = zip(*pending.rows, strict=True)  # columns, as a batch has them
        first = tick << PARTITION_BITS | bits
        txn_ids = range(first, first + (len(params) << PARTITION_BITS), 1 << PARTITION_BITS)
        record = encode_batch(
            partition=self.partition,
            term=self.term,
            index=self.next_index,
            catalog=pending.catalog or catalog,
            txn_ids=txn_ids,
            procedures=procedures,
            params=params,
            keys=keys if keys.count(NO_KEY) < len(keys) else None,
            ended=() if pending.everywhere or not self.ended else self._take_ended(),
            places=places,
        )
        counted, lax_calls = () if pending.everywhere else procedures, sum(lax)
        strict = lax_calls < len(lax)
        flight = Flight(
            self.next_index, txn_ids, dones, pending.size_bytes, record, counted, lax, lax_calls, strict, pending.opened_at, now
        )
        self.next_index += 1
        self.flights.append(flight)
        self.unsent.append(flight)
        return flight

    @property
    def ended_bytes(self) -> int:
        """At most what the sessions take that the next batch says have ended."""
        return SESSION_ENDED_BYTES * min(len(self.ended), SESSIONS_ENDED_MAX)

    def _take_ended(self) -> list[bytes]:
        return [self.ended.popleft() for _ in range(min(len(self.ended), SESSIONS_ENDED_MAX))]

    @property
    def next_entry_bytes(self) -> int:
        """At most what the next entry takes, if it may wait for another block: skips of several partitions go into one."""
        kind, value, _ = self.entries[0]
        return len(orjson.dumps(value)) + BATCH_OVERHEAD_BYTES if kind is RecordKind.SCHEMA else 0

    def launch_entry(self, *, tick: int, now: float) -> Flight:
        """Numbers and encodes the next control entry."""
        kind, value, done = self.entries.popleft()
        txn_id = tick << PARTITION_BITS | self.partition
        record = encode_json(kind, {**value, "txn_id": txn_id}, partition=self.partition, term=self.term, index=self.next_index)
        flight = Flight(self.next_index, (txn_id,), (), 0, record, taken_at=now, on_durable=done)
        self.next_index += 1
        self.flights.append(flight)
        self.unsent.append(flight)
        return flight

    def follow(self, record: bytes, index: int, *, before: Flight | None) -> Flight:
        """An entry that another node proposed: it has no callers here. It precedes what this node proposed, from `before` on."""
        flight = Flight(index, (), (), 0, record)
        self.next_index = max(self.next_index, index + 1)
        if before is None:
            self.flights.append(flight)
            self.unsent.append(flight)
        else:
            self.flights.insert(self.flights.index(before), flight)
            self.unsent.insert(self.unsent.index(before), flight)
        return flight

    def begin_leading(self, term: int, index: int) -> None:
        """What is placed from now on gets this term, and indexes from `index` on."""
        self.term, self.next_index = term, index

    def uncommitted(self) -> list[Flight]:
        """What this node proposed and is not committed, in order."""
        return [flight for flight in self.flights if flight.stage is not DURABLE]

    def drop_uncommitted(self) -> list[Flight]:
        """Removes and returns what was proposed here and is not committed. No site has it."""
        dropped = self.uncommitted()
        self.flights = deque(flight for flight in self.flights if flight.stage is DURABLE)
        self.unsent = deque(item for item in self.unsent if isinstance(item, Read) or item.stage is DURABLE)
        self.next_index = self.durable_index + 1
        return dropped

    def drop_entries(self) -> list[Done]:
        """Removes control entries that were not proposed; who waits for them."""
        dones = [done for _, _, done in self.entries]
        self.entries.clear()
        return dones

    @property
    def applied_index(self) -> int:
        """The last entry that the site has answered, as far as it was given any."""
        return self.flights[0].index - 1 if self.flights else self.durable_index

    def close_open(self) -> None:
        """Shuts the open batch: what is placed next comes after it."""
        if self.open.rows:
            self.closed.append(self.take_open())

    def bind_waiting(self, catalog: int) -> None:
        """What was placed so far runs this version of the code, whatever is placed after it."""
        self.close_open()
        for item in self.closed:
            if isinstance(item, Pending):
                item.bind_code(catalog)

    def take_open(self) -> Pending:
        """Removes and returns the open batch."""
        taken, self.open = self.open, Pending()
        return taken

    def next_to_send(self, now: float) -> Flight | Read | None:
        """Removes and returns what the site gets next; None when there is nothing that it may have now."""
        if not self.up or self.halted or not self.unsent:
            return None
        item = self.unsent[0]
        if isinstance(item, Flight):
            if not item.send(self.partition, now):
                return None
            self.sent_index = item.index
        else:
            item.send(self.sent_index)
        return self.unsent.popleft()

    def make_durable(self, flight: Flight, now: float) -> bool:
        """Its flights up to this one survive power loss; whether callers of this one have waited for that alone."""
        self.durable_index = flight.index
        return flight.make_durable(now)

    def mark_committed(self) -> None:
        """A commit mark of what is durable goes into the next block."""
        self.marked_index = self.durable_index

    def finish_first(self, index: int, outcomes: Sequence[RawOutcome], statuses: Sequence[int], now: float) -> Flight:
        """The site has applied the first flight, which must be `index`."""
        if not self.flights or self.flights[0].index != index:
            raise RuntimeError(f"partition {self.partition} answered batch {index} out of order")
        flight = self.flights.popleft()
        flight.execute(outcomes, statuses, idle_until=self.answered_at, now=now)
        self.applied_block, self.answered_at = flight.block, now
        return flight

    def lose_site(self) -> None:
        """The site is gone: flights wait for its successor, reads that it was not given are forgotten."""
        self.up = False
        self.withdraw_reads()

    def gain_site(self, position: int) -> list[Flight]:
        """A site has applied everything up to `position`, and gets the rest; the flights that nobody will answer."""
        passed = [flight for flight in self.flights if flight.index <= position]
        for _ in passed:
            self.flights.popleft()
        self.unsent = deque(self.flights)
        self.up = True
        return passed

    def set_halted(self, halted: bool) -> None:
        """Whether its site gets no batch at present."""
        self.halted = halted

    def withdraw(self, *, refused: bool) -> list[Pending]:
        """Removes what the log has not taken: multi-partition calls, and if this partition is refused everything."""
        out: list[Pending] = []
        kept: deque[Pending | Read] = deque()
        for item in self.closed:
            if isinstance(item, Pending) and (item.everywhere or refused):
                out.append(item)
            else:
                kept.append(item)
        self.closed = kept
        if refused and self.open.rows:
            out.append(self.take_open())
        return out

    def withdraw_reads(self) -> list[Read]:
        """Removes and returns the reads that its site was not given."""
        reads = [item for item in (*self.unsent, *self.closed) if isinstance(item, Read)]
        self.unsent = deque(item for item in self.unsent if isinstance(item, Flight))
        self.closed = deque(item for item in self.closed if isinstance(item, Pending))
        return reads

    def drop(self) -> tuple[list[Done], list[int]]:
        """Empties the pipeline; returns who waits for calls and entries in it, and the calls' procedures."""
        dones = [done for _, _, done in self.entries]
        procedures: list[int] = []
        dones += [done for _, done, _ in self.held]
        dones += [done for flight in self.uncommitted() for done in flight.drop_waiting_entry()]
        for batch in (*self.closed, self.open, *self.flights):
            if not isinstance(batch, Read):
                dones += batch.dones
                procedures += batch.counted_procedures if isinstance(batch, Pending) else batch.procedures
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
            "open_calls": len(self.open.rows),
            "batches_under_way": len(self.flights),
        }


class Deliver(Protocol):
    """What takes batches: the sites. Called under the sequencer's lock; must not block."""

    def batch(self, partition: int, record: bytes, index: int) -> None: ...
    def read(self, partition: int, ident: int, calls: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class LogControls:
    """What the sequencer asks of the log."""

    kick: Callable[[], None]  # there is something to take
    hasten: Callable[[], None]  # a caller waits until what is written is durable
    room_bytes: Callable[[], int]  # for calls
    notes_room_bytes: Callable[[], int] = lambda: 1 << 30  # for control records
    kept_bytes: int = 0  # that they leave
    why_full: Callable[[], str] = lambda: "the log has no room until a snapshot lets its oldest segment go"


class PipelineSet:
    """All partitions' pipelines: the lock of everything that works on them, and the ways out of them, to the sites and the log.

    The caller holds the lock, but for `wake_log`. `ended`: all callers were answered `outcome_unknown`; what comes afterwards has
    no caller.
    """

    def __init__(
        self,
        pipelines: Iterable[PartitionPipeline],
        deliver: Deliver,
        log: LogControls,
        *,
        now: Callable[[], float],
        proposes: bool = True,
    ) -> None:
        self.lock = threading.RLock()
        self.by_partition = {pipeline.partition: pipeline for pipeline in pipelines}
        self.busy: dict[int, PartitionPipeline] = {}  # with something for the log; a superset, in order of arrival
        self.log = log
        self.now = now
        self.ended = False
        self.proposes = proposes  # this node numbers entries: it votes alone, or leads
        self._deliver = deliver

    def pump(self, pipeline: PartitionPipeline, now: float = 0.0) -> None:
        """Gives the site what it may have."""
        while pipeline.unsent and (item := pipeline.next_to_send(now or self.now())) is not None:
            if isinstance(item, Flight):
                self._deliver.batch(pipeline.partition, item.record, item.index)
            else:
                self.send_read(item)

    def send_read(self, read: Read) -> None:
        """Gives a read to its site, after everything that the site was given."""
        self._deliver.read(read.partition, read.ident, read.calls)

    def pass_reads(self, pipeline: PartitionPipeline) -> None:
        """Reads that nothing is closed before move on; one that has nothing before it at all goes to the site."""
        closed = pipeline.closed
        while closed and not isinstance(closed[0], Pending):
            pipeline.unsent.append(closed[0])
            closed.popleft()
        self.pump(pipeline)

    def pass_step(self, step: MultiPartitionStep) -> None:
        """A partition has run its part of a multi-partition call; if it is the first, the others get theirs."""
        if step.finish():
            for pipeline in self.by_partition.values():
                self.pump(pipeline)

    def wake_log(self) -> None:
        """A wedged log is reported to all callers by `failed`, so waking it raises nothing."""
        with contextlib.suppress(WalError):
            self.log.kick()

    def set_proposes(self, proposes: bool) -> None:
        """Whether this node numbers entries from now on."""
        self.proposes = proposes

    def end(self) -> bool:
        """Nothing is answered from now on; False if that is so already."""
        before, self.ended = self.ended, True
        return not before
