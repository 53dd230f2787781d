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

CALL_OVERHEAD_BYTES: Final = 64  # columns of a call with a session of its own, its share of headers, and rounding
SESSIONS_ENDED_MAX: Final = 8  # that one batch says have ended
SESSION_ENDED_BYTES: Final = 48
BATCH_OVERHEAD_BYTES: Final = 128  # record and batch headers, commit mark; ended sessions come on top

T = TypeVar("T")
RawOutcome = tuple[int, int, bytes]  # status, transaction id of an earlier execution or 0, JSON body


CallRow = tuple[int, int, bytes, bytes, Done, bool]
"""A call that is placed: partition, procedure, parameters, key, done, lax (may be answered before it is durable)."""


@dataclass(slots=True)
class Pending:
    """Calls waiting to become a batch. `everywhere` marks the one call of a multi-partition step."""

    rows: list[CallRow] = field(default_factory=list)
    size_bytes: int = 0
    opened_at: float = 0.0  # when the first call was placed
    everywhere: bool = False
    catalog: int = 0  # version of the code that its calls are bound to; 0: the one that runs when the log takes it

    @property
    def dones(self) -> list[Done]:
        """Who waits, in the order of the calls."""
        return [row[4] for row in self.rows]

    @property
    def counted_procedures(self) -> list[int]:
        """Of calls that are counted here: not of a multi-partition one."""
        return [] if self.everywhere else [row[1] for row in self.rows]

    def extend(self, rows: Sequence[CallRow], size_bytes: int, now: float) -> None:
        """Adds calls of one partition, placed now."""
        if not self.rows:
            self.opened_at = now
        self.rows += rows
        self.size_bytes += size_bytes

    def bind_code(self, catalog: int) -> None:
        """Its calls are bound to this version of the code, unless they were bound to one before."""
        self.catalog = self.catalog or catalog

    def split(self, calls_max: int, bytes_max: int) -> Pending:
        """Removes and returns the first calls that fit both limits, at least one."""
        count, total = 0, 0
        for row in self.rows[:calls_max]:
            size = len(row[2]) + CALL_OVERHEAD_BYTES
            if count and total + size > bytes_max:
                break
            count, total = count + 1, total + size
        head = Pending(self.rows[:count], total, self.opened_at, catalog=self.catalog)
        del self.rows[:count]
        self.size_bytes -= total
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
    dones: Sequence[Done]
    size_bytes: int
    record: bytes
    procedures: Sequence[int] = ()  # of calls that are counted here: not of a multi-partition one, and an entry has none
    lax: Sequence[bool] = ()  # for each call: may be answered before it is durable
    lax_calls: int = 0  # how many of `lax` are True
    strict: bool = True  # its durability is awaited: by a caller, or, of a control entry, the node
    opened_at: float = 0.0  # when its first call was placed
    taken_at: float = 0.0  # by the log
    on_durable: Done | None = None  # of a control entry
    stage: FlightStage = TAKEN
    outcomes: Sequence[RawOutcome] = ()
    statuses: Sequence[int] = b""  # of the outcomes
    block: int = 0  # number of the block that it is in, once written
    step: MultiPartitionStep | None = None  # of a multi-partition call
    ready_at: float = 0.0
    sent_at: float = 0.0  # to the site, for the first time
    begun_at: float = 0.0  # by the site: when it was sent, or the batch before it was answered
    answered_at: float = 0.0  # by the site

    def join_step(self, step: MultiPartitionStep, partition: int) -> None:
        """It is the partition's part of a multi-partition call."""
        self.step = step
        step.places.append((partition, self.index))

    def write(self, block: int, ready_at: float | None) -> None:
        """Its block is in the page cache; and from then on the site may have it before it is durable, unless that is None."""
        self.block = block
        if ready_at is not None and self.stage is TAKEN:
            self.stage, self.ready_at = READY, ready_at

    def send(self, partition: int, now: float) -> bool:
        """The site of the partition is given it, maybe once more; False when it may not have it yet."""
        if self.stage is TAKEN or not (self.step is None or self.step.passes(partition)):
            return False
        self.sent_at = self.sent_at or now
        return True

    def execute(self, outcomes: Sequence[RawOutcome], statuses: Sequence[int], *, idle_until: float, now: float) -> None:
        """The site has executed it: EXECUTED if some callers wait, from now on for the disk alone."""
        self.begun_at, self.answered_at, self.statuses = max(self.sent_at, idle_until), now, statuses
        if self.stage is not DURABLE and self.lax_calls < len(self.lax):
            self.stage, self.outcomes = EXECUTED, outcomes

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

    def replace_callers(self, done: Done) -> Sequence[Done]:
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
