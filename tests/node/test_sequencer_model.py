"""The sequencer against a plain model: random interleavings of everything that callers, log and sites may do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cmdlog.node.outcome import NotReady, Overloaded
from cmdlog.node.sequencing.partition_pipeline import Limits
from cmdlog.wal.errors import WriteFailed
from cmdlog.wal.format.block import block_bytes
from cmdlog.wal.format.record import RecordKind
from tests.node.pipeline import BLOCK_BYTES_MAX, Call, Pipeline, a_note


class Interleavings(RuleBasedStateMachine):
    """Everything that can happen, in any order, against lists."""

    PARTITIONS = 3

    def __init__(self) -> None:
        super().__init__()
        self.pipe: Pipeline = Pipeline(
            self.PARTITIONS,
            limits=self.limits,
            lax=self.promises == (True,),
        )
        self.order: dict[int, list[int]] = {p: [] for p in range(self.PARTITIONS)}  # calls as they were placed
        self.step_numbers: set[int] = set()
        self.reads: list[tuple[list[int], Call, set[int]]] = []  # idents, call, steps placed before
        self.single_reads: list[Call] = []
        self.entries: list[list[Any]] = []
        self.down: set[int] = set()
        self.over = False

    limits = Limits(batch_calls_max=3, batch_bytes_max=4000, site_batches_max=2, inflight_calls_max=40, inflight_bytes_max=20_000)
    promises: tuple[bool, ...] = (False,)  # whether calls may be lax: one of these each
    partitions = st.integers(0, PARTITIONS - 1)

    @rule(p=partitions, size=st.sampled_from([0, 10, 1500, 3900]), wish=st.integers(0, 5))
    def add(self, p: int, size: int, wish: int) -> None:
        self._place(lambda: [self.pipe.add(p, size=size, lax=self._lax(wish))])

    @rule(ps=st.lists(partitions, max_size=6), wish=st.integers(0, 63))
    def add_many(self, ps: list[int], wish: int) -> None:
        self._place(lambda: self.pipe.add_many(ps, lax=[self._lax(wish >> n) for n in range(len(ps))]))

    @rule(size=st.sampled_from([0, 600]), wish=st.integers(0, 5))
    def add_everywhere(self, size: int, wish: int) -> None:
        self._place(lambda: [self.pipe.add_everywhere(size=size, lax=self._lax(wish))])

    def _lax(self, wish: int) -> bool:
        return self.promises[wish % len(self.promises)]

    def _place(self, place: Any) -> None:
        before = (self.pipe.sequencer.admission.inflight_calls, self.pipe.sequencer.admission.inflight_bytes)
        try:
            calls = place()
        except (Overloaded, NotReady):
            assert (self.pipe.sequencer.admission.inflight_calls, self.pipe.sequencer.admission.inflight_bytes) == before
            return
        assert not self.over
        for call in calls:
            if call.partition < 0:
                self.step_numbers.add(call.number)
            for p in range(self.PARTITIONS) if call.partition < 0 else (call.partition,):
                self.order[p].append(call.number)

    @rule(wish=st.integers(0, 1))
    def read_everywhere(self, wish: int) -> None:
        try:
            idents, call = self.pipe.read_everywhere(lax=self._lax(wish))
        except Overloaded:
            return
        except NotReady:
            assert self.down or self.over
            return
        self.reads.append((idents, call, set(self.step_numbers)))

    @rule(p=partitions, wish=st.integers(0, 1))
    def read_one(self, p: int, wish: int) -> None:
        try:
            self.single_reads.append(self.pipe.read_one(p, lax=self._lax(wish)))
        except Overloaded:
            return
        except NotReady:
            assert p in self.down or self.over

    @rule(p=partitions)
    def add_entry(self, p: int) -> None:
        told: list[Any] = []
        self.entries.append(told)
        self.pipe.sequencer.intake.add_entry(p, RecordKind.SKIP, {"index": 0, "position": 0}, told.append)

    @rule()
    def note(self) -> None:
        self.pipe.sequencer.log_feed.add_record(a_note())
        self.pipe.sequencer.log_feed.flush_notes()

    @rule(bytes_max=st.sampled_from([8 << 10, BLOCK_BYTES_MAX]))
    def take(self, bytes_max: int) -> None:
        block = self.pipe.take(bytes_max)
        if block is not None:
            assert block_bytes([r.raw for r in block.records]) <= bytes_max

    @rule()
    def write(self) -> None:
        if not self.over:
            self.pipe.write()

    @rule()
    def sync(self) -> None:
        if not self.over:
            self.pipe.sync()

    @rule(p=partitions)
    def serve(self, p: int) -> None:
        self.pipe.serve(p)

    @rule(p=partitions, commits=st.integers(0, 2))
    def site_down(self, p: int, commits: int) -> None:
        if p not in self.down:
            self.pipe.lose_site(p, commits=commits)
            self.down.add(p)

    @rule(p=partitions)
    def site_up(self, p: int) -> None:
        if p in self.down:
            self.down.discard(p)
            self.pipe.find_site(p)

    @precondition(lambda self: len(self.pipe.calls) > 12)
    @rule()
    def fail(self) -> None:
        self.pipe.sequencer.failed(WriteFailed("disk gone"))
        self.over = True
        self.pipe.check_empty()

    @invariant()
    def accounts_agree(self) -> None:
        """What is in flight is exactly what was placed and not answered."""
        waiting = sum((self.PARTITIONS if c.partition < 0 else 1) - len(c.replies) for c in self.pipe.calls)
        assert self.pipe.sequencer.admission.inflight_calls == waiting
        assert self.pipe.sequencer.log_feed.pending_bytes + self.pipe.sequencer.admission.held_bytes >= 0

    def teardown(self) -> None:
        if not self.over:
            for p in sorted(self.down):
                self.pipe.find_site(p)
            self.pipe.settle()
            for p, placed in self.order.items():
                assert self.pipe.numbers(p) == placed, "the log holds what was placed, in that order"
        self.pipe.check_log()
        self.pipe.check_empty()
        for call in self.pipe.calls:
            assert len(call.replies) == (self.PARTITIONS if call.partition < 0 else 1)
        assert all(len(call.replies) == 1 for call in self.single_reads)
        assert all(len(told) == 1 for told in self.entries)
        for idents, call, steps in self.reads:
            assert len(call.replies) == self.PARTITIONS
            for p, ident in enumerate(idents):
                if ident in self.pipe.reads:
                    applied = self.pipe.applied[p][: self.pipe.reads[ident][1]]
                    seen = {n for n in self.step_numbers if any(b"[[%d," % n in r.raw for r in applied)}
                    assert seen == steps, "a read everywhere sees exactly the steps placed before it"


class InterleavingsLax(Interleavings):
    """The same with durability=async for every call."""

    promises = (True,)


class InterleavingsMixed(Interleavings):
    """The same with calls of either durability in the same batches."""

    promises = (False, True)


QUICK = settings(max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.slow
class TestInterleavings(Interleavings.TestCase):  # type: ignore[misc, valid-type]
    """Random interleavings, durability=sync."""

    settings = QUICK


@pytest.mark.slow
class TestInterleavingsLax(InterleavingsLax.TestCase):  # type: ignore[misc, valid-type]
    """Random interleavings, durability=async."""

    settings = QUICK


@pytest.mark.slow
class TestInterleavingsMixed(InterleavingsMixed.TestCase):  # type: ignore[misc, valid-type]
    """Random interleavings, both promises."""

    settings = QUICK
