"""The core as a whole: election, replication, commit, restart, and the gate for messages."""

from __future__ import annotations

import pytest

from cmdlog.raft import Drop, InvariantBroken, Message, ProposalRefused, RaftSettings, Refusal, Role
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.messages import Append, AppendReply, Heartbeat
from cmdlog.wal.ids import Index, Term
from tests.raft.cluster import Cluster, column, lead, solo

A, B, C = NodeId(1), NodeId(2), NodeId(3)


def test_three_nodes_elect_replicate_and_commit() -> None:
    """A proposal to the leader reaches every state machine, in order."""
    cluster = Cluster()
    leader = cluster.elect(1)
    leader.propose([b"a", b"b"])
    leader.propose([b"c"])
    cluster.settle()
    cluster.tick()  # followers learn of the last commit with the next heartbeat
    assert [cluster.applied(member) for member in (1, 2, 3)] == [[b"a", b"b", b"c"]] * 3
    assert [cluster.core(member).role for member in (1, 2, 3)] == [Role.LEADER, Role.FOLLOWER, Role.FOLLOWER]


def test_entries_survive_a_restart_of_all_nodes() -> None:
    """What was acknowledged is there, and the terms go on, when every node restarts at once."""
    cluster = Cluster()
    cluster.elect(2).propose([b"kept"])
    cluster.settle()
    term = cluster.core(2).term
    for member in (1, 2, 3):
        cluster.restart(member)
    cluster.elect(3)
    cluster.tick()
    assert [cluster.applied(member) for member in (1, 2, 3)] == [[b"kept"]] * 3
    assert cluster.core(3).term > term


# Proposals


def test_a_follower_refuses_proposals_and_names_the_leader() -> None:
    """Nothing was appended; the client asks there."""
    cluster = Cluster()
    with pytest.raises(ProposalRefused) as refused:
        cluster.core(2).propose([b"x"])
    assert (refused.value.reason, refused.value.leader) == (Refusal.NOT_LEADER, None)
    cluster.elect(1)
    with pytest.raises(ProposalRefused) as refused:
        cluster.core(2).propose([b"x"])
    assert refused.value.leader == A


def test_proposals_beyond_the_bytes_in_flight_are_refused_until_some_are_committed() -> None:
    """A majority that is away costs bounded memory; what is too large for an entry is never taken."""
    member = solo(settings=RaftSettings(proposed_bytes_max=10, entry_bytes_max=20))
    core = lead(member)
    core.propose([b"x" * 15])
    with pytest.raises(ProposalRefused) as refused:
        core.propose([b"y"])
    assert refused.value.reason is Refusal.IN_FLIGHT_BYTES
    with pytest.raises(ProposalRefused) as refused:
        core.propose([b"x" * 21])
    assert refused.value.reason is Refusal.TOO_LARGE
    member.take()
    core.step(AppendReply(B, A, core.term, Index(2)))
    core.propose([b"y"])
    assert core.proposed_bytes == 1


def test_proposals_beyond_the_entries_in_flight_are_refused() -> None:
    """Empty payloads have no bytes, but each costs memory on every node."""
    core = lead(solo(settings=RaftSettings(proposed_entries_max=10)))
    core.propose([b""] * 9)
    with pytest.raises(ProposalRefused) as refused:
        core.propose([b""])
    assert refused.value.reason is Refusal.IN_FLIGHT_ENTRIES
    with pytest.raises(ValueError, match="nothing"):
        core.propose([])


def test_a_new_leader_counts_what_its_predecessor_left_uncommitted() -> None:
    """The bound holds over a change of leaders."""
    core = lead(solo(terms=[1, 1]))
    assert core.proposed_bytes == len(b"1@1") + len(b"2@1")


def test_a_leader_does_not_count_itself_before_its_own_write() -> None:
    """One follower's acknowledgement and an unfinished write of its own are no majority."""
    member = solo()
    core = lead(member)
    member.synced = False
    core.propose([b"x"])
    member.take()
    core.step(AppendReply(B, A, core.term, Index(2)))
    assert core.log.commit == 1
    member.sync()
    assert core.log.commit == 2


def test_a_single_voter_waits_for_its_own_write() -> None:
    """It is a majority by itself, but only with what is durable."""
    cluster = Cluster((1,))
    leader = cluster.elect(1)
    member = cluster.members[A]
    member.synced = False
    leader.propose([b"x"])
    member.take()
    assert leader.log.commit == 1
    member.sync()
    member.take()
    assert cluster.applied(1) == [b"x"]


# Flow


