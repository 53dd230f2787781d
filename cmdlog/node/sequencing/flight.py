"""Calls on their way through a partition's pipeline: waiting for a batch, in a batch, or reading.

One rule: plain data of the sequencer, under its lock; no lock, clock or thread here. A flight's stage only advances.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import compress
from operator import not_
from typing import Final, TypeVar

from cmdlog.node.outcome import CallOutcome, Done, UnknownOutcome
from cmdlog.wal.format.batch import NO_KEY

CALL_OVERHEAD_BYTES: Final = 64  # columns of a call with a session of its own, its share of headers, and rounding
SESSIONS_ENDED_MAX: Final = 8  # that one batch says have ended
SESSION_ENDED_BYTES: Final = 48
BATCH_OVERHEAD_BYTES: Final = 128  # record and batch headers, commit mark; ended sessions come on top

T = TypeVar("T")
RawOutcome = tuple[int, int, bytes]  # status, transaction id of an earlier execution or 0, JSON body


CallRow = tuple[int, int, bytes, bytes, Done, bool]
"""A call that is placed: partition, procedure, parameters, key, done, lax."""


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
    catalog: int = 0  # version of the code that its calls are bound to; 0: the one that runs when the log takes it

    def append(self, procedure: int, params: bytes, key: bytes, done: Done, lax: bool) -> None:
        self.procedures.append(procedure)
        self.params.append(params)
        self.keys.append(key)
        self.dones.append(done)
        self.lax.append(lax)
        self.size_bytes += len(params) + CALL_OVERHEAD_BYTES
        if key is not NO_KEY:
            self.keyed = True

    def extend(self, rows: Sequence[CallRow], now: float) -> None:
        """Adds calls of one partition, placed now."""
        if not self.params:
            self.opened_at = now
        _, procedures, params, keys, dones, lax = zip(*rows, strict=True)
        self.procedures += procedures
        self.params += params
        self.keys += keys
        self.dones += dones
        self.lax += lax
        self.size_bytes += sum(map(len, params)) + CALL_OVERHEAD_BYTES * len(params)
        self.keyed = self.keyed or keys.count(NO_KEY) < len(keys)

    def open_at(self, now: float) -> None:
        """The first call is about to be placed."""
        self.opened_at = now

    def bind_code(self, catalog: int) -> None:
        """Its calls are bound to this version of the code, unless they were bound to one before."""
        self.catalog = self.catalog or catalog

    def split(self, calls_max: int, bytes_max: int) -> Pending:
        """Removes and returns the first calls that fit both limits, at least one."""
        count, total = 0, 0
        for part in self.params[:calls_max]:
            total += len(part) + CALL_OVERHEAD_BYTES
            if count and total > bytes_max:
                break
            count += 1
        head = Pending(self.procedures[:count], self.params[:count], self.keys[:count], self.dones[:count], self.lax[:count])
        head.keyed, head.opened_at, head.catalog = self.keyed, self.opened_at, self.catalog
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

    def passes(self, partition: int) -> bool:
        """Whether this partition may run it now."""
        return self.done or self.places[0][0] == partition

    def finish(self) -> bool:
        """A partition has run it; whether that lets the others have it."""
        first, self.done = not self.done, True
        return first


class FlightStage(IntEnum):
    """How far a batch is between the log and its site; it only advances, until its callers are dropped."""

    TAKEN = 0  # by the log
    READY = 1  # written, and may go to the site
    EXECUTED = 2  # answered by the site before it is durable, and some of its callers wait for that
    DURABLE = 3  # may go to the site in any case


TAKEN, READY, EXECUTED, DURABLE = FlightStage


@dataclass(slots=True)
class Flight:
    """One batch from its place in the log to its last answer.

    Invariants: a flight that the site has is written, and all flights of its stream before it are; `outcomes` is set exactly in
    stage EXECUTED.
    """

    index: int
    txn_ids: Sequence[int]
    dones: list[Done]
    size_bytes: int
    record: bytes
    procedures: Sequence[int] = ()  # of calls that are counted here: not of a multi-partition one, and an entry has none
    lax: Sequence[bool] = ()  # for each call: may be answered before it is durable
    opened_at: float = 0.0  # when its first call was placed
    stage: FlightStage = TAKEN
    outcomes: Sequence[RawOutcome] = ()
    statuses: Sequence[int] = b""  # of `outcomes`
    on_durable: Done | None = None  # of a control entry
    block: int = 0  # number of the block that it is in, once written
    step: MultiPartitionStep | None = None  # of a multi-partition call
    lax_calls: int = 0  # how many of `lax` are True
    taken_at: float = 0.0  # by the log
    ready_at: float = 0.0
    sent_at: float = 0.0  # to the site, for the first time
    answered_at: float = 0.0  # by the site, in stage EXECUTED

    @property
    def strict(self) -> bool:
        """Whether its durability is awaited: by a caller, or, of a control entry, the node."""
        return not self.lax or self.lax_calls < len(self.lax)

    def may_go(self, partition: int) -> bool:
        """Whether the site of the partition may have it now."""
        return self.stage > TAKEN and (self.step is None or self.step.passes(partition))

    def mark_taken(self, now: float) -> None:
        """The log has it."""
        self.taken_at = now

    def join_step(self, step: MultiPartitionStep, partition: int) -> None:
        """It is the partition's part of a multi-partition call."""
        self.step = step
        step.places.append((partition, self.index))

    def write(self, block: int) -> None:
        """Its block is in the page cache."""
        self.block = block

    def make_ready(self, now: float) -> None:
        """It is written, and the site may have it before it is durable."""
        if self.stage is TAKEN:
            self.stage, self.ready_at = READY, now

    def send(self, now: float) -> None:
        """The site is given it, maybe once more."""
        self.sent_at = self.sent_at or now

    def execute(self, outcomes: Sequence[RawOutcome], statuses: Sequence[int], now: float) -> bool:
        """The site has executed it; whether some callers wait, from now on for the disk alone."""
        if self.stage is DURABLE or self.lax_calls == len(self.lax):
            return False
        self.stage, self.outcomes, self.statuses, self.answered_at = EXECUTED, outcomes, statuses, now
        return True

    def of_waiting(self, values: Sequence[T]) -> Sequence[T]:
        """From a value for each call, those of calls that wait until it is durable; [] of none."""
        return list(compress(values, map(not_, self.lax))) if self.lax_calls else values

    def of_lax(self, values: Sequence[T]) -> Sequence[T]:
        """From a value for each call, those of calls that do not wait; [] of none."""
        return list(compress(values, self.lax)) if self.lax_calls else ()

    def make_durable(self, now: float) -> bool:
        """It survives power loss; whether callers have waited for that alone."""
        executed = self.stage is EXECUTED
        if self.stage is TAKEN:
            self.ready_at = now
        self.stage = DURABLE
        return executed

    def drop_callers(self) -> list[Done]:
        """Who waits until it is durable, and is no longer answered when it is."""
        waiting = self.of_waiting(self.dones) if self.stage is EXECUTED else []
        self.stage, self.outcomes = (READY, ()) if self.stage is EXECUTED else (self.stage, ())
        return [*self.drop_waiting_entry(), *waiting]

    def drop_waiting_entry(self) -> list[Done]:
        """Who waits until it is committed, if it is a control entry, and is no longer answered when it is."""
        waiting, self.on_durable = self.on_durable, None
        return [] if waiting is None else [waiting]

    def replace_callers(self, done: Done) -> list[Done]:
        """From now on `done` gets all its outcomes; who would have got them."""
        before, self.dones = self.dones, [done] * len(self.dones)
        return before


