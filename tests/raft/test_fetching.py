"""Feeding from the caller's log: memory is bounded, and a follower that is far behind gets every entry all the same."""

from __future__ import annotations

import random

import pytest

from cmdlog.raft import (
    Configuration,
    EntriesWanted,
    HardState,
    InvariantBroken,
    RaftCore,
    RaftSettings,
    Restored,
    Role,
    SnapshotDescriptor,
)
from cmdlog.raft.configuration import NodeId, nodes
from cmdlog.raft.entries import EntryLog
from cmdlog.raft.progress import Sending
from cmdlog.wal.ids import Index, Term
from tests.raft.cluster import Cluster, column, read_entries
from tests.raft.invariants import check_invariants

A, B, C = NodeId(1), NodeId(2), NodeId(3)
SMALL = RaftSettings(log_bytes_max=200, fetch_bytes_max=90, append_bytes_max=50)


def written(cluster: Cluster, count: int) -> None:
    """Entries of 20 bytes, each committed before the next."""
    for number in range(count):
        cluster.core(1).propose([b"%020d" % number])
        cluster.settle()


def a_far_follower(*, others: int = 0) -> Cluster:
    """A leads; C (and as many more) lack forty entries, of which few are in memory."""
    cluster = Cluster(range(1, 4 + 2 * others), settings=SMALL)
    cluster.elect(1)
    cluster.tick()
    cluster.cut(3, *range(4 + others, 4 + 2 * others))
    written(cluster, 40)
    return cluster


def test_payloads_in_memory_are_bounded() -> None:
    """On the leader and on its followers; terms stay, so elections and conflicts are decided without the disk."""
    cluster = a_far_follower()
    for member in (1, 2):
        log = cluster.core(member).log
        assert log.held_bytes <= 200
        assert (log.base, len(log.terms)) == (0, log.last)
        check_invariants(cluster.core(member))


def test_a_follower_far_behind_is_fed_from_the_callers_log() -> None:
    """It gets every entry, in order, without a copy; each read is bounded and starts where the last one ended."""
    cluster = a_far_follower()
    cluster.heal()
    cluster.tick(12)
    leader = cluster.core(1)
    assert cluster.core(3).log.last == leader.log.last
    assert cluster.applied(3) == cluster.applied(2) == [b"%020d" % number for number in range(40)]
    assert cluster.members[C].copies == []
    fetches = cluster.members[A].fetches
    assert [wanted.bytes_max for wanted in fetches] == [90] * len(fetches)
    assert len(fetches) >= 6
    assert [wanted.first for wanted in fetches] == sorted({wanted.first for wanted in fetches})
    assert max(wanted.last for wanted in fetches) < leader.log.last


def test_a_follower_that_is_near_is_not_fed_from_disk() -> None:
    """What is in memory goes to it at once, while the other one is read for."""
    cluster = a_far_follower()
    cluster.members[A].fetches.clear()
    written(cluster, 3)
    assert cluster.core(2).log.last == cluster.core(1).log.last
    assert cluster.members[A].fetches == []


def test_followers_that_are_far_behind_take_turns() -> None:
    """With one read at a time, none of two waits until the other has everything."""
    cluster = a_far_follower(others=1)
    leader, member = cluster.core(1), cluster.members[A]
    cluster.heal()
    cluster.core(5).log.merge(column(2, *([leader.term] * 9)))  # unlike C it has ten already
    for peer, at in ((C, 1), (NodeId(5), 11)):
        leader.progress[peer].next = Index(at + 1)
        leader.progress[peer].match = Index(at)
        leader.progress[peer].replicate()
    asked = []
    for _ in range(6):
        leader.dirty = True
        while (ready := leader.ready()) is not None:
            if ready.fetch is not None:
                asked.append(leader.fetch_for)
                leader.report_entries(ready.fetch, read_entries(member.disk.entries, ready.fetch))
            for peer in (C, NodeId(5)):
                leader.progress[peer].in_flight.clear()
                leader.progress[peer].in_flight_bytes = 0
    assert asked[:4] == [C, NodeId(5), C, NodeId(5)]


