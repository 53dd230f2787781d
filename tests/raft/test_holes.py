"""What random histories find late or never: holes that a core could have and still pass most of them, each by itself."""

from __future__ import annotations

import random

import pytest

from cmdlog.raft import (
    Act,
    Configuration,
    HardState,
    InvariantBroken,
    MemberChange,
    Message,
    RaftCore,
    Restored,
    Role,
    SnapshotDescriptor,
)
from cmdlog.raft.configuration import nodes
from cmdlog.raft.messages import Append, AppendReply, Campaign, Heartbeat, HeartbeatReply, VoteReply, VoteRequest
from cmdlog.wal.ids import Index, Term
from tests.raft.cluster import Cluster, Member, column, lead, node, solo


def _votes(member: Member) -> list[bool]:
    return [message.granted for message in member.take() if isinstance(message, VoteReply)]


def test_entries_in_place_of_durable_ones_are_not_durable() -> None:
    """Three entries are durable, two are replaced: until the new ones are written nothing behind the cut is acknowledged or
    applied, although the log was durable that far."""
    member = solo(2, terms=(1, 1, 1), term=1)
    member.synced = False
    core = member.core
    core.step(Append(node(3), node(2), Term(2), Term(1), Index(3), column(2, 2, 2)))
    assert core.log.stable == 1
    assert not any(isinstance(message, AppendReply) for message in member.take())
    assert [index for index, _ in member.applied] == [1]
    (reply,) = (message for message in member.sync() if isinstance(message, AppendReply))
    assert (reply.index, reply.rejected) == (3, False)
    member.take()
    assert [index for index, _ in member.applied] == [1, 2, 3]


def test_who_follows_a_leader_votes_for_nobody_else_in_its_term() -> None:
    """The node took no part in the election that its leader won: its vote would be free, but the term is decided."""
    member = solo(2, terms=(1,), term=3)
    member.core.step(Heartbeat(node(1), node(2), Term(3), Index(0), 1))
    member.core.step(VoteRequest(node(3), node(2), Term(3), Campaign.TRANSFER, Index(1), Term(1)))
    assert _votes(member) == [False]
    assert member.core.vote is None
    assert member.core.leader == node(1)


def test_news_of_a_term_does_not_end_the_wait_of_who_can_win() -> None:
    """Another node with a worse log asks for votes faster than this one waits; still this one campaigns in its time."""
    member = solo(2, terms=(1, 1), term=1)
    core, term = member.core, 1
    for _ in range(core.timeout):
        core.tick()
        if core.role is not Role.FOLLOWER:
            break
        term += 1
        core.step(VoteRequest(node(3), node(2), Term(term), Campaign.REAL, Index(1), Term(1)))
        assert _votes(member) == [False]
    assert core.role is Role.PRE_CANDIDATE


def test_a_granted_vote_begins_a_new_wait() -> None:
    """Who has just helped somebody to win does not campaign against it."""
    member = solo(2, terms=(1,), term=1)
    core = member.core
    for _ in range(core.timeout - 1):
        core.tick()
    core.step(VoteRequest(node(3), node(2), Term(2), Campaign.REAL, Index(1), Term(1)))
    assert _votes(member) == [True]
    core.tick()
    assert core.role is Role.FOLLOWER
    assert member.disk.hard_state == HardState(Term(2), node(3), Index(0))


def test_append_below_the_commit_mark_changes_nothing() -> None:
    """What is committed is never cut, whatever a message claims of it; a message sent again hears how far this log is right."""
    member = solo(2, terms=(1, 1, 1), term=1, commit=3)
    for term in (1, 2):
        member.core.step(Append(node(3), node(2), Term(2), Term(1), Index(0), column(2, term)))
    (reply,) = (message for message in member.take() if isinstance(message, AppendReply))
    assert (reply.index, reply.rejected) == (3, False)
    assert member.core.log.terms == [1, 1, 1]


def test_append_below_a_compacted_log_is_answered_by_the_commit_mark() -> None:
    """A refusal would send a new leader's probe further down, away from where the logs meet, for ever."""
    member = solo(2, terms=(1, 1, 1), term=1, commit=3)
    core = member.core
    member.take()
    core.compact(core.manifest_at(Index(3)), Index(3))
    core.step(Append(node(3), node(2), Term(2), Term(1), Index(0), column(2, 1)))
    (reply,) = (message for message in member.take() if isinstance(message, AppendReply))
    assert (reply.index, reply.rejected) == (3, False)