@dataclass(slots=True)
class Read:
    """A read-only call from its placing to its answer."""

    ident: int
    partition: int
    procedure: int  # -1: one partition's part of a call that is counted as a whole elsewhere
    calls: bytes
    done: Done
    lax: bool  # may return what is not durable yet
    placed_at: float
    after: int = 0  # index of the last batch that the site had been given: what the read may have seen

    def send(self, after: int) -> None:
        """The site is given it, after the batch of that index."""
        self.after = after


def answer(flight: Flight, outcomes: Sequence[RawOutcome] | None, *, lax: bool | None = None) -> None:
    """Answers all its callers, or only those whose calls are lax, or are not. Without `outcomes` they are reported as unknown:
    None when the site did not give them, none at all when the call is void."""
    if not flight.dones:
        return  # a control entry
    if not outcomes:
        ended = "the site ended between executing the call and answering it"
        unknown = UnknownOutcome(ended if outcomes is None else "a change of leader took the call out")
        for done in flight.dones:
            done(unknown)
        return
    calls = zip(flight.dones, flight.txn_ids, outcomes, strict=True)
    if lax is not None:
        calls = (call for call, is_lax in zip(calls, flight.lax, strict=True) if is_lax is lax)  # type: ignore[assignment]
    make = tuple.__new__  # half the time of the class's own, which fills in defaults
    for done, txn_id, (status, earlier, body) in calls:
        done(make(CallOutcome, (status, earlier or txn_id, body, None, None)))
