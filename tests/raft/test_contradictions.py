"""A disk that went back: who has committed entries that the leader lacks keeps them, acknowledges nothing, and never leads."""

from __future__ import annotations

import contextlib
import copy
import random

import pytest

from cmdlog.raft import Drop, ProposalRefused, RaftSettings, Role
from cmdlog.raft.messages import Append, AppendReply, Heartbeat, TimeoutNow
from cmdlog.wal.ids import Index, Term
from tests.raft.cluster import Cluster, Member, column, node, solo


def holder() -> Member:
    """Node 1 with four committed entries of term 1."""
    return solo(terms=[1, 1, 1, 1], term=2, commit=4)


def append(first: int, prev_term: int, terms: list[int], *, term: int = 3, commit: int = 0) -> Append:
    """What node 2, which leads term 3, sends to node 1."""
    return Append(node(2), node(1), Term(term), Term(prev_term), Index(commit), column(first, *terms))


@pytest.mark.parametrize(
    ("message", "index"),
    [(append(3, 1, [3]), 3), (append(2, 1, [1, 3, 3, 3, 3]), 3), (append(5, 3, [3]), 4), (append(4, 3, []), 3)],
    ids=["another entry", "among equal ones", "another one before its first", "an empty message"],
)
def test_another_entry_where_one_is_committed_is_seen(message: Append, index: int) -> None:
    """By its term: two entries of one place and term are the same. Nothing is answered, cut or committed."""
    member = holder()
    member.core.step(message)
    assert not [sent for sent in member.take() if isinstance(sent, AppendReply)]
    core = member.core
    assert (core.contradicted, core.log.last, core.log.commit, core.drops[Drop.CONTRADICTED]) == (index, 4, 4, 1)
    assert core.status().leader == node(2)


@pytest.mark.parametrize("message", [append(1, 0, [1, 1]), append(3, 1, [1, 1, 3]), append(5, 1, [3]), append(4, 1, [])])
def test_a_late_message_or_one_sent_again_contradicts_nothing(message: Append) -> None:
    """The leader has what is committed, and more."""
    member = holder()
    member.core.step(message)
    assert [type(sent) for sent in member.take()] == [AppendReply]
    assert member.core.contradicted == 0


def test_who_is_contradicted_never_campaigns_and_commits_nothing() -> None:
    """Neither on its own, nor asked to, nor by a transfer; and what the leader commits is not what this node has."""
    member = holder()
    member.core.step(append(3, 1, [3]))
    member.take()
    with pytest.raises(ProposalRefused):
        member.core.campaign()
    member.core.step(TimeoutNow(node(2), node(1), Term(3)))
    member.core.step(Heartbeat(node(2), node(1), Term(3), Index(4), 1))
    for _ in range(100):
        member.core.tick()
    assert (member.core.role, member.core.term, member.core.log.commit) == (Role.FOLLOWER, 3, 4)


def test_what_is_contradicted_stays_so() -> None:
    """Also where a later message of the same leader would fit: it would be counted as a log that it is not."""
    member = holder()
    member.core.step(append(3, 1, [3]))
    member.take()
    member.core.step(append(5, 1, [3]))
    assert not [sent for sent in member.take() if isinstance(sent, AppendReply)]


@pytest.mark.parametrize("seed", range(40))
def test_the_one_that_holds_more_is_found_when_disks_went_back(seed: int) -> None:
    """Of three nodes one lacks the last calls, and another's disk goes back before them: these two elect a leader. The third is
    found as soon as it is back, never leads, and has all that was acknowledged; calls go on without it."""
    rng, cluster = random.Random(seed), Cluster(seed=seed)
    holder, back, absent = (cluster.members[each].core.id for each in rng.sample(sorted(cluster.members), 3))
    leader = cluster.elect(holder)
    for number in range(rng.randrange(5)):
        leader.propose([b"kept %d" % number])
        cluster.tick(2)
    image = copy.deepcopy(cluster.members[back].disk)
    cluster.cut(absent)
    lost = [b"lost %d" % number for number in range(rng.randrange(1, 9))]
    for payload in lost:
        leader.propose([payload])
        cluster.tick(rng.randrange(1, 3))
    cluster.tick(2)
    assert cluster.applied(back)[-len(lost) :] == lost  # committed by a majority
    cluster.add(back, image)
    cluster.restart(absent)
    cluster.cut(holder)
    cluster.elect(rng.choice([back, absent]))
    for number in range(rng.randrange(12)):
        cluster.core(cluster.leaders()[-1]).propose([b"new %d" % number])
        cluster.tick(rng.randrange(3))
    cluster.heal()
    cluster.tick(4 * RaftSettings().election_ticks)
    held = cluster.core(holder)
    assert held.contradicted > 0
    assert cluster.applied(holder)[-len(lost) :] == lost
    (leads,) = cluster.leaders()
    assert leads != holder
    with contextlib.suppress(ProposalRefused):
        cluster.core(leads).transfer(held.id)
    cluster.tick(3 * RaftSettings().election_ticks)
    assert cluster.leaders() == [leads]
    cluster.core(leads).propose([b"last"])
    cluster.tick(3)
    assert cluster.applied(leads)[-1] == b"last"
