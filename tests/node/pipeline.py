"""A sequencer with a log and sites that a test drives by hand, step by step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import orjson

from cmdlog.node.clock import HybridClock
from cmdlog.node.outcome import Done, Outcome, Reply
from cmdlog.node.sequencer import Sequencer
from cmdlog.node.stream import Limits, Stream
from cmdlog.wal.batch import NO_KEY, Batch, decode_batch
from cmdlog.wal.ids import txn_tick
from cmdlog.wal.record import Kind, Record, decode_record, encode_json

BLOCK_BYTES_MAX = 1 << 20


@dataclass
class Call:
    """One call of a test: what was asked, and what was answered."""

    number: int
    partition: int
    replies: list[Reply] = field(default_factory=list)


@dataclass
class Block:
    """One block of the log: its records in order, and how far it has come."""

    number: int
    records: list[Record]
    written: bool = False
    durable: bool = False


class Pipeline:
    """Is the log, the sites and the callers of one sequencer."""

    def __init__(
        self,
        partitions: int = 2,
        *,
        limits: Limits | None = None,
        when_written: bool = False,
        room_bytes: Callable[[], int] = lambda: 1 << 40,
        up: bool = True,
    ) -> None:
        self.blocks: list[Block] = []
        self.at_site: dict[int, deque[tuple[str, int, bytes]]] = {p: deque() for p in range(partitions)}
        self.applied: dict[int, list[Record]] = {p: [] for p in range(partitions)}  # by the site, in order, each once
        self.reads: dict[int, tuple[int, int]] = {}  # ident -> (partition, entries applied when it was served)
        self.calls: list[Call] = []
        self.kicks = 0
        self.failures: list[BaseException] = []
        self.when_written = when_written
        self._idents = count(1)
        self.time = [1_700_000_000.0]
        clock = HybridClock(lead_max_ms=60_000, wall=lambda: self.time[0], boot=lambda: self.time[0])
        self.sequencer = Sequencer(
            clock,
            [Stream(p, term=3, next_index=1, durable_index=0) for p in range(partitions)],
            self,
            limits=limits or Limits(),
            catalog=1,
            first_block=1,
            room_bytes=room_bytes,
            on_failure=self.failures.append,
            deliver_when_written=when_written,
        )
        self.sequencer.kick = self._kicked
        if up:
            for p in range(partitions):
                self.sequencer.site_up(p, 0)
        self.kicks = 0

    def _kicked(self) -> None:
        self.kicks += 1

    # -- as the sites (Deliver) ------------------------------------------------------------------------------------------

    def batch(self, partition: int, record: bytes, index: int) -> None:
        """Under the sequencer's lock: what arrives must be durable (or written) by then."""
        block = next(b for b in self.blocks if any(r.raw == record for r in b.records))
        assert block.durable or (self.when_written and block.written), f"index {index} came to the site before its block was safe"
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
            self.sequencer.read_answered(ident, Outcome(0, 1, b"%d" % len(self.applied[partition])))
            return True
        record = self.apply(partition, data)
        outcomes = [(0, 0, orjson.dumps(p)) for p in decode_batch(record).params()] if record.kind is Kind.BATCH else ()
        self.sequencer.answered(partition, ident, outcomes)
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
        self.sequencer.site_down(partition)

    def find_site(self, partition: int) -> None:
        """A successor has opened the state."""
        before = self.applied[partition]
        self.sequencer.site_up(partition, before[-1].index if before else 0)

    # -- as callers ------------------------------------------------------------------------------------------------------

    def add(self, partition: int, *, size: int = 0, key: bytes = NO_KEY) -> Call:
        call = Call(len(self.calls), partition)
        self.sequencer.add(partition, 7, self._params(call, size), key, self._done(call))
        self.calls.append(call)
        return call

    def add_many(self, partitions: list[int]) -> list[Call]:
        calls = [Call(len(self.calls) + n, p) for n, p in enumerate(partitions)]
        self.sequencer.add_many([(c.partition, 7, self._params(c), NO_KEY, self._done(c)) for c in calls])
        self.calls += calls
        return calls

    def add_everywhere(self, *, size: int = 0) -> Call:
        call = Call(len(self.calls), -1)
        self.sequencer.add_everywhere(9, self._params(call, size), NO_KEY, [self._done(call) for _ in self.at_site])
        self.calls.append(call)
        return call

    def read_one(self, partition: int) -> Call:
        call = Call(next(self._idents), partition)
        self.sequencer.read(partition, call.number, b"[]", self._done(call))
        return call

    def read_everywhere(self) -> tuple[list[int], Call]:
        call, idents = Call(0, -1), [next(self._idents) for _ in self.at_site]
        self.sequencer.read_everywhere(idents, b"[]", [self._done(call) for _ in idents])
        return idents, call

    @staticmethod
    def _params(call: Call, size: int = 0) -> bytes:
        return orjson.dumps([call.number, "x" * size])

    def _done(self, call: Call) -> Done:
        def done(reply: Reply) -> None:
            assert not self.sequencer._lock._is_owned(), "answered under the lock"  # type: ignore[attr-defined]
            call.replies.append(reply)

        return done

    # -- as the log ------------------------------------------------------------------------------------------------------

    def take(self, bytes_max: int = BLOCK_BYTES_MAX) -> Block | None:
        raw = self.sequencer.take(bytes_max)
        if not raw:
            return None
        block = Block(len(self.blocks) + 2, [decode_record(r) for r in raw])
        self.blocks.append(block)
        return block

    def write(self) -> None:
        """The next block that is not yet written, if any, is."""
        for block in self.blocks:
            if not block.written:
                block.written = True
                self.sequencer.written(block.number)
                return

    def sync(self) -> None:
        """The next block that is not yet durable is, if it is written."""
        for block in self.blocks:
            if not block.durable:
                if block.written:
                    block.durable = True
                    self.sequencer.durable(block.number)
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
        records = [r for b in self.blocks for r in b.records if r.kind is Kind.BATCH and r.partition == partition]
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
                if record.kind is Kind.COMMIT_MARK:
                    assert record.index <= last_index[record.partition]
                    closed = max(closed, int.from_bytes(record.payload[:8], "little"))
                elif record.is_entry and record.partition in last_index:
                    assert record.index == last_index[record.partition] + 1
                    last_index[record.partition] = record.index
                    if record.kind is Kind.BATCH:
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
        assert (s.inflight_calls, s.inflight_bytes, s.pending_bytes, s._held_bytes) == (0, 0, 0, 0)
        assert s.idle
        assert not s._reads


def a_note() -> bytes:
    """Some control record."""
    return encode_json(Kind.HARD_STATE, {"vote": 1}, partition=0, term=3, index=0)
