"""Commits: what is committed may go to its site, and who waited for that alone is answered, outside the lock."""

from __future__ import annotations

from cmdlog.node.outcome import CallOutcome, Reply
from cmdlog.node.sequencing.log_feed import DueAnswers
from cmdlog.wal.format.record import RecordKind
from tests.node.pipeline import Pipeline


def test_due_answers_are_given_once_asked_and_not_before() -> None:
    """They are gathered under the lock, in order, and given without it."""
    due, got = DueAnswers(), list[tuple[str, Reply]]()
    reply = CallOutcome(0, 1, b"")
    due.add(lambda said: got.append(("one", said)), reply)
    due.extend([(lambda said: got.append(("two", said)), reply), (lambda said: got.append(("three", said)), reply)])
    assert not got
    due.give()
    assert [name for name, _ in got] == ["one", "two", "three"]
    assert all(said is reply for _, said in got)


def test_commits_go_to_their_sites_in_order() -> None:
    """Batches of several partitions that are committed together: each site gets its own, as they were logged."""
    pipe = Pipeline(2)
    for partition in (0, 1, 0, 1):
        pipe.add(partition)
        pipe.take()
        pipe.write()
    stream = pipe.sequencer._streams
    flights = [(stream[p], flight) for p in (0, 1) for flight in stream[p].flights]
    for block in pipe.blocks:
        block.durable = True
    pipe.sequencer.log_feed.commit(flights, now=1.0).give()
    assert [[index for _, index, _ in pipe.at_site[p]] for p in (0, 1)] == [[1, 2], [1, 2]]
    assert {p: stream[p].durable_index for p in (0, 1)} == {0: 2, 1: 2}


def test_who_waits_for_an_entry_is_told_its_id_by_its_commit() -> None:
    """Once, and not by the site's answer."""
    pipe = Pipeline(1)
    told: list[Reply] = []
    pipe.sequencer.intake.add_entries([(0, RecordKind.SKIP, {"index": 1, "position": 0})], told.append)
    block = pipe.take()
    assert block is not None
    pipe.write()
    assert not told
    pipe.sync()
    assert told == [CallOutcome(0, block.records[0].json()["txn_id"], b"")]
    pipe.settle()
    assert len(told) == 1
    pipe.check_empty()


def test_a_batch_that_was_executed_first_is_answered_by_its_commit() -> None:
    """A lax call takes its batch to the site early; the other call of the batch waits, and is counted until then."""
    pipe = Pipeline(1)
    lax, strict = pipe.add(0, lax=True), pipe.add(0)
    pipe.take()
    pipe.write()
    pipe.serve(0)
    assert (len(lax.replies), len(strict.replies)) == (1, 0)
    assert pipe.sequencer.log_feed.settling == 1
    pipe.sync()
    assert (len(lax.replies), len(strict.replies)) == (1, 1)
    assert pipe.sequencer.log_feed.settling == 0
    pipe.check_empty()


def test_reads_that_saw_a_batch_are_answered_by_its_commit() -> None:
    """What a read returned must not be taken back by a power cut."""
    pipe = Pipeline(1)
    pipe.add(0, lax=True)
    pipe.take()
    pipe.write()
    read = pipe.read_one(0)
    while pipe.serve(0):
        pass
    assert not read.replies
    pipe.sync()
    assert len(read.replies) == 1
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
    pipe.sequencer.log_feed.commit([(pipe.sequencer._streams[0], flight)], now=1.0).give()
    assert (before, len(told)) == (1, 1)
