"""Sequencer and log over a disk that loses power at any moment: what was answered is there, as far as that was promised.

The sites are stand-ins that answer with the number of the call, driven also from within a sync, where calls are executed that no
disk has yet, and lax ones answered. At many moments the power is cut on a copy of the disk, the log is opened on it, and what it
holds is compared with what callers had been told up to then.
"""

from __future__ import annotations

import contextlib
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import orjson
import pytest

from cmdlog.node.clock import HybridClock
from cmdlog.node.outcome import CallOutcome, CallRefused, Done, Reply
from cmdlog.node.sequencing.log_feed import SequencerStart
from cmdlog.node.sequencing.partition_pipeline import Limits, LogControls, PartitionPipeline
from cmdlog.node.sequencing.sequencer import Sequencer
from cmdlog.node.telemetry.stage_timings import StageTimings
from cmdlog.wal.errors import WalError
from cmdlog.wal.format.batch import NO_KEY, decode_batch
from cmdlog.wal.format.record import RecordKind, decode_record
from cmdlog.wal.hard_state import HARDSTATE_NAME
from cmdlog.wal.log import Log
from tests.wal.logkit import NODE, create, generations, hard_state
from tests.wal.sim.simfiles import Fault, Operation, SimFiles

PARTITIONS = 2
STEPS = 60


@dataclass
class Call:
    """What was asked, and what was told."""

    number: int
    partition: int
    lax: bool
    reply: Reply | None = None
    replies: int = 0


@dataclass
class Seen:
    """A read and the calls whose effects it told."""

    partition: int
    lax: bool
    numbers: list[int] = field(default_factory=list)
    told: bool = False


class Machine:
    """One process with a log, a sequencer and sites, on one simulated disk."""

    def __init__(self, seed: int, sync: Literal["sync", "async"]) -> None:
        self.chance = random.Random(seed)
        self.files = SimFiles(seed)
        create(self.files, initial=[hard_state(1, 7, partition=p) for p in range(PARTITIONS)])
        self.calls: list[Call] = []
        self.reads: list[Seen] = []
        self.order: list[int] = []  # calls in the order of the log
        self.at_site: dict[int, deque[tuple[str, int, bytes]]] = {p: deque() for p in range(PARTITIONS)}
        self.state: dict[int, list[int]] = {p: [] for p in range(PARTITIONS)}  # calls as the sites executed them
        self.ahead = self.cuts = self.lost = self.beside = 0
        now = [1_700_000_000.0]
        self.log = Log.open(self.files, NODE, generation=generations(5000))
        self.sequencer = Sequencer(
            HybridClock(lead_max_ms=60_000, wall=lambda: now[0], boot=lambda: now[0]),
            [PartitionPipeline(p, 2, 1, 0) for p in range(PARTITIONS)],
            self,
            LogControls(self.log.kick, self.log.hasten, room_bytes=lambda: self.log.room_bytes),
            limits=Limits(batch_calls_max=4, site_batches_max=3),
            start=SequencerStart(catalog=1, block=1),
            meter=StageTimings(["p"] * 8, partitions=PARTITIONS),
            on_failure=lambda error: None,
        )
        self.log.start(self.sequencer.log_feed, threads=0, sync=sync, early=True)
        for p in range(PARTITIONS):
            self.sequencer.site_feed.site_up(p, 0)
        self.files.before = self.before

    # -- the sites (Deliver) ---------------------------------------------------------------------------------------------

    def batch(self, partition: int, record: bytes, index: int) -> None:
        self.at_site[partition].append(("batch", index, record))

    def read(self, partition: int, ident: int, calls: bytes) -> None:
        self.at_site[partition].append(("read", ident, calls))

    def serve(self, partition: int) -> None:
        if not self.at_site[partition]:
            return
        kind, ident, data = self.at_site[partition].popleft()
        if kind == "read":
            self.reads[ident].numbers = list(self.state[partition])
            self.sequencer.reads.answered(ident, CallOutcome(0, 1, b""))
            return
        record = decode_record(data)
        numbers = [params[0] for params in decode_batch(record).params()] if record.kind is RecordKind.BATCH else []
        self.state[partition] += numbers
        self.ahead += self.sequencer.watermarks()[partition]["durable"] < ident
        self.sequencer.site_feed.answered(partition, ident, [(0, 0, b"%d" % n) for n in numbers], bytes(len(numbers)))

    # -- callers ---------------------------------------------------------------------------------------------------------

    def call(self) -> None:
        call = Call(len(self.calls), self.chance.randrange(PARTITIONS), lax=self.chance.random() < 0.5)
        params = orjson.dumps([call.number, "x" * self.chance.choice([0, 10, 900])])
        try:
            self.sequencer.intake.add(call.partition, 7, params, NO_KEY, self.done(call), lax=call.lax)
        except CallRefused:
            return
        self.calls.append(call)

    def done(self, call: Call) -> Done:
        def done(reply: Reply) -> None:
            call.reply, call.replies = reply, call.replies + 1

        return done

    def look(self) -> None:
        seen = Seen(self.chance.randrange(PARTITIONS), lax=self.chance.random() < 0.3)
        self.reads.append(seen)

        def done(reply: Reply) -> None:
            seen.told = isinstance(reply, CallOutcome)

        self.sequencer.reads.place(seen.partition, len(self.reads) - 1, b"[]", done, procedure=0, lax=seen.lax)

    def run_turn_beside(self) -> None:
        """As embedded use does it: the caller's thread executes while its block is on its way to the disk."""
        self.log.run_turn(self.serve_beside)

    def serve_beside(self) -> None:
        moves: list[Callable[[], None]] = [lambda: self.serve(0), lambda: self.serve(1), self.call, self.look]
        for _ in range(self.chance.randrange(6)):
            self.chance.choice(moves)()
        self.beside += 1
        if self.chance.random() < 0.3:
            self.check(self.files.power_cut(random.Random(self.chance.random())), lost="power")
        if self.chance.random() < 0.1:
            self.check(self.files.kill(), lost="process")

    # -- the disk --------------------------------------------------------------------------------------------------------

    def before(self, operation: Operation) -> None:
        """In the middle of a sync sites may be at work, and the power may go."""
        if operation.kind == "fdatasync" and "/log/" in operation.path:
            for _ in range(self.chance.randrange(4)):
                self.serve(self.chance.randrange(PARTITIONS))
            beside = self.chance.random() < 0.3 and not operation.path.endswith(HARDSTATE_NAME)  # there the other would wait
            tail = self.log._tail
            if beside and tail.left_bytes >= tail.worth_bytes:  # as another thread may, while this one is in the sync
                self.call()
                self.run_turn_beside()
            if self.chance.random() < 0.3:
                self.check(self.files.power_cut(random.Random(self.chance.random())), lost="power")

    def check(self, after: SimFiles, *, lost: Literal["power", "process"]) -> None:
        """What a start finds on this disk is what callers were told up to now."""
        self.cuts += 1
        told = [call for call in self.calls if isinstance(call.reply, CallOutcome)]
        log = Log.open(after, NODE, generation=generations(9000 + 10 * self.cuts))
        batches = [decode_batch(r) for _, r in log.read() if r.kind is RecordKind.BATCH]
        held = [params[0] for batch in batches for params in batch.params()]
        log.close()
        assert len(held) == len(set(held))
        for call in told:
            self.lost += call.number not in held
            if not call.lax or lost == "process":
                assert call.number in held, f"call {call.number} was answered and is lost"
        for partition in range(PARTITIONS):
            placed = [call.number for call in self.calls if call.partition == partition]
            kept = [number for number in held if self.calls[number].partition == partition]
            assert kept == placed[: len(kept)], "what is lost is the end of a stream, in order"
        for seen in self.reads:
            if seen.told and not seen.lax:
                assert set(seen.numbers) <= set(held), "a read told what is lost"

    def run(self, steps: int) -> None:
        moves: list[Callable[[], object]] = [self.call] * 5 + [
            self.look,
            self.log.run_turn,
            self.run_turn_beside,
            self.log.run_background_work,
        ]
        moves += [lambda: self.serve(0), lambda: self.serve(1)]
        for _ in range(steps):
            with contextlib.suppress(WalError, CallRefused):  # of a log that has failed
                self.chance.choice(moves)()
            if self.chance.random() < 0.1:
                self.check(self.files.power_cut(random.Random(self.chance.random())), lost="power")
        self.check(self.files.kill(), lost="process")


