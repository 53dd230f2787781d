"""The sequencer, driven by hand: places, limits, sites that come and go, failure."""

from __future__ import annotations

from typing import Any

import pytest

from cmdlog.node.outcome import CallOutcome, DiskFullRefusal, LogFullRefusal, NotReady, Overloaded, UnknownOutcome
from cmdlog.node.sequencing.flight import CALL_OVERHEAD_BYTES
from cmdlog.node.sequencing.partition_pipeline import Limits
from cmdlog.wal.errors import Wedged, WriteFailed
from cmdlog.wal.format.block import block_bytes
from cmdlog.wal.format.record import RecordKind, encode_record
from cmdlog.wal.ids import txn_partition
from tests.node.pipeline import Pipeline, a_note


def test_calls_keep_their_order_and_get_growing_ids() -> None:
    """A partition's calls are logged in the order of `add`, under consecutive indexes and growing transaction ids."""
    pipe = Pipeline(2, limits=Limits(batch_calls_max=3))
    calls = [pipe.add(n % 2) for n in range(20)]
    pipe.settle()
    for p in (0, 1):
        assert pipe.numbers(p) == [c.number for c in calls if c.partition == p]
        ids = [t for b in pipe.batches(p) for t in b.txn_ids]
        assert ids == sorted(set(ids))
        assert {txn_partition(t) for t in ids} == {p}
        assert max(b.count for b in pipe.batches(p)) == 3
    pipe.check_log()
    pipe.check_empty()
    for call in calls:
        (reply,) = call.replies
        assert isinstance(reply, CallOutcome)
        assert reply.txn_id in [t for b in pipe.batches(call.partition) for t in b.txn_ids]


def test_ids_grow_while_the_clock_falls() -> None:
    """A wall clock that goes back an hour between two blocks gives no smaller transaction id."""
    pipe = Pipeline(1)
    pipe.add(0)
    pipe.settle()
    pipe.time[0] -= 3600
    pipe.add(0)
    pipe.settle()
    pipe.check_log()


def test_batches_keep_both_limits() -> None:
    """No batch has more calls or bytes than allowed, but a call that is larger alone goes alone."""
    pipe = Pipeline(1, limits=Limits(batch_calls_max=100, batch_bytes_max=1000, site_batches_max=64))
    for size in (100, 300, 300, 300, 5000, 10, 10):
        pipe.add(0, size=size)
    pipe.settle()
    sizes = [(b.count, len(b.text) + CALL_OVERHEAD_BYTES * b.count) for b in pipe.batches(0)]
    assert all(size <= 1000 or calls == 1 for calls, size in sizes)
    assert [calls for calls, _ in sizes] == [3, 1, 1, 2]
    pipe.check_empty()


def test_a_batch_stays_open_while_the_site_is_busy() -> None:
    """With `site_batches_max` batches under way the next one grows instead of queueing."""
    pipe = Pipeline(1, limits=Limits(site_batches_max=2))
    for _ in range(2):
        pipe.add(0)
        assert pipe.take() is not None
    for _ in range(5):
        pipe.add(0)
        assert pipe.take() is None
    pipe.write()
    pipe.sync()
    before = pipe.kicks
    assert pipe.serve(0)
    assert pipe.kicks > before
    pipe.settle()
    assert [b.count for b in pipe.batches(0)] == [1, 1, 5]


def test_what_no_block_can_take_is_not_pending() -> None:
    """Calls behind a busy site are not announced to the log: it would give up the rest of its segment for nothing."""
    pipe = Pipeline(1, limits=Limits(site_batches_max=1))
    pipe.add(0)
    pipe.take()
    pipe.add(0)
    assert pipe.take(5000) is None
    assert pipe.sequencer.log_feed.pending_bytes == 0
    pipe.write()
    pipe.sync()
    pipe.serve(0)
    assert pipe.sequencer.log_feed.pending_bytes > 0
    pipe.settle()
    pipe.check_empty()


