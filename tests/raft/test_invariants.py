"""Invariants: each one is seen to catch what it is about. The simulation (`test_sim`) holds them all the time."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from cmdlog.raft import (
    Completion,
    Configuration,
    Franchise,
    HardState,
    InvariantBroken,
    RaftCore,
    Role,
    SnapshotDescriptor,
)
from cmdlog.raft.configuration import NodeId, nodes
from cmdlog.raft.progress import Sending
from cmdlog.raft.reads import Waiting
from cmdlog.wal.ids import Index, Term
from tests.raft.cluster import Cluster, Disk, column, solo
from tests.raft.invariants import INVARIANTS, check_group, check_invariants

A, B, C = NodeId(1), NodeId(2), NodeId(3)
PAIR = Configuration(voters=nodes((1, 2)))


def _set(name: str, value: object) -> Callable[[RaftCore], None]:
    return lambda core: setattr(core, name, value)


def _log(name: str, value: object) -> Callable[[RaftCore], None]:
    return lambda core: setattr(core.log, name, value)


def _progress(name: str, value: object) -> Callable[[RaftCore], None]:
    return lambda core: setattr(core.progress[B], name, value)


DAMAGE: list[tuple[str, Callable[[RaftCore], None]]] = [
    ("handed out", _log("handed", Index(9))),
    ("bytes of payloads", lambda core: setattr(core.log, "held_bytes", core.log.held_bytes + 1)),
    ("one length", lambda core: core.log.payloads.append(b"")),
    ("beside its last index", _log("last_term", Term(9))),
    ("never fall", lambda core: core.log.terms.__setitem__(0, Term(99))),
    ("prove no more", lambda core: core.log.writes.append(Completion(1, Index(1), Term(1), Index(99)))),
    ("those of the log", lambda core: core.log.configurations.append((Index(99), PAIR))),
    ("at most one configuration", lambda core: core.log.configurations.extend([(Index(5), PAIR), (Index(6), PAIR)])),
    ("the snapshot has", _set("manifest", SnapshotDescriptor(Index(-1)))),
    ("voted for itself", _set("vote", C)),
    ("only voters", _set("franchise", Franchise.NONE)),
    ("own leader", _set("leader", B)),
    ("entry of its term", _set("term", Term(9))),
    ("progress of every other", lambda core: core.progress.clear()),
    ("match < next", _progress("next", Index(0))),
    ("kept while", _progress("sending", Sending.SNAPSHOT)),
    ("windows", _progress("in_flight_bytes", 5)),
    ("bytes of proposals", _set("proposed_bytes", 5)),
    ("wait for rounds", lambda core: core.reads.waiting.append(Waiting(1, Index(1), A, (1,)))),
]


@pytest.mark.parametrize(("name", "damage"), DAMAGE, ids=[name for name, _ in DAMAGE])
def test_every_invariant_catches_what_it_is_about(name: str, damage: Callable[[RaftCore], None]) -> None:
    """Named with its section; the group is ended by it."""
    cluster = Cluster()
    leader = cluster.elect(1)
    leader.propose([b"x", b"y", b"z"])
    cluster.settle()
    leader.propose([b"not", b"committed"])
    check_invariants(leader)
    damage(leader)
    with pytest.raises(InvariantBroken, match=name):
        check_invariants(leader)
    with pytest.raises(InvariantBroken, match=name):
        leader.tick()


def test_every_invariant_has_its_damage() -> None:
    """None is left out above."""
    assert [sum(name in title for name, _ in DAMAGE) for title, _ in INVARIANTS] == [1] * len(INVARIANTS)


def test_a_pre_candidate_must_be_able_to_win() -> None:
    """Only voters campaign."""
    member = solo(learners=(4,))
    member.core.role = Role.PRE_CANDIDATE
    check_invariants(member.core)
    member.core.franchise = Franchise.NONE
    with pytest.raises(InvariantBroken, match="only voters"):
        check_invariants(member.core)


def test_two_leaders_in_a_term_are_noticed() -> None:
    """Election Safety."""
    cluster = Cluster()
    cluster.elect(1)
    check_group([member.core for member in cluster.members.values()])
    cluster.core(2).role = Role.LEADER
    with pytest.raises(InvariantBroken, match="Election Safety"):
        check_group([member.core for member in cluster.members.values()])


@pytest.mark.parametrize(
    ("name", "terms", "commits"),
    [
        ("logs that meet are equal before", ((1, 2, 3), (1, 1, 3)), (0, 0)),
        ("committed entries are equal", ((1, 2), (1, 3)), (2, 2)),
    ],
)
def test_logs_that_disagree_are_noticed(name: str, terms: tuple[tuple[int, ...], ...], commits: tuple[int, ...]) -> None:
    """Log Matching and State Machine Safety."""
    cores = [solo(member, terms=own, commit=commit).core for member, own, commit in zip((1, 2), terms, commits, strict=True)]
    with pytest.raises(InvariantBroken, match=name):
        check_group(cores)


def test_different_entries_under_the_same_index_and_term_are_noticed() -> None:
    """Log Matching, by content."""
    one, other = solo(1, terms=[1]).core, solo(2, terms=[1]).core
    check_group([one, other])
    disk = Disk(solo(terms=[1]).disk.hard_state, entries=column(1, 1, payloads=[b"other"]))
    other = RaftCore(B, rng=random.Random(2), restored=disk.restored())
    with pytest.raises(InvariantBroken, match="same entry"):
        check_group([one, other])


@pytest.mark.parametrize("leader_first", [True, False])
def test_a_leader_without_what_was_committed_is_noticed(*, leader_first: bool) -> None:
    """Leader Completeness."""
    leader = solo(1 if leader_first else 2, terms=[1], term=3).core
    other = solo(2 if leader_first else 1, terms=[1, 1], term=2, commit=2).core
    check_group([leader, other])
    leader.role = Role.LEADER
    with pytest.raises(InvariantBroken, match="Leader Completeness"):
        check_group([leader, other])


def test_a_disk_that_forgot_is_refused_at_the_start() -> None:
    """What was committed is gone, an entry is newer than the term, or the log begins too late: not to be guessed about."""
    for disk in (
        Disk(HardState(Term(1), None, Index(2)), entries=column(1, 1)),
        Disk(entries=column(1, 1)),
        Disk(entries=column(2, 1)),
    ):
        with pytest.raises(InvariantBroken):
            RaftCore(A, rng=random.Random(1), restored=disk.restored())
