"""Figure 2 of the Raft paper (extended version), one test per sentence, in its order; titles as there.

Pre-vote and check-quorum, which the figure does not have, are off.
"""

from __future__ import annotations

import pytest

from cmdlog.raft import Entries, RaftSettings, Role
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.messages import Append, AppendReply, Campaign, Heartbeat, VoteReply, VoteRequest
from cmdlog.wal.ids import Index, Term
from tests.raft.cluster import Cluster, Member, column, lead, solo

BASIC = RaftSettings(pre_vote=False, check_quorum=False)
A, B, C = NodeId(1), NodeId(2), NodeId(3)


def append(term: int, prev_term: int, entries: Entries, *, commit: int = 0) -> Append:
    """AppendEntries from B to A."""
    return Append(B, A, Term(term), Term(prev_term), Index(commit), entries)


def accept(sender: NodeId, term: int, index: int) -> AppendReply:
    """A follower's acknowledgement to A."""
    return AppendReply(sender, A, Term(term), Index(index))


def ask(term: int, last_index: int, last_term: int, *, sender: NodeId = B) -> VoteRequest:
    """RequestVote to A."""
    return VoteRequest(sender, A, Term(term), Campaign.REAL, Index(last_index), Term(last_term))


def answers(member: Member, message: Append | VoteRequest) -> list[AppendReply | VoteReply]:
    """What A answers, once its writes are durable."""
    member.core.step(message)
    return [reply for reply in member.take() if isinstance(reply, AppendReply | VoteReply)]


def campaign(member: Member) -> list[VoteRequest]:
    """Lets A's election time-out pass; returns its requests."""
    for _ in range(member.core.timeout):
        member.core.tick()
    return [message for message in member.take() if isinstance(message, VoteRequest)]


# State


@pytest.mark.parametrize(
    "message",
    [append(2, 0, column(1, 2)), ask(2, 5, 1)],
    ids=["append", "vote"],
)
def test_persistent_state_is_updated_on_stable_storage_before_responding(message: Append | VoteRequest) -> None:
    """Persistent state: updated on stable storage before responding to RPCs."""
    member = solo(settings=BASIC)
    member.synced = False
    member.core.step(message)
    assert member.take() == []
    assert len(member.sync()) == 1
    assert member.disk.hard_state.term == 2


def test_current_term_is_0_on_first_boot_and_increases_monotonically() -> None:
    """currentTerm: initialized to 0 on first boot, increases monotonically."""
    member = solo(settings=BASIC)
    seen = [member.core.term]
    for term in (3, 1, 5, 4):
        member.core.step(Heartbeat(B, A, Term(term), Index(0), 0))
        seen.append(member.core.term)
    assert seen == [0, 3, 3, 5, 5]


def test_voted_for_is_none_until_a_vote_is_given_in_the_term() -> None:
    """votedFor: candidateId that received vote in current term, or null if none."""
    member = solo(settings=BASIC)
    assert member.core.vote is None
    answers(member, ask(1, 0, 0))
    assert member.core.vote == B
    member.core.step(Heartbeat(C, A, Term(2), Index(0), 0))
    assert member.core.vote is None


def test_the_first_entry_of_a_log_has_index_1() -> None:
    """log[]: first index is 1."""
    member = solo(settings=BASIC)
    assert lead(member).log.slice(Index(1), Index(1)).terms == [1]


def test_commit_index_is_0_at_first_and_increases_monotonically() -> None:
    """commitIndex: initialized to 0, increases monotonically."""
    member = solo(settings=BASIC)
    assert member.core.log.commit == 0
    answers(member, append(1, 0, column(1, 1, 1, 1), commit=2))
    answers(member, append(1, 0, column(1, 1), commit=1))
    assert member.core.log.commit == 2


def test_next_index_begins_behind_the_leaders_last_and_match_index_at_0() -> None:
    """nextIndex: initialized to leader last log index + 1; matchIndex: initialized to 0; both reinitialized after election."""
    member = solo(terms=[1, 1], settings=BASIC)
    core = lead(member)
    core.step(accept(B, core.term, 3))
    assert core.progress[B].match == 3
    core.step(Heartbeat(C, A, Term(core.term + 1), Index(0), 0))
    lead(member)
    assert [(each.next, each.match) for each in core.progress.values()] == [(4, 0), (4, 0)]


# AppendEntries RPC, receiver implementation


def test_1_append_of_an_older_term_is_refused_with_the_current_one() -> None:
    """Reply false if term < currentTerm; the reply has currentTerm, for the leader to update itself."""
    (reply,) = answers(solo(term=3, settings=BASIC), append(2, 0, column(1, 2)))
    assert isinstance(reply, AppendReply)
    assert (reply.term, reply.index) == (3, 0)


@pytest.mark.parametrize(("terms", "prev", "prev_term"), [((1,), 2, 1), ((1, 1), 2, 2)], ids=["missing", "other term"])
def test_2_append_without_a_match_at_prev_log_index_is_refused(terms: tuple[int, ...], prev: int, prev_term: int) -> None:
    """Reply false if log doesn't contain an entry at prevLogIndex whose term matches prevLogTerm."""
    member = solo(terms=terms, settings=BASIC)
    (reply,) = answers(member, append(3, prev_term, column(prev + 1, 3)))
    assert isinstance(reply, AppendReply)
    assert reply.rejected
    assert member.core.log.terms == list(terms)


