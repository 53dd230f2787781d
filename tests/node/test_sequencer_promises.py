"""The sequencer's promises of durability, call by call: who waits for the disk, and whom a failure tells."""

from __future__ import annotations

from collections.abc import Callable

from cmdlog.node.outcome import CallOutcome, UnknownOutcome
from cmdlog.node.sequencing.partition_pipeline import Limits
from cmdlog.wal.errors import Wedged
from cmdlog.wal.format.record import RecordKind
from tests.node.pipeline import Pipeline, a_note


def test_calls_of_one_batch_are_answered_as_each_was_promised() -> None:
    """Of a batch that is executed ahead of the disk, lax calls are answered at once and the others when it is durable."""
    pipe = Pipeline(1)
    calls = pipe.add_many([0] * 5, lax=[False, True, False, True, False])
    pipe.take()
    pipe.write()
    assert pipe.serve(0)
    assert [len(call.replies) for call in calls] == [0, 1, 0, 1, 0]
    assert pipe.sequencer.admission.inflight_calls == 3
    assert not pipe.sequencer.idle
    pipe.sync()
    assert [len(call.replies) for call in calls] == [1] * 5
    pipe.settle()
    pipe.check_empty()


def test_a_lax_call_takes_what_stands_before_it_along() -> None:
    """Batches of calls that wait for the disk are executed early when a lax one stands behind them, and still answered late."""
    pipe = Pipeline(1, limits=Limits(batch_calls_max=1, site_batches_max=8))
    first, second, lax, behind = (pipe.add(0, lax=n == 2) for n in range(4))
    pipe.take(4096)
    while len(pipe.batches(0)) < 4:
        assert pipe.take(4096) is not None
    while not all(b.written for b in pipe.blocks):
        pipe.write()
    assert [ident for _, ident, _ in pipe.at_site[0]] == [1, 2, 3]
    while pipe.serve(0):
        pass
    assert [len(call.replies) for call in (first, second, lax, behind)] == [0, 0, 1, 0]
    pipe.settle()
    pipe.check_empty()


def test_a_lax_call_waits_for_its_write_and_for_those_before_it() -> None:
    """A lax call whose block is not written, or stands behind one that is not, stays where it is."""
    pipe = Pipeline(1, limits=Limits(batch_calls_max=1, site_batches_max=8))
    pipe.add(0)
    assert pipe.take(2048) is not None
    pipe.add(0, lax=True)
    assert pipe.take(2048) is not None
    pipe.write()
    assert not pipe.at_site[0]
    pipe.write()
    assert len(pipe.at_site[0]) == 2
    pipe.settle()


def test_a_read_waits_until_what_it_may_have_seen_is_durable() -> None:
    """A read behind a lax call that is executed, and not durable, is held; a lax read is not; afterwards none is."""
    pipe = Pipeline(1)
    pipe.add(0, lax=True)
    pipe.take()
    pipe.write()
    strict, lax = pipe.read_one(0), pipe.read_one(0, lax=True)
    while pipe.serve(0):
        pass
    assert (len(strict.replies), len(lax.replies)) == (0, 1)
    assert pipe.hastened
    assert not pipe.sequencer.idle
    pipe.sync()
    assert len(strict.replies) == 1
    late = pipe.read_one(0)
    pipe.serve(0)
    assert len(late.replies) == 1
    pipe.check_empty()


def test_a_read_everywhere_waits_for_the_partitions_that_ran_ahead() -> None:
    """Each partition's part of a multi-partition read is held by that partition's own lax calls."""
    pipe = Pipeline(2)
    pipe.add(0, lax=True)
    pipe.take()
    pipe.write()
    _, call = pipe.read_everywhere()
    for p in (0, 1):
        while pipe.serve(p):
            pass
    assert len(call.replies) == 1
    pipe.settle()
    assert len(call.replies) == 2
    pipe.check_empty()


def test_a_query_may_wait_for_the_disk() -> None:
    """`when_durable` calls back at once when nothing ran ahead, else with the block, and says when the node fails instead."""
    pipe = Pipeline(1)
    told: list[object] = []
    pipe.sequencer.reads.when_durable(0, told.append)
    assert len(told) == 1
    for fails in (False, True):
        pipe.add(0, lax=True)
        pipe.take()
        pipe.write()
        before = pipe.hastened
        pipe.sequencer.reads.when_durable(0, told.append)
        assert len(told) == 1 + fails
        assert pipe.hastened == before + 1
        if fails:
            pipe.sequencer.failed(Wedged("planted"))
        pipe.sync()
        assert len(told) == 2 + fails
        pipe.serve(0)
    assert isinstance(told[-1], UnknownOutcome)
    pipe.sequencer.reads.when_durable(0, told.append)
    assert isinstance(told[-1], UnknownOutcome)


def test_a_failure_tells_those_who_wait_for_the_disk_and_nobody_twice() -> None:
    """Of a batch that was executed and is not durable, the lax calls keep their answers and the others hear that nobody knows."""
    pipe = Pipeline(1)
    calls = pipe.add_many([0] * 3, lax=[False, True, False])
    pipe.take()
    pipe.write()
    pipe.serve(0)
    pipe.sequencer.failed(Wedged("planted"))
    assert [[type(reply) for reply in call.replies] for call in calls] == [[UnknownOutcome], [CallOutcome], [UnknownOutcome]]
    pipe.sync()
    assert all(len(call.replies) == 1 for call in calls)
    pipe.check_empty()


def test_the_log_hears_whether_somebody_waits_for_a_block() -> None:
    """A block of lax calls and of notes that nobody asks after needs no sync of its own; any other does."""
    pipe = Pipeline(1)
    sequencer, told = pipe.sequencer, list[object]()
    fills: list[tuple[bool, Callable[[], object]]] = [
        (False, lambda: pipe.add(0, lax=True)),
        (True, lambda: pipe.add(0, lax=False)),
        (True, lambda: pipe.add_many([0, 0], lax=[True, False])),
        (True, lambda: sequencer.add_entry(0, RecordKind.SKIP, {"index": 0, "position": 0}, told.append)),
        (False, lambda: sequencer.add_record(a_note())),
        (True, lambda: sequencer.add_record(a_note(), lambda: told.append(1))),
    ]
    for waits, fill in fills:
        fill()
        sequencer.flush_notes()
        assert pipe.take() is not None
        assert pipe.sequencer.waits is waits
        pipe.settle()


def test_a_split_batch_keeps_every_calls_promise() -> None:
    """Calls that are cut off an open batch for want of room take their promises along."""
    pipe = Pipeline(1, limits=Limits(batch_calls_max=3, site_batches_max=1))
    calls = pipe.add_many([0] * 6, lax=[False, False, False, True, True, False])
    pipe.take()
    pipe.write()
    assert not pipe.at_site[0]
    pipe.sync()
    pipe.serve(0)
    pipe.take()
    pipe.write()
    pipe.serve(0)
    assert [len(call.replies) for call in calls] == [1, 1, 1, 1, 1, 0]
    pipe.settle()
    pipe.check_empty()
