"""The sequencer's promises of durability, call by call: who waits for the disk, and whom a failure tells."""

from __future__ import annotations

from collections.abc import Callable

from cmdlog.node.outcome import CallOutcome, Reply, UnknownOutcome
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


def test_what_is_executed_ahead_of_the_disk_is_answered_behind_it() -> None:
    """Batches go to the site when they are written, whatever their calls were promised; only lax calls are answered then."""
    pipe = Pipeline(1, limits=Limits(batch_calls_max=1, site_batches_max=8))
    first, second, lax, behind = (pipe.add(0, lax=n == 2) for n in range(4))
    pipe.take(4096)
    while len(pipe.batches(0)) < 4:
        assert pipe.take(4096) is not None
    while not all(b.written for b in pipe.blocks):
        pipe.write()
    assert [ident for _, ident, _ in pipe.at_site[0]] == [1, 2, 3, 4]
    while pipe.serve(0):
        pass
    assert [len(call.replies) for call in (first, second, lax, behind)] == [0, 0, 1, 0]
    pipe.settle()
    pipe.check_empty()


def test_a_batch_waits_for_its_write() -> None:
    """One whose block is not written stays where it is, and so does what stands behind it."""
    pipe = Pipeline(1, limits=Limits(batch_calls_max=1, site_batches_max=8))
    pipe.add(0)
    assert pipe.take(2048) is not None
    pipe.add(0, lax=True)
    assert pipe.take(2048) is not None
    assert not pipe.at_site[0]
    pipe.write()
    assert [ident for _, ident, _ in pipe.at_site[0]] == [1]
    pipe.write()
    assert [ident for _, ident, _ in pipe.at_site[0]] == [1, 2]
    pipe.settle()


def test_a_site_that_ends_ahead_of_the_disk_leaves_its_batches_unknown() -> None:
    """What it had executed is not run again, nobody learns of it, and what it had not goes to its successor."""
    pipe = Pipeline(1, limits=Limits(batch_calls_max=1, site_batches_max=8))
    answered, lost, waiting = (pipe.add(0) for _ in range(3))
    pipe.take()
    pipe.write()
    pipe.serve(0)
    pipe.lose_site(0, commits=1)
    pipe.find_site(0)
    assert [ident for _, ident, _ in pipe.at_site[0]] == [3]
    assert [[type(reply) for reply in call.replies] for call in (answered, lost, waiting)] == [[], [UnknownOutcome], []]
    pipe.settle()
    assert [type(call.replies[0]) for call in (answered, lost, waiting)] == [CallOutcome, UnknownOutcome, CallOutcome]
    pipe.check_empty()


def test_a_multi_partition_call_is_done_everywhere_ahead_of_the_disk() -> None:
    """Its first partition has done it, the others get it: all of them before it is durable, and no caller is answered."""
    pipe = Pipeline(3)
    call = pipe.add_everywhere()
    pipe.take()
    pipe.write()
    assert [len(pipe.at_site[p]) for p in range(3)] == [1, 0, 0]
    for p in range(3):
        assert pipe.serve(p)
    assert not call.replies
    pipe.sync()
    assert len(call.replies) == 3
    pipe.settle()
    pipe.check_empty()


def test_marks_and_digests_never_run_ahead_of_the_disk() -> None:
    """While batches are executed and not durable, a block of notes states no commit of theirs."""
    pipe = Pipeline(1, limits=Limits(site_batches_max=8))
    for _ in range(2):
        pipe.add(0)
        pipe.take()
        pipe.write()
        pipe.serve(0)
    pipe.sync()
    pipe.sequencer.log_feed.add_record(a_note())
    pipe.sequencer.log_feed.flush_notes()
    block = pipe.take()
    assert block is not None
    assert [r.index for r in block.records if r.kind is RecordKind.COMMIT_MARK] == [1]
    pipe.settle()
    pipe.check_log()


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
        (True, lambda: sequencer.intake.add_entry(0, RecordKind.SKIP, {"index": 0, "position": 0}, told.append)),
        (False, lambda: sequencer.log_feed.add_record(a_note())),
        (True, lambda: sequencer.log_feed.add_record(a_note(), lambda: told.append(1))),
    ]
    for waits, fill in fills:
        fill()
        sequencer.log_feed.flush_notes()
        assert pipe.take() is not None
        assert pipe.sequencer.log_feed.waits is waits
        pipe.settle()


def test_a_split_batch_keeps_every_calls_promise() -> None:
    """Calls that are cut off an open batch for want of room take their promises along."""
    pipe = Pipeline(1, limits=Limits(batch_calls_max=3, site_batches_max=1))
    calls = pipe.add_many([0] * 6, lax=[False, False, False, True, True, False])
    pipe.take()
    pipe.write()
    pipe.serve(0)
    assert not any(call.replies for call in calls)
    pipe.sync()
    pipe.take()
    pipe.write()
    pipe.serve(0)
    assert [len(call.replies) for call in calls] == [1, 1, 1, 1, 1, 0]
    pipe.settle()
    pipe.check_empty()


def test_a_node_that_has_failed_tells_nobody_of_a_commit() -> None:
    """They were told that it is unknown."""
    pipe = Pipeline(1)
    told: list[Reply] = []
    pipe.sequencer.intake.add_entries([(0, RecordKind.SKIP, {"index": 1, "position": 0})], told.append)
    pipe.take()
    flight = pipe.sequencer._streams[0].flights[0]
    pipe.write()
    pipe.sequencer.failed(OSError("gone"))
    before = len(told)
    pipe.blocks[0].durable = True
    assert not pipe.sequencer.log_feed.commit([(pipe.sequencer._streams[0], flight)], now=1.0)
    assert (before, len(told)) == (1, 1)