def test_reads_that_were_lost_with_the_role_are_not_answered_by_the_next_one() -> None:
    """A read is told as lost when its leader steps down; the same node, leading again, knows nothing of it."""
    member = solo(1)
    core = lead(member)
    core.step(AppendReply(node(2), node(1), core.term, core.log.last))
    member.take()
    core.read_index(7)
    core.step(VoteRequest(node(3), node(1), Term(core.term + 1), Campaign.TRANSFER, Index(9), Term(core.term)))
    member.take()
    assert [(result.context, result.index) for result in member.reads] == [(7, None)]
    assert core.reads.count == 0
    lead(member)
    core.step(AppendReply(node(2), node(1), core.term, core.log.last))
    member.take()
    core.step(HeartbeatReply(node(2), node(1), core.term, 99))
    member.take()
    assert len(member.reads) == 1


def test_a_snapshot_has_the_configuration_of_its_own_index() -> None:
    """A configuration that stands above it, committed or not, is not yet in force there."""
    cluster = Cluster()
    leader = cluster.elect(1)
    cluster.tick(2)
    cluster.passes = lambda message: False
    leader.change((MemberChange(Act.ADD_LEARNER, node(9)),))
    cluster.settle()
    assert leader.configuration_index > leader.log.handed
    assert leader.manifest_at(leader.log.handed).configuration.learners == ()


def test_a_new_leader_ends_the_joint_configuration_of_its_predecessor() -> None:
    """The predecessor's entry that ends it is lost; the joint one is committed already when the new leader wins."""
    cluster = Cluster((1, 2, 3), others=(4,))
    cluster.elect(1)
    cluster.tick(2)
    cluster.core(1).change((MemberChange(Act.ADD_LEARNER, node(4)),))
    cluster.settle()
    cluster.tick(3)

    def passes(message: Message) -> bool:
        leaving = isinstance(message, Append) and 2 in message.entries.kinds and not cluster.core(1).configuration.outgoing
        return not (leaving and message.sender == 1)

    cluster.passes = passes
    steps = MemberChange(Act.ADD_VOTER, node(4)), MemberChange(Act.REMOVE, node(3))
    cluster.core(1).change(steps)
    cluster.settle()
    assert cluster.core(2).configuration.joint
    assert cluster.core(2).log.commit >= cluster.core(2).configuration_index
    cluster.cut(1)
    for member in (3, 4):
        for _ in range(10):  # they shield the old leader no more
            cluster.core(member).tick()
    leader = cluster.core(2)
    leader.campaign()
    cluster.settle()
    cluster.tick(3)
    assert leader.role is Role.LEADER
    assert leader.configuration.voters == nodes((1, 2, 4))
    assert not leader.configuration.joint


@pytest.mark.parametrize("kind", ["heartbeat", "append"])
def test_whatever_a_leader_says_begins_a_new_wait(kind: str) -> None:
    """A follower of a leader that only sends the one or the other does not campaign."""
    member = solo(1, term=1)
    for number in range(100):
        member.core.tick()
        beat = Heartbeat(node(2), node(1), Term(1), Index(0), number)
        append = Append(node(2), node(1), Term(1), Term(0), Index(0), column(1))
        member.core.step(beat if kind == "heartbeat" else append)
        member.take()
        assert (member.core.elapsed, member.core.role) == (0, Role.FOLLOWER)


def test_a_hole_between_snapshot_and_log_is_refused() -> None:
    """Entries 2 on, after a snapshot at 0: the first one is missing."""
    first = SnapshotDescriptor(configuration=Configuration(voters=nodes((1,))))
    with pytest.raises(InvariantBroken, match="begins where its snapshot ends"):
        RaftCore(node(1), rng=random.Random(0), restored=Restored(HardState(Term(1)), first, column(2, 1, 1)))


def test_terms_that_fall_along_a_restored_log_are_refused() -> None:
    """A disk that says so has mixed two histories."""
    first = SnapshotDescriptor(configuration=Configuration(voters=nodes((1,))))
    with pytest.raises(InvariantBroken, match="terms never fall"):
        RaftCore(node(1), rng=random.Random(0), restored=Restored(HardState(Term(3)), first, column(1, 2, 1, 3)))


def test_no_snapshot_is_of_what_was_not_handed_out() -> None:
    """Neither of an uncommitted entry nor of one that the caller has not been given."""
    member = solo(1, terms=(1, 1, 1), commit=2)
    with pytest.raises(ValueError, match="no snapshot at 1"):
        member.core.manifest_at(Index(1))
    member.take()
    assert member.core.manifest_at(Index(2)).index == 2
    with pytest.raises(ValueError, match="no snapshot at 3"):
        member.core.manifest_at(Index(3))