def test_3_a_conflicting_entry_and_all_that_follow_it_are_deleted() -> None:
    """If an existing entry conflicts with a new one (same index but different terms), delete it and all that follow it."""
    member = solo(terms=[1, 1, 1, 1], settings=BASIC)
    answers(member, append(2, 1, column(2, 1, 2)))
    assert member.core.log.terms == [1, 1, 2]
    assert member.disk.entries.terms == [1, 1, 2]


def test_4_only_entries_that_are_not_in_the_log_are_appended() -> None:
    """Append any new entries not already in the log; what follows them there stays."""
    member = solo(terms=[1, 1, 1], settings=BASIC)
    (reply,) = answers(member, append(1, 0, column(1, 1, 1)))
    assert isinstance(reply, AppendReply)
    assert (reply.index, member.core.log.last) == (2, 3)
    answers(member, append(1, 1, column(3, 1, 1)))
    assert member.core.log.terms == [1, 1, 1, 1]


@pytest.mark.parametrize(("leader_commit", "commit"), [(1, 1), (9, 2)])
def test_5_commit_index_is_the_lesser_of_leader_commit_and_last_new_entry(leader_commit: int, commit: int) -> None:
    """If leaderCommit > commitIndex, set commitIndex = min(leaderCommit, index of last new entry), although more may follow."""
    member = solo(terms=[1, 1, 1, 1], settings=BASIC)
    answers(member, append(1, 0, column(1, 1, 1), commit=leader_commit))
    assert member.core.log.commit == commit


# RequestVote RPC, receiver implementation


def test_1_vote_for_an_older_term_is_refused_with_the_current_one() -> None:
    """Reply false if term < currentTerm."""
    (reply,) = answers(solo(term=3, settings=BASIC), ask(2, 9, 2))
    assert isinstance(reply, VoteReply)
    assert (reply.term, reply.granted) == (3, False)


@pytest.mark.parametrize(
    ("vote", "last_index", "last_term", "granted"),
    [
        (None, 2, 2, True),
        (B, 2, 2, True),
        (C, 2, 2, False),
        (None, 1, 3, True),  # the term decides first
        (None, 9, 1, False),
        (None, 1, 2, False),  # then the length
    ],
)
def test_2_vote_goes_to_one_candidate_with_a_log_at_least_as_good(
    vote: int | None, last_index: int, last_term: int, *, granted: bool
) -> None:
    """If votedFor is null or candidateId, and candidate's log is at least as up-to-date as receiver's log, grant vote."""
    member = solo(terms=[1, 2], term=4, vote=vote, settings=BASIC)
    (reply,) = answers(member, ask(4, last_index, last_term))
    assert isinstance(reply, VoteReply)
    assert reply.granted is granted
    assert member.disk.hard_state.vote == (B if granted else vote)


# Rules for all servers


def test_what_is_committed_is_applied_in_order() -> None:
    """If commitIndex > lastApplied: increment lastApplied, apply log[lastApplied] to state machine."""
    member = solo(settings=BASIC)
    answers(member, append(1, 0, column(1, 1, 1, 1), commit=2))
    member.core.step(Heartbeat(B, A, Term(1), Index(3), 0))
    member.take()
    assert member.applied == [(1, b"1@1"), (2, b"2@1"), (3, b"3@1")]


@pytest.mark.parametrize("message", [ask(9, 0, 0), append(9, 0, column(1, 9)), accept(B, 9, 0)], ids=["vote", "append", "reply"])
def test_a_newer_term_makes_everyone_a_follower(message: Append | AppendReply | VoteRequest) -> None:
    """If RPC request or response contains term T > currentTerm: set currentTerm = T, convert to follower."""
    member = solo(terms=[1], settings=BASIC)
    core = lead(member)
    core.step(message)
    assert (core.term, core.role) == (9, Role.FOLLOWER)


# Rules for followers


def test_followers_answer_candidates_and_leaders() -> None:
    """Respond to RPCs from candidates and leaders."""
    member = solo(settings=BASIC)
    assert len(answers(member, ask(1, 0, 0))) == 1
    assert len(answers(member, append(1, 0, column(1, 1)))) == 1


def test_a_follower_that_hears_nothing_becomes_a_candidate() -> None:
    """If election timeout elapses without receiving AppendEntries RPC from current leader or granting vote to candidate: convert
    to candidate."""
    member = solo(settings=BASIC)
    core = member.core
    for message in (ask(1, 0, 0), append(1, 0, column(1, 1)), Heartbeat(B, A, Term(1), Index(0), 0)):
        for _ in range(core.timeout - 1):
            core.tick()
        core.step(message)
    assert core.term == 1
    assert [request.term for request in campaign(member)] == [2, 2]


# Rules for candidates


