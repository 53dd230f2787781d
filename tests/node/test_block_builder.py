"""Multi-partition steps and reads everywhere: one id, one block, and all of it or nothing."""

from __future__ import annotations

import pytest

from cmdlog.node.outcome import CallOutcome, CallTooLarge
from cmdlog.node.sequencing.block_builder import ControlRecords
from cmdlog.node.sequencing.partition_pipeline import Limits
from cmdlog.wal.format.block import HEADER
from cmdlog.wal.format.record import RecordKind
from cmdlog.wal.ids import MULTI_PARTITION, txn_partition
from tests.node.pipeline import Pipeline


def test_a_step_has_one_id_and_one_block() -> None:
    """A multi-partition call gets one transaction id everywhere and lies in one block, behind what was called before it."""
    pipe = Pipeline(3)
    pipe.add(0)
    pipe.add(2)
    call = pipe.add_everywhere()
    pipe.add(1)
    pipe.settle()
    assert [pipe.numbers(p) for p in range(3)] == [[0, 2], [2, 3], [1, 2]]
    steps = [(b.number, r) for b in pipe.blocks for r in b.records if r.kind is RecordKind.BATCH and r.raw.count(b"[2,")]
    assert len({number for number, _ in steps}) == 1
    ids = {reply.txn_id for reply in call.replies if isinstance(reply, CallOutcome)}
    assert len(ids) == 1
    assert txn_partition(ids.pop()) == MULTI_PARTITION
    assert len(call.replies) == 3
    pipe.check_log()
    pipe.check_empty()


def test_steps_wait_for_busy_sites_too() -> None:
    """A series of multi-partition calls has no more batches under way than `site_batches_max`."""
    pipe = Pipeline(2, limits=Limits(site_batches_max=2))
    for _ in range(10):
        pipe.add_everywhere()
    for _ in range(20):
        pipe.take()
    assert max(m["batches_under_way"] for m in pipe.sequencer.watermarks().values()) == 2
    pipe.settle()
    assert pipe.numbers(0) == pipe.numbers(1) == list(range(10))
    pipe.check_empty()


def test_a_step_too_large_for_any_block_is_refused() -> None:
    """The copies for all partitions count together, before anything is placed."""
    pipe = Pipeline(4, limits=Limits(batch_bytes_max=4000))
    with pytest.raises(CallTooLarge):
        pipe.add_everywhere(size=1000)
    pipe.check_empty()


def test_reads_everywhere_see_all_or_nothing_of_a_step() -> None:
    """A marker placed before a multi-partition call is served before it in every partition, one placed after it, after."""
    pipe = Pipeline(2)
    pipe.add(0)
    before, _ = pipe.read_everywhere()
    pipe.add_everywhere()
    after, call = pipe.read_everywhere()
    pipe.add_everywhere()
    pipe.settle()
    step = {p: next(i for i, r in enumerate(pipe.applied[p]) if b"[1," in r.raw) for p in (0, 1)}
    for p in (0, 1):
        assert pipe.reads[before[p]][1] <= step[p]
        assert pipe.reads[after[p]][1] == step[p] + 1
    assert len(call.replies) == 2


def test_a_multi_partition_call_is_met_on_the_first_partition_alone() -> None:
    """The others get it when it is done there: until then it may be skipped, on all of them; afterwards on none."""
    pipe = Pipeline(3)
    call = pipe.add_everywhere()
    pipe.add(2)
    assert pipe.take() is not None
    pipe.write()
    pipe.sync()
    assert [len(pipe.at_site[p]) for p in range(3)] == [1, 0, 0]
    index = pipe.blocks[-1].records[0].index
    assert (
        pipe.sequencer.site_feed.places_of(0, index)
        == pipe.sequencer.site_feed.places_of(2, index)
        == [(0, index), (1, index), (2, index)]
    )
    pipe.lose_site(0)
    pipe.find_site(0)
    assert [len(pipe.at_site[p]) for p in range(3)] == [1, 0, 0]
    assert pipe.serve(0)
    assert all(pipe.at_site[p] for p in (1, 2))
    assert pipe.sequencer.site_feed.places_of(2, index) == []
    pipe.settle()
    pipe.check_empty()
    assert len(call.replies) == 3 or len(call.replies) == 1


def test_a_site_that_dies_between_doing_a_multi_partition_call_and_saying_so_holds_nobody_back() -> None:
    """Its successor stands behind the call, so the other partitions get it."""
    pipe = Pipeline(2)
    pipe.add_everywhere()
    assert pipe.take() is not None
    pipe.write()
    pipe.sync()
    pipe.lose_site(0, commits=1)
    assert not pipe.at_site[1]
    pipe.find_site(0)
    assert pipe.at_site[1]
    pipe.settle()
    pipe.check_empty()


def test_notes_leave_what_is_kept_for_others() -> None:
    """A note that would take of it waits. A block that has it over asks nobody; at a segment's end the log says what there is."""
    room_bytes = [HEADER.bytes + 2999]
    notes = ControlRecords(room_bytes=lambda: room_bytes[0], kept_bytes=8192)
    notes.waiting.append((bytes(3000), None))
    assert notes.take_records(8192 + HEADER.bytes + 2999) == ([], 0)
    assert len(notes.waiting) == 1
    taken, size_bytes = notes.take_records(8192 + HEADER.bytes + 3000)
    assert [note for note, _ in taken] == [bytes(3000)]
    assert size_bytes >= 3000
    notes.put_back(taken)
    room_bytes[0] += 1  # of the next segment, beyond what is kept
    assert notes.take_records(4096)[0] == taken