def test_a_lost_append_is_found_by_the_next_heartbeat() -> None:
    """The last message under way has no successor whose rejection would show the gap."""
    cluster = Cluster()
    leader = cluster.elect(1)
    cluster.passes = lambda message: not (isinstance(message, Append) and message.receiver == B)
    leader.propose([b"x"])
    cluster.settle()
    cluster.heal()
    cluster.tick(2)
    assert cluster.core(2).log.last == leader.log.last


def test_a_lost_acknowledgement_does_not_close_the_window_for_ever() -> None:
    """A full window is asked after, although it lets no entries through."""
    cluster = Cluster(settings=RaftSettings(window_messages_max=2, append_entries_max=1))
    leader = cluster.elect(1)
    cluster.passes = lambda message: not (isinstance(message, AppendReply) and message.sender == B)
    leader.propose([b"1", b"2", b"3", b"4"])
    cluster.settle()
    assert not leader.progress[B].open
    cluster.heal()
    cluster.tick(3)
    assert cluster.core(2).log.last == leader.log.last


def test_a_diverged_follower_is_mended_in_few_rounds() -> None:
    """A hint skips a whole term on either side."""
    cluster = Cluster()
    cluster.elect(1)
    cluster.cut(1)
    cluster.core(1).propose([b"lost"] * 500)
    cluster.settle()
    cluster.tick(60)
    (leader,) = [cluster.core(each) for each in cluster.leaders()]
    leader.propose([b"kept"] * 500)
    cluster.settle()
    sent: list[Message] = []

    def count(message: Message) -> bool:
        sent.extend([message] if isinstance(message, Append) and message.receiver == A else [])
        return True

    cluster.passes = count
    cluster.tick(4)
    assert cluster.applied(1) == [b"kept"] * 500
    assert len(sent) <= 6


# The gate


def test_messages_that_mean_nothing_are_counted() -> None:
    """Every reason has its counter; none of them changes anything."""
    member = solo(terms=[1, 1], commit=1)
    core = member.core
    core.step(Heartbeat(B, A, Term(1), Index(0), 0))
    bad: list[tuple[Drop, Message]] = [
        (Drop.NOT_FOR_US, Heartbeat(A, B, Term(1), Index(0), 0)),
        (Drop.STALE_TERM, Heartbeat(B, A, Term(0), Index(0), 0)),
        (Drop.STALE_TERM, AppendReply(B, A, Term(0), Index(0))),
        (Drop.SECOND_LEADER, Heartbeat(C, A, Term(1), Index(0), 0)),
        (Drop.WRONG_ROLE, AppendReply(B, A, Term(1), Index(0))),
        (Drop.BAD_ENTRIES, Append(B, A, Term(1), Term(1), Index(0), column(3, 2))),
        (Drop.BAD_ENTRIES, Append(B, A, Term(2), Term(1), Index(0), column(3, 2, 1))),
        (Drop.BAD_ENTRIES, Append(B, A, Term(2), Term(1), Index(0), column(3, 1, kinds=b"\x09"))),
        (Drop.BAD_ENTRIES, Append(B, A, Term(2), Term(1), Index(0), column(3, 1, kinds=b""))),
        (Drop.BAD_ENTRIES, Append(B, A, Term(2), Term(0), Index(0), column(0, 1))),
        (Drop.BEYOND_LOG, Heartbeat(B, A, Term(2), Index(9), 0)),
    ]
    for reason, message in bad:
        core.drops.clear()
        core.step(message)
        assert core.drops[reason] == 1, message
    assert (core.log.terms, core.log.commit) == ([1, 1], 1)


def test_a_leader_hears_nothing_from_another_of_its_term_nor_beyond_its_log() -> None:
    """Both are impossible; neither is believed."""
    core = lead(solo())
    core.step(Heartbeat(B, A, core.term, Index(0), 0))
    core.step(AppendReply(B, A, core.term, Index(9)))
    core.step(AppendReply(B, A, core.term, Index(1), True, Index(0), Term(0)))  # rejects what was not sent
    assert (core.drops[Drop.SECOND_LEADER], core.drops[Drop.BEYOND_LOG], core.drops[Drop.STALE_REPLY]) == (1, 1, 2)
    assert core.role is Role.LEADER


def test_an_ended_core_refuses_everything() -> None:
    """It must be built again from what is durable."""
    core = solo().core
    core.term = Term(5)
    with pytest.raises(InvariantBroken):
        core.become_follower(Term(4), None)
    for call in (core.tick, core.ready, lambda: core.propose([b"x"]), lambda: core.read_index(1)):
        with pytest.raises(InvariantBroken, match="terms never fall"):
            call()


def test_errors_say_why_in_stable_words() -> None:
    """The reason is for programs, the detail for people."""
    assert str(ProposalRefused(Refusal.NOT_LEADER)) == "not_leader"
    assert str(ProposalRefused(Refusal.TOO_LARGE, "9 bytes")) == "too_large: 9 bytes"