def test_entries_that_cannot_be_read_are_made_up_for_by_a_copy() -> None:
    """The caller's log was cut by its snapshot before the follower came back."""
    cluster = a_far_follower()
    leader, member = cluster.core(1), cluster.members[A]
    cluster.tick()
    manifest = leader.manifest_at(Index(20))
    leader.compact(manifest, Index(0))
    member.disk.cut(21)
    cluster.heal()
    cluster.tick(3)
    assert leader.progress[C].sending is Sending.SNAPSHOT
    assert cluster.members[C].copies == [manifest]


def test_entries_that_no_snapshot_has_are_asked_for_again_later() -> None:
    """A damaged log is the caller's to repair; the group goes on, and the question is not repeated without a pause."""
    cluster = a_far_follower()
    cluster.members[A].disk.cut(30)
    cluster.heal()
    cluster.tick(40)
    leader = cluster.core(1)
    assert leader.progress[C].sending is Sending.PROBE
    assert 1 < len(cluster.members[A].fetches) < 45


def test_what_is_read_is_compared_with_the_terms_in_memory() -> None:
    """Entries of another history are never sent."""
    cluster = a_far_follower()
    cluster.heal()
    leader = cluster.core(1)
    leader.fetching = wanted = EntriesWanted(Index(2), Index(9), 90)
    for wrong in (column(2, 7, 7), column(3, 1, 1), column(2)):
        leader.fetching = wanted
        leader.report_entries(wanted, wrong)
        assert leader.fetched is None
    leader.report_entries(EntriesWanted(Index(2), Index(4), 90), column(2, 1))  # of another question
    assert leader.fetched is None
    leader.fetching = wanted
    leader.report_entries(wanted, column(2, 1))
    assert leader.fetched is not None


def test_what_was_read_is_forgotten_with_the_role() -> None:
    """A late answer to a leader that follows now does nothing."""
    cluster = a_far_follower()
    leader = cluster.core(1)
    leader.fetching = wanted = EntriesWanted(Index(2), Index(9), 90)
    leader.become_follower(Term(leader.term + 1), None)
    leader.report_entries(wanted, column(2, 1))
    assert [leader.fetching, leader.fetched] == [None, None]


def test_a_truncation_and_a_compaction_keep_the_count_of_bytes() -> None:
    """Also in the middle of what was appended at once."""
    log = EntryLog(SnapshotDescriptor())
    log.append(column(1, 1, 1, 1, payloads=[b"x" * 10] * 3))
    log.append(column(4, 1, 1, 1, payloads=[b"y" * 10] * 3))
    log.merge(column(6, 2, payloads=[b"z"]))
    assert (log.held_bytes, list(log.sizes)) == (51, [(3, 30), (5, 20), (6, 1)])
    log.stable = log.taken = log.commit = log.handed = Index(6)
    log.evict(50)
    assert (log.held, log.held_bytes, len(log.payloads), log.bytes_between(Index(0), Index(6))) == (3, 21, 3, 51)
    log.compact(Index(5))
    assert (log.base, log.held, log.held_bytes, log.payloads) == (5, 5, 1, [b"z"])
    assert log.slice(6, 6).payloads == [b"z"]


def test_entries_that_the_state_machine_has_are_not_handed_out_again() -> None:
    """A caller whose state is durable by itself says how far it is; that much is committed."""
    first = SnapshotDescriptor(configuration=Configuration(voters=nodes((1, 2, 3))))
    restored = Restored(HardState(Term(1)), first, column(1, 1, 1, 1), applied=Index(2))
    core = RaftCore(A, rng=random.Random(1), restored=restored)
    assert (core.log.handed, core.log.commit, core.role) == (2, 2, Role.FOLLOWER)
    check_invariants(core)
    with pytest.raises(InvariantBroken, match="applied 4"):
        RaftCore(A, rng=random.Random(1), restored=Restored(HardState(Term(1)), first, column(1, 1, 1, 1), applied=Index(4)))
