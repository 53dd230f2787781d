"""A sequencer with a log and sites that a test drives by hand, step by step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

import orjson

from cmdlog.node.clock import HybridClock
from cmdlog.node.outcome import CallOutcome, Done, Reply
from cmdlog.node.sequencing.log_feed import SequencerStart
from cmdlog.node.sequencing.partition_pipeline import Limits, LogControls, PartitionPipeline
from cmdlog.node.sequencing.sequencer import Sequencer
from cmdlog.node.telemetry.stage_timings import StageTimings
from cmdlog.wal.errors import Wedged
from cmdlog.wal.format.batch import NO_KEY, Batch, decode_batch
from cmdlog.wal.format.record import Record, RecordKind, decode_record, encode_json
from cmdlog.wal.ids import txn_tick

BLOCK_BYTES_MAX = 1 << 20


@dataclass
class Call:
    """One call of a test: what was asked, and what was answered."""

    number: int
    partition: int
    lax: bool = False
    replies: list[Reply] = field(default_factory=list)


@dataclass
class Block:
    """One block of the log: its records in order, and how far it has come."""

    number: int
    records: list[Record]
    written: bool = False
    durable: bool = False


class Pipeline:
    """Is the log, the sites and the callers of one sequencer; it checks every promise at the moment it is due."""

    votes_alone = True  # what is durable here is committed

    def __init__(
        self,
        partitions: int = 2,
        *,
        limits: Limits | None = None,
        lax: bool = False,
        room_bytes: Callable[[], int] = lambda: 1 << 40,
        up: bool = True,
    ) -> None:
        self.blocks: list[Block] = []
        self.at_site: dict[int, deque[tuple[str, int, bytes]]] = {p: deque() for p in range(partitions)}
        self.applied: dict[int, list[Record]] = {p: [] for p in range(partitions)}  # by the site, in order, each once
        self.reads: dict[int, tuple[int, int]] = {}  # ident -> (partition, entries applied when it was served)
        self.calls: list[Call] = []
        self.kicks = 0
        self.wedged = False
        self.failures: list[BaseException] = []
        self.step_s = 0.001
        self.lax = lax  # of calls that do not say
        self.lax_numbers: set[int] = set()  # calls with durability=async
        self.hastened = 0
        self.read_after: dict[int, list[Record]] = {}  # ident -> what the site had applied when it served the read
        self._idents = count(1)
        self.time = [1_700_000_000.0]
        clock = HybridClock(lead_max_ms=60_000, wall=lambda: self.time[0], boot=lambda: self.time[0])
        self.sequencer = Sequencer(
            clock,
            [PartitionPipeline(p, term=3, next_index=1, durable_index=0) for p in range(partitions)],
            self,
            LogControls(self._kicked, self._hasten, room_bytes),
            limits=limits or Limits(),
            start=SequencerStart(catalog=1, block=1, votes_alone=self.votes_alone),
            meter=StageTimings(["p"] * 10, partitions=partitions, now=self._now),
            on_failure=self.failures.append,
        )
        if up:
            for p in range(partitions):
                self.sequencer.site_feed.site_up(p, 0)
        self.kicks = 0

    def _kicked(self) -> None:
        if self.wedged:
            raise Wedged("the log stopped")
        self.kicks += 1

    def _hasten(self) -> None:
        self.hastened += 1

    def _now(self) -> float:
        """A clock that goes on with every look."""
        self.time[0] += self.step_s
        return self.time[0]

    # -- as the sites (Deliver) ------------------------------------------------------------------------------------------

    def batch(self, partition: int, record: bytes, index: int) -> None:
        """Under the sequencer's lock: what arrives must be written by then, and durable where others have a say in its place."""
        block = self._block_of(record)
        assert block.durable or (block.written and self.votes_alone), f"index {index} came to the site too early"
        self.at_site[partition].append(("batch", index, record))

    def read(self, partition: int, ident: int, calls: bytes) -> None:
        self.at_site[partition].append(("read", ident, calls))

    def serve(self, partition: int) -> bool:
        """The site does the next thing that it was sent and answers."""
        if not self.at_site[partition]:
            return False
        kind, ident, data = self.at_site[partition].popleft()
        if kind == "read":
            self.reads[ident] = (partition, len(self.applied[partition]))
            self.read_after[ident] = list(self.applied[partition])
            self.sequencer.reads.answered(ident, CallOutcome(0, 1, b"%d" % len(self.applied[partition])))
            return True
        record = self.apply(partition, data)
        outcomes = [(0, 0, orjson.dumps(p)) for p in decode_batch(record).params()] if record.kind is RecordKind.BATCH else ()
        self.sequencer.site_feed.answered(partition, ident, outcomes, bytes(len(outcomes)))
        return True

    def apply(self, partition: int, data: bytes) -> Record:
        """The site commits the entry to its state."""
        record = decode_record(data)
        before = self.applied[partition]
        assert record.index == (before[-1].index if before else 0) + 1, "entries reach a site in order, each once"
        before.append(record)
        return record

    def lose_site(self, partition: int, *, commits: int = 0) -> None:
        """The site applies `commits` more entries, answers nothing, and is gone with all that it was sent."""
        for kind, _, data in list(self.at_site[partition]):
            if kind == "batch" and commits:
                self.apply(partition, data)
                commits -= 1
        self.at_site[partition].clear()
        self.sequencer.site_feed.site_down(partition)

    def find_site(self, partition: int) -> None:
        """A successor has opened the state."""
        before = self.applied[partition]
        self.sequencer.site_feed.site_up(partition, before[-1].index if before else 0)

    # -- as callers ------------------------------------------------------------------------------------------------------

    def add(self, partition: int, *, size: int = 0, key: bytes = NO_KEY, lax: bool | None = None) -> Call:
        call = self._call(len(self.calls), partition, lax)
        self.sequencer.intake.add(partition, 7, self._params(call, size), key, self._done(call, partition), lax=call.lax)
        self.calls.append(call)
        return call

    def add_many(self, partitions: list[int], *, lax: list[bool] | None = None) -> list[Call]:
        wishes: Sequence[bool | None] = lax or [None] * len(partitions)
        calls = [self._call(len(self.calls) + n, p, may) for n, (p, may) in enumerate(zip(partitions, wishes, strict=True))]
        rows = [(c.partition, 7, self._params(c), NO_KEY, self._done(c, c.partition), c.lax) for c in calls]
        self.sequencer.intake.add_many(rows)
        self.calls += calls
        return calls

    def add_everywhere(self, *, size: int = 0, lax: bool | None = None) -> Call:
        call = self._call(len(self.calls), -1, lax)
        dones = [self._done(call, partition) for partition in self.at_site]
        self.sequencer.intake.add_everywhere(9, self._params(call, size), NO_KEY, dones, lax=call.lax)
        self.calls.append(call)
        return call

    def read_one(self, partition: int, *, lax: bool = False) -> Call:
        call = Call(next(self._idents), partition, lax)
        self.sequencer.reads.place(partition, call.number, b"[]", self._done_read(call, call.number), procedure=8, lax=lax)
        return call

    def read_everywhere(self, *, lax: bool = False) -> tuple[list[int], Call]:
        call, idents = Call(0, -1, lax), [next(self._idents) for _ in self.at_site]
        self.sequencer.reads.place_everywhere(idents, b"[]", [self._done_read(call, ident) for ident in idents], lax=lax)
        return idents, call

    def _call(self, number: int, partition: int, lax: bool | None) -> Call:
        call = Call(number, partition, self.lax if lax is None else lax)
        if call.lax:
            self.lax_numbers.add(number)
        else:
            self.lax_numbers.discard(number)  # of a call that was refused
        return call

    @staticmethod
    def _params(call: Call, size: int = 0) -> bytes:
        return orjson.dumps([call.number, "x" * size])

    def _done(self, call: Call, partition: int) -> Done:
        def done(reply: Reply) -> None:
            assert not self.sequencer._lock._is_owned(), "answered under the lock"  # type: ignore[attr-defined]
            if isinstance(reply, CallOutcome):
                block = next(b for b in self.blocks if any(call.number in numbers_in(r, partition) for r in b.records))
                assert block.durable or (call.lax and block.written), f"call {call.number} was answered before its promise held"
            call.replies.append(reply)

        return done

    def _done_read(self, call: Call, ident: int) -> Done:
        def done(reply: Reply) -> None:
            assert not self.sequencer._lock._is_owned(), "answered under the lock"  # type: ignore[attr-defined]
            if isinstance(reply, CallOutcome) and not call.lax:
                seen = self.read_after[ident]
                assert all(self._block_of(r.raw).durable for r in seen), "a read told what a power cut may take"
            call.replies.append(reply)

        return done

    def _block_of(self, record: bytes) -> Block:
        return next(b for b in self.blocks if any(r.raw == record for r in b.records))

    # -- as the log ------------------------------------------------------------------------------------------------------

    def take(self, bytes_max: int = BLOCK_BYTES_MAX) -> Block | None:
        raw = self.sequencer.log_feed.take_records(bytes_max)
        if not raw:
            return None
        block = Block(len(self.blocks) + 2, [decode_record(r) for r in raw])
        entries = [r for r in block.records if r.is_entry and r.kind is not RecordKind.BATCH]
        called = {n for r in block.records for p in self.at_site for n in numbers_in(r, p)}
        waited_for = entries or called - self.lax_numbers
        assert self.sequencer.log_feed.waits or not waited_for, "nobody would sync what somebody waits for"
        self.blocks.append(block)
        return block

    def write(self) -> None:
        """The next block that is not yet written, if any, is."""
        for block in self.blocks:
            if not block.written:
                block.written = True
                self.sequencer.log_feed.written(block.number)
                return

    def sync(self) -> None:
        """The next block that is not yet durable is, if it is written."""
        for block in self.blocks:
            if not block.durable:
                if block.written:
                    block.durable = True
                    self.sequencer.log_feed.durable(block.number)
                return

    def settle(self) -> None:
        """Runs log and sites until nothing moves: bounded by what there is."""
        for _ in range(10_000):
            moved = self.take() is not None
            self.write()
            self.sync()
            for p in self.at_site:
                while self.serve(p):
                    moved = True
            if not moved and all(b.durable for b in self.blocks):
                return
        raise AssertionError("the pipeline does not come to rest")

    # -- what must hold --------------------------------------------------------------------------------------------------

    def batches(self, partition: int) -> list[Batch]:
        records = [r for b in self.blocks for r in b.records if r.kind is RecordKind.BATCH and r.partition == partition]
        return [decode_batch(r) for r in records]

    def numbers(self, partition: int) -> list[int]:
        """The calls in the partition's log, in order."""
        return [params[0] for batch in self.batches(partition) for params in batch.params()]

    def check_log(self) -> None:
        """Indexes follow on each other; TxnIds only grow, in a partition and over the blocks; marks never run ahead."""
        last_tick = 0
        last_index = dict.fromkeys(self.at_site, 0)
        closed = 0
        durable_before: dict[int, int] = dict.fromkeys(self.at_site, 0)
        for block in self.blocks:
            ticks: list[int] = []
            for record in block.records:
                if record.kind is RecordKind.COMMIT_MARK:
                    assert record.index <= last_index[record.partition]
                    closed = max(closed, int.from_bytes(record.payload[:8], "little"))
                elif record.is_entry and record.partition in last_index:
                    assert record.index == last_index[record.partition] + 1
                    last_index[record.partition] = record.index
                    if record.kind is RecordKind.BATCH:
                        batch = decode_batch(record)
                        assert batch.txn_ids[0] > closed, "a TxnId that was closed is given again"
                        ticks.append(txn_tick(batch.first_txn))
                        ticks.append(txn_tick(batch.last_txn))
            if ticks:
                assert min(ticks) > last_tick
                last_tick = max(ticks)
        assert durable_before.keys() == last_index.keys()

    def check_empty(self) -> None:
        """Nothing is accounted for that is not there."""
        s = self.sequencer
        assert (s.admission.inflight_calls, s.admission.inflight_bytes, s.log_feed.pending_bytes, s.admission.held_bytes) == (
            0,
            0,
            0,
            0,
        )
        assert s.idle
        assert not s.reads.under_way


def numbers_in(record: Record, partition: int) -> set[int]:
    """The calls in a record, if it is a batch of the partition."""
    if record.kind is not RecordKind.BATCH or record.partition != partition:
        return set()
    return {params[0] for params in decode_batch(record).params()}


def a_note() -> bytes:
    """Some control record."""
    return encode_json(RecordKind.HARD_STATE, {"vote": 1}, partition=0, term=3, index=0)
