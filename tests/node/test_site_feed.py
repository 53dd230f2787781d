"""The sequencer while a site cannot run: calls are refused or kept, never lost, never answered twice."""

from __future__ import annotations

from cmdlog.node.outcome import CallOutcome, DiskFullRefusal, UnknownOutcome
from cmdlog.node.sequencing.partition_pipeline import Limits
from cmdlog.wal.format.record import RecordKind
from tests.node.pipeline import Call, Pipeline


def kinds(*calls: Call) -> list[list[type]]:
    """Of each call's answers."""
    return [[type(reply) for reply in call.replies] for call in calls]


def logged(pipe: Pipeline) -> Call:
    """A call of partition 0 that is durable and with the site, which does not answer."""
    call = pipe.add(0)
    assert pipe.take() is not None
    pipe.write()
    pipe.sync()
    return call


def test_who_waits_for_a_batch_is_turned_away_and_what_is_logged_is_kept() -> None:
    """Nothing of a refused call is logged, a multi-partition call is refused everywhere, and the sums come back to nothing."""
    pipe = Pipeline(2, limits=Limits(site_batches_max=1))
    kept = logged(pipe)
    before, step, behind, other = pipe.add(0), pipe.add_everywhere(), pipe.add(0), pipe.add(1)
    pipe.lose_site(0)
    assert not pipe.sequencer.site_feed.refusing
    pipe.sequencer.site_feed.turn_away({0: DiskFullRefusal("full")})
    assert pipe.sequencer.site_feed.refusing
    assert kinds(before, behind, step, other) == [[DiskFullRefusal], [DiskFullRefusal], [DiskFullRefusal, DiskFullRefusal], []]
    pipe.find_site(0)
    pipe.sequencer.site_feed.turn_away({0: None})
    assert not pipe.sequencer.site_feed.refusing
    pipe.settle()
    assert kinds(kept, other) == [[CallOutcome], [CallOutcome]]
    pipe.check_empty()
    admission = pipe.sequencer.admission
    assert (admission.pending_bytes, admission.inflight_calls, admission.inflight_bytes) == (0, 0, 0)
    after = pipe.add(0)
    pipe.settle()
    assert kinds(after) == [[CallOutcome]]


def test_a_held_site_serves_reads_and_gets_no_batch_before_it_is_let_go() -> None:
    """The state that it has may be read; the batch that it could not run comes when it is tried."""
    pipe = Pipeline(2)
    call = logged(pipe)
    pipe.lose_site(0)
    pipe.sequencer.site_feed.hold(0)
    pipe.find_site(0)
    assert [kind for kind, _, _ in pipe.at_site[0]] == []
    read = pipe.read_one(0)
    pipe.settle()
    assert kinds(call, read) == [[], [CallOutcome]]
    pipe.sequencer.site_feed.let_go(0)
    pipe.settle()
    assert kinds(call) == [[CallOutcome]]
    pipe.check_empty()


def test_who_has_waited_too_long_is_told_once_that_nobody_knows() -> None:
    """Also behind a multi-partition call that the partition runs first; others are left alone, and everything is executed."""
    pipe = Pipeline(3)
    mine = logged(pipe)
    step = pipe.add_everywhere()
    pipe.take()
    behind = pipe.add(1)
    pipe.take()
    for _ in range(2):
        pipe.write()
        pipe.sync()
    pipe.lose_site(0)
    assert pipe.sequencer.site_feed.waiting() == {0: 2, 1: 2, 2: 1}
    told = [pipe.sequencer.site_feed.give_up([0], "no room") for _ in range(2)]
    assert told == [5, 0]
    assert kinds(mine, step, behind) == [[UnknownOutcome], [UnknownOutcome] * 3, [UnknownOutcome]]
    pipe.find_site(0)
    pipe.settle()
    assert kinds(mine, step, behind) == [[UnknownOutcome], [UnknownOutcome] * 3, [UnknownOutcome]]
    assert [pipe.numbers(p) for p in range(3)] == [[0, 1], [1, 2], [1]]
    pipe.check_empty()


def test_only_what_the_partition_holds_up_is_given_up() -> None:
    """A batch of another partition is answered as ever."""
    pipe = Pipeline(2)
    other = pipe.add(1)
    mine = logged(pipe)
    pipe.lose_site(0)
    assert pipe.sequencer.site_feed.give_up([0], "no room") == 1
    pipe.settle()
    assert kinds(mine, other) == [[UnknownOutcome], [CallOutcome]]


def test_a_digest_names_the_term_of_its_batch() -> None:
    """Also when another term has begun since: the record of the batch says it."""
    pipe = Pipeline(1)
    logged(pipe)
    pipe.sequencer.replicated.lead({0: (9, 2)}, catalog=1)
    pipe.sequencer.site_feed.answered(0, 1, [(0, 0, b"1")], b"\0", (5, 1, bytes(4)))
    pipe.sequencer.log_feed.flush_notes()
    block = pipe.take()
    assert block is not None
    assert [(r.partition, r.term, r.index) for r in block.records if r.kind is RecordKind.DIGEST] == [(0, 3, 1)]