def test_a_campaign_is_a_new_term_an_own_vote_a_new_timer_and_requests_to_all() -> None:
    """On conversion to candidate, start election: increment currentTerm, vote for self, reset election timer, send RequestVote
    RPCs to all other servers."""
    member = solo(terms=[1], term=4, settings=BASIC)
    requests = campaign(member)
    core = member.core
    assert (core.term, core.vote, core.elapsed) == (5, A, 0)
    assert [(each.receiver, each.term, each.last_index, each.last_term) for each in requests] == [(B, 5, 1, 1), (C, 5, 1, 1)]


def test_votes_of_a_majority_make_a_leader() -> None:
    """If votes received from majority of servers: become leader; one of five others is not enough, the same one twice neither."""
    member = solo(voters=(1, 2, 3, 4, 5), settings=BASIC)
    campaign(member)
    core = member.core
    for sender, role in ((B, Role.CANDIDATE), (B, Role.CANDIDATE), (NodeId(9), Role.CANDIDATE), (C, Role.LEADER)):
        core.step(VoteReply(sender, A, core.term, Campaign.REAL, True))
        assert core.role is role


def test_a_candidate_follows_a_new_leader() -> None:
    """If AppendEntries RPC received from new leader: convert to follower."""
    member = solo(settings=BASIC)
    campaign(member)
    answers(member, append(1, 0, column(1, 1)))
    assert (member.core.role, member.core.leader, member.core.vote) == (Role.FOLLOWER, B, A)


def test_a_candidate_that_times_out_begins_a_new_election() -> None:
    """If election timeout elapses: start new election."""
    member = solo(settings=BASIC)
    assert [each.term for _ in range(3) for each in campaign(member)] == [1, 1, 2, 2, 3, 3]


# Rules for leaders


def test_a_new_leader_speaks_to_everyone_at_once() -> None:
    """Upon election: send initial AppendEntries RPCs to each server; here they carry the empty entry of the new term."""
    member = solo(settings=BASIC)
    campaign(member)
    member.core.step(VoteReply(B, A, Term(1), Campaign.REAL, True))
    sent = [message for message in member.take() if isinstance(message, Append)]
    assert [(each.receiver, each.entries.terms, each.entries.kinds) for each in sent] == [(B, [1], b"\1"), (C, [1], b"\1")]


def test_a_leader_repeats_heartbeats_while_idle() -> None:
    """Repeat during idle periods to prevent election timeouts."""
    cluster = Cluster(settings=RaftSettings(pre_vote=False, check_quorum=False, heartbeat_ticks=3))
    core = cluster.elect(1)
    cluster.tick(100)
    assert (core.role, core.term) == (Role.LEADER, cluster.core(2).term)


def test_a_command_is_answered_after_it_is_applied() -> None:
    """If command received from client: append entry to local log, respond after entry applied to state machine."""
    member = solo(settings=BASIC)
    core = lead(member)
    placed = core.propose([b"x"])
    member.take()
    assert placed is not None
    assert core.log.term_at(placed.first) == placed.term
    assert member.applied == []
    core.step(accept(B, 1, placed.first))
    member.take()
    assert member.applied == [(placed.first, b"x")]


def test_a_follower_is_sent_what_follows_its_next_index() -> None:
    """If last log index >= nextIndex for a follower: send AppendEntries RPC with log entries starting at nextIndex."""
    member = solo(settings=BASIC)
    core = lead(member)
    core.step(accept(B, 1, 1))
    core.propose([b"x", b"y"])
    (message,) = [message for message in member.take() if isinstance(message, Append)]
    assert (message.receiver, message.entries.first, message.entries.payloads) == (B, 2, [b"x", b"y"])


def test_a_success_moves_next_and_match_index() -> None:
    """If successful: update nextIndex and matchIndex for follower."""
    core = lead(solo(terms=[1, 1], settings=BASIC))
    core.step(accept(C, core.term, 3))
    assert (core.progress[C].match, core.progress[C].next) == (3, 4)


def test_a_failure_lowers_next_index_and_is_tried_again() -> None:
    """If AppendEntries fails because of log inconsistency: decrement nextIndex and retry (a whole term at once, 5.3)."""
    member = solo(terms=[1, 1, 3, 3, 3], settings=BASIC)
    core = lead(member)
    core.step(AppendReply(B, A, core.term, Index(5), True, Index(4), Term(2)))
    (message,) = [message for message in member.take() if isinstance(message, Append)]
    assert (message.entries.first, message.prev_term) == (3, 1)


def test_what_a_majority_has_of_the_leaders_term_is_committed() -> None:
    """If there exists an N such that N > commitIndex, a majority of matchIndex[i] >= N, and log[N].term == currentTerm: set
    commitIndex = N."""
    member = solo(voters=(1, 2, 3, 4, 5), terms=[1, 2], settings=BASIC)
    core = lead(member)
    commits = []
    for sender, index in ((B, 2), (C, 2), (NodeId(4), 3), (NodeId(5), 2), (B, 3)):
        core.step(accept(sender, core.term, index))
        commits.append(core.log.commit)
    assert commits == [0, 0, 0, 0, 3]  # index 2 is of an earlier term: never by counting (Figure 8), only behind 3