@pytest.mark.slow
@pytest.mark.parametrize("sync", ["sync", "async"])
def test_a_power_cut_takes_no_more_than_was_said(sync: Literal["sync", "async"]) -> None:
    """Other than lax calls survive every cut, lax ones every kill; an end of the log is lost, and no strict read told of it."""
    ahead = cuts = lost = answered = beside = 0
    for seed in range(45):
        machine = Machine(seed, sync)
        machine.run(STEPS)
        ahead += machine.ahead
        cuts += machine.cuts
        lost += machine.lost
        beside += machine.beside
        answered += sum(call.replies for call in machine.calls)
        assert all(call.replies <= 1 for call in machine.calls), seed
    assert cuts > 150
    assert beside > 8
    assert ahead > 80
    assert lost > 20, "the disk is too kind for this test"
    assert answered > 300


def run_with_fault(nth: int, fault: Fault, repeat: Literal["once", "forever"]) -> bool:
    """A life whose n-th write or sync of the log fails; whether it came to that."""
    machine = Machine(nth, "sync")
    machine.files.fail_at(nth, fault, repeat=repeat, kinds=frozenset({"pwrite", "fdatasync"}))
    machine.run(40)
    if not machine.files.hits:
        return False
    machine.files.heal()
    for _ in range(8):  # what the sites still have is executed, and answered to nobody
        machine.serve(0)
        machine.serve(1)
    for back in (machine.files.kill(), machine.files.power_cut(random.Random(nth), "none")):
        machine.check(back, lost="power")
    assert all(call.replies <= 1 for call in machine.calls)
    return True


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "repeat"), [(Fault.IO_ERROR, "forever"), (Fault.SHORT_WRITE, "once")])
def test_a_failed_write_or_sync_lets_nothing_out(fault: Fault, repeat: Literal["once", "forever"]) -> None:
    """Whichever of them fails: what was executed before it is answered only as far as the disk has it."""
    assert sum(run_with_fault(nth, fault, repeat) for nth in range(1, 41)) > 10


@pytest.mark.parametrize("sync", ["sync", "async"])
def test_everybody_is_answered_in_the_end(sync: Literal["sync", "async"]) -> None:
    """When turns, syncs and sites go on, every call and read gets its one answer, whatever it was promised."""
    machine = Machine(1, sync)
    machine.run(20)
    for _ in range(200):
        machine.log.run_turn()
        machine.log.run_background_work()
        for p in range(PARTITIONS):
            machine.serve(p)
    assert all(call.replies == 1 for call in machine.calls)
    assert all(seen.told for seen in machine.reads)
    assert machine.sequencer.idle