def test_what_a_block_had_no_room_for_is_asked_for_again() -> None:
    """A stream whose calls did not fit into a block gets the next one, though nobody calls meanwhile."""
    pipe = Pipeline(2)
    pipe.add(0, size=3000)
    pipe.add(1, size=3000)
    pipe.kicks = 0
    block = pipe.take(4096)
    assert block is not None
    assert [r.partition for r in block.records if r.kind is RecordKind.BATCH] == [0]
    assert pipe.kicks == 1
    assert pipe.sequencer.log_feed.pending_bytes > 0
    pipe.settle()
    pipe.check_empty()


@pytest.mark.parametrize("size", [0, 1, 50, 999, 1000, 4000])
def test_a_block_keeps_its_limit_with_notes_and_many_batches(size: int) -> None:
    """Batches of all partitions, digests and commit marks together fit the block, padding and header included."""
    bytes_max = 64 << 10
    pipe = Pipeline(8, limits=Limits(batch_bytes_max=16 << 10, batch_calls_max=60_000, site_batches_max=64))
    for n in range(60_000 // (size + 60)):
        for p in range(8):
            pipe.add(p, size=size)
        if n % 3 == 0:
            record = encode_record(RecordKind.DIGEST, bytes(n * 13 % 900), partition=0, term=3, index=1)
            pipe.sequencer.log_feed.add_record(record)
    for _ in range(500):
        block = pipe.take(bytes_max)
        if block is None:
            break
        assert block_bytes([r.raw for r in block.records]) <= bytes_max
    assert pipe.sequencer.log_feed.pending_bytes == 0
    assert sum(len(pipe.numbers(p)) for p in range(8)) == len(pipe.calls)


def test_a_block_keeps_its_limit_with_entries_of_every_partition() -> None:
    """A skip of all partitions comes while the first of them alone could fill the block."""
    bytes_max = 64 << 10
    pipe = Pipeline(4, limits=Limits(batch_bytes_max=16 << 10, site_batches_max=64))
    for size in (16_384, 16_384, 16_384, 14_900):  # as the limits count: together no byte less than the block takes
        pipe.add(0, size=size - CALL_OVERHEAD_BYTES - len(b'[0,""]'))
    for p in range(4):
        pipe.sequencer.intake.add_entry(p, RecordKind.SKIP, {"index": 1, "position": 1, "reason": "x" * 400}, lambda _reply: None)
    block = pipe.take(bytes_max)
    assert block is not None
    assert sum(record.kind is RecordKind.SKIP for record in block.records) == 4
    assert block_bytes([record.raw for record in block.records]) <= bytes_max


def test_a_large_note_and_a_large_step_take_two_blocks() -> None:
    """A multi-partition call that does not fit beside waiting notes follows them, and neither waits for ever."""
    pipe = Pipeline(2, limits=Limits(batch_bytes_max=30_000))
    for _ in range(3):
        pipe.sequencer.log_feed.add_record(encode_record(RecordKind.DIGEST, bytes(9000), partition=0, term=3, index=1))
    pipe.add_everywhere(size=14_000)
    first, second = pipe.take(32 << 10), pipe.take(32 << 10)
    assert first is not None
    assert second is not None
    for block in (first, second):
        assert block_bytes([r.raw for r in block.records]) <= 32 << 10
    pipe.settle()
    assert [b.count for p in (0, 1) for b in pipe.batches(p)] == [1, 1]
    pipe.check_empty()


def test_each_limit_refuses_by_its_name_and_logs_nothing() -> None:
    """Too many calls, too many bytes and a full log refuse; what was refused leaves no trace in the accounts."""
    pipe = Pipeline(1, limits=Limits(inflight_calls_max=2, inflight_bytes_max=1000))
    with pytest.raises(Overloaded, match="inflight_bytes_max=1000"):
        pipe.add(0, size=1000)
    pipe.add(0)
    pipe.add(0)
    with pytest.raises(Overloaded, match="inflight_calls_max=2"):
        pipe.add(0)
    with pytest.raises(Overloaded, match="inflight_calls_max"):
        pipe.add_many([0])
    pipe.settle()
    assert len(pipe.numbers(0)) == 2
    pipe.check_empty()
    full = Pipeline(1, room_bytes=lambda: 100)
    with pytest.raises(LogFullRefusal):
        full.add(0)
    assert full.take() is None
    full.check_empty()


def test_room_counts_what_waits_behind_a_busy_site() -> None:
    """Calls that no block can take yet use room too: later calls are refused before the log is full, not after."""
    pipe = Pipeline(1, limits=Limits(site_batches_max=1), room_bytes=lambda: 2000)
    pipe.add(0, size=100)
    pipe.take()
    pipe.add(0, size=1000)
    pipe.take()
    with pytest.raises(LogFullRefusal):
        pipe.add(0, size=1000)
    pipe.settle()


def test_add_many_is_all_or_nothing() -> None:
    """One call too many refuses all of them; a refused partition refuses the calls to the others too."""
    pipe = Pipeline(2, limits=Limits(inflight_calls_max=3))
    with pytest.raises(Overloaded):
        pipe.add_many([0, 1, 0, 1])
    pipe.sequencer.site_feed.turn_away({1: DiskFullRefusal("full")})
    with pytest.raises(DiskFullRefusal):
        pipe.add_many([0, 1])
    with pytest.raises(DiskFullRefusal):
        pipe.add_everywhere()
    pipe.check_empty()
    pipe.add_many([0, 0])
    pipe.sequencer.site_feed.turn_away({1: None})
    pipe.add_many([1])
    pipe.settle()
    pipe.check_empty()


@pytest.mark.parametrize("lax", [False, True])
def test_nothing_is_given_to_a_site_before_it_is_safe(lax: bool) -> None:
    """A batch reaches its site when its block is written, not before; its durability sends it no second time."""
    pipe = Pipeline(1, lax=lax)
    pipe.add(0)
    pipe.take()
    assert not pipe.at_site[0]
    pipe.write()
    assert len(pipe.at_site[0]) == 1
    pipe.sync()
    assert len(pipe.at_site[0]) == 1
    pipe.settle()
    pipe.check_empty()


def test_a_read_goes_behind_what_the_site_was_given() -> None:
    """A single-partition read sees every write that was answered before it was asked for."""
    pipe = Pipeline(1)
    pipe.add(0)
    pipe.take()
    pipe.write()
    pipe.sync()
    pipe.read_one(0)
    assert [kind for kind, *_ in pipe.at_site[0]] == ["batch", "read"]
    pipe.settle()


def test_a_lost_site_gets_exactly_the_unanswered_again() -> None:
    """Its successor is sent what the state does not hold, in order; what it held unanswered is unknown; reads are refused."""
    pipe = Pipeline(1, limits=Limits(batch_calls_max=1, site_batches_max=10))
    calls = [pipe.add(0) for _ in range(5)]
    pipe.take()
    pipe.write()
    pipe.sync()
    pipe.serve(0)
    read = pipe.read_one(0)
    pipe.lose_site(0, commits=2)
    assert isinstance(read.replies[0], NotReady)
    with pytest.raises(NotReady):
        pipe.read_one(0)
    with pytest.raises(NotReady):
        pipe.read_everywhere()
    late = pipe.add(0)
    pipe.take()
    pipe.write()
    pipe.sync()
    assert not pipe.at_site[0]
    pipe.find_site(0)
    assert [index for _, index, _ in pipe.at_site[0]] == [4, 5, 6]
    pipe.settle()
    assert [type(c.replies[0]) for c in (*calls, late)] == [
        CallOutcome,
        UnknownOutcome,
        UnknownOutcome,
        CallOutcome,
        CallOutcome,
        CallOutcome,
    ]
    assert all(len(c.replies) == 1 for c in calls)
    pipe.check_empty()


def test_control_entries_go_first_and_report_once() -> None:
    """An entry takes the next index before any batch, and `done` hears of it when it is durable, not earlier."""
    pipe = Pipeline(1)
    told: list[Any] = []
    pipe.add(0)
    pipe.sequencer.intake.add_entry(0, RecordKind.SKIP, {"index": 1, "position": 0, "reason": "test"}, told.append)
    block = pipe.take()
    assert block is not None
    assert [r.kind for r in block.records][:2] == [RecordKind.SKIP, RecordKind.BATCH]
    pipe.write()
    assert not told
    pipe.sync()
    assert len(told) == 1
    pipe.settle()
    assert len(told) == 1
    pipe.check_log()
    pipe.check_empty()


def test_notes_wait_for_a_block_and_report_when_durable() -> None:
    """Notes alone make no block until they are flushed; each `done` belongs to the block that holds its note."""
    pipe = Pipeline(1)
    told: list[int] = []
    pipe.sequencer.log_feed.add_record(a_note(), lambda: told.append(1))
    assert pipe.take() is None
    pipe.sequencer.log_feed.flush_notes()
    assert pipe.take() is not None
    pipe.sequencer.log_feed.add_record(a_note(), lambda: told.append(2))
    pipe.write()
    pipe.sync()
    assert told == [1]
    pipe.add(0)
    pipe.settle()
    assert told == [1, 2]


def test_idle_flush_of_nothing_is_no_block() -> None:
    """An idle node whose marks are written has nothing to say, however often it is asked."""
    pipe = Pipeline(2)
    pipe.add(0)
    pipe.settle()
    for _ in range(5):
        pipe.sequencer.log_feed.flush_notes()
        pipe.settle()
    blocks = len(pipe.blocks)
    pipe.sequencer.log_feed.flush_notes()
    assert pipe.take() is None
    assert len(pipe.blocks) == blocks


def test_failure_tells_everybody_once_and_lets_nobody_in() -> None:
    """Calls in every stage, reads and entries get `outcome_unknown` once; late answers of sites are nobody's."""
    pipe = Pipeline(2, limits=Limits(batch_calls_max=1, site_batches_max=2))
    waiting = [pipe.add(0) for _ in range(5)]
    pipe.take()
    pipe.write()
    pipe.sync()
    waiting += [pipe.add_everywhere(), pipe.read_everywhere()[1], pipe.read_one(1)]
    entry: list[Any] = []
    pipe.sequencer.intake.add_entry(0, RecordKind.SKIP, {"index": 1, "position": 0, "reason": ""}, entry.append)
    pipe.take()
    pipe.sequencer.intake.add_entry(0, RecordKind.SKIP, {"index": 1, "position": 0, "reason": ""}, entry.append)
    error = WriteFailed("fdatasync: Input/output error")
    pipe.sequencer.failed(error)
    pipe.sequencer.failed(WriteFailed("again"))
    assert pipe.failures == [error]
    assert len(entry) == 2
    for call in waiting:
        assert len(call.replies) == (2 if call.partition < 0 else 1)
        assert all(isinstance(r, UnknownOutcome) and "Input/output" in str(r) for r in call.replies)
    with pytest.raises(NotReady, match="Input/output"):
        pipe.add(0)
    pipe.sequencer.intake.add_entry(0, RecordKind.SKIP, {}, entry.append)
    assert len(entry) == 3
    pipe.check_empty()
    while any(pipe.serve(p) for p in (0, 1)):
        pass
    pipe.sequencer.site_feed.site_down(0)
    pipe.sequencer.site_feed.site_up(0, 0)
    pipe.sync()
    assert all(len(call.replies) <= 2 for call in waiting)
    pipe.check_empty()


def test_an_answer_is_given_although_the_log_has_failed_meanwhile() -> None:
    """The kick behind an answer meets a wedged log; the call's outcome is told all the same."""
    pipe = Pipeline(1, limits=Limits(site_batches_max=1))
    first = pipe.add(0)
    pipe.take()
    pipe.write()
    pipe.sync()
    pipe.add(0)
    pipe.wedged = True
    pipe.serve(0)
    assert isinstance(first.replies[0], CallOutcome)
    pipe.sequencer.site_feed.site_down(0)
    pipe.sequencer.site_feed.site_up(0, 1)


def test_an_entry_that_was_applied_before_it_was_durable_is_told_when_the_log_fails() -> None:
    """Before a call with durability=async a site may answer first; whoever waits for the entry still hears that nobody knows."""
    pipe = Pipeline(1)
    told: list[object] = []
    pipe.sequencer.intake.add_entry(0, RecordKind.SKIP, {"index": 1, "position": 0}, told.append)
    pipe.add(0, lax=True)
    assert pipe.take() is not None
    pipe.write()
    assert pipe.serve(0)
    pipe.sequencer.failed(Wedged("planted"))
    assert [type(reply) for reply in told] == [UnknownOutcome]
