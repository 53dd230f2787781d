"""What random histories find late or never: holes that a core could have and still pass most of them, each by itself."""

from __future__ import annotations

from cmdlog.raft import HardState, Role
from cmdlog.raft.messages import Append, AppendReply, Campaign, Heartbeat, HeartbeatReply, VoteReply, VoteRequest
from cmdlog.wal.ids import Index, Term
from tests.raft.cluster import Member, column, lead, node, solo


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
    """What is committed is never cut, whatever a message claims of it; the answer says how far this log is known to be right."""
    member = solo(2, terms=(1, 1, 1), term=1, commit=3)
    member.core.step(Append(node(3), node(2), Term(2), Term(1), Index(0), column(2, 2)))
    (reply,) = (message for message in member.take() if isinstance(message, AppendReply))
    assert (reply.index, reply.rejected) == (3, False)
    assert member.core.log.terms == [1, 1, 1]


def test_append_below_a_compacted_log_is_answered_by_the_commit_mark() -> None:
    """A refusal would send a new leader's probe further down, away from where the logs meet, for ever."""
    member = solo(2, terms=(1, 1, 1), term=1, commit=3)
    core = member.core
    member.take()
    core.compact(core.manifest_at(Index(3), ()), Index(3))
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
