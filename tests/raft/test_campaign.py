"""Campaigns: pre-votes, shields, priorities, and who may not campaign."""

from __future__ import annotations

import random

import pytest

from cmdlog.raft import (
    Configuration,
    Drop,
    Entries,
    Franchise,
    HardState,
    InvariantBroken,
    PlacedProposals,
    ProposalRefused,
    RaftCore,
    RaftSettings,
    Role,
    SnapshotDescriptor,
)
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.messages import Append, AppendReply, Campaign, Heartbeat, InstallSnapshot, TimeoutNow, VoteReply, VoteRequest
from cmdlog.wal.ids import Index, Term
from tests.raft.cluster import Cluster, Disk, Member, column, lead, node, solo

A, B, C = NodeId(1), NodeId(2), NodeId(3)


def wait(member: Member) -> list[VoteRequest]:
    """Lets the election time-out pass; returns what is asked."""
    for _ in range(member.core.timeout):
        member.core.tick()
    return [message for message in member.take() if isinstance(message, VoteRequest)]


def ask(campaign: Campaign, term: int, *, last: tuple[int, int] = (9, 9)) -> VoteRequest:
    """A request of C to A."""
    return VoteRequest(C, A, Term(term), campaign, Index(last[0]), Term(last[1]))


def test_a_pre_vote_changes_neither_term_nor_vote_on_either_side() -> None:
    """A node that cannot win does not spend terms."""
    candidate, voter = solo(), solo(2)
    (request, _) = wait(candidate)
    assert (request.campaign, request.term) == (Campaign.PRE, 1)
    voter.core.step(request)
    (reply,) = voter.take()
    assert isinstance(reply, VoteReply)
    assert (reply.term, reply.granted) == (1, True)
    assert [(core.term, core.vote) for core in (candidate.core, voter.core)] == [(0, None)] * 2
    assert voter.disk.hard_state.term == 0


def test_a_won_pre_vote_begins_the_campaign() -> None:
    """The real requests leave when term and own vote are durable."""
    member = solo()
    wait(member)
    member.synced = False
    member.core.step(VoteReply(B, A, Term(1), Campaign.PRE, True))
    assert member.take() == []
    sent = member.sync()
    assert [message.campaign for message in sent if isinstance(message, VoteRequest)] == [Campaign.REAL] * 2
    assert (member.core.role, member.core.term, member.core.vote) == (Role.CANDIDATE, 1, A)


@pytest.mark.parametrize(
    "reply",
    [
        VoteReply(B, A, Term(2), Campaign.PRE, True),  # grants another term than the one asked for
        VoteReply(B, A, Term(0), Campaign.REAL, True),  # answers a campaign of an earlier term
        VoteReply(B, A, Term(1), Campaign.REAL, False),
    ],
)
def test_answers_to_another_question_do_not_make_a_candidate(reply: VoteReply) -> None:
    """A pre-vote is won by grants of just that pre-vote."""
    member = solo()
    wait(member)
    member.core.step(reply)
    assert member.core.role is not Role.CANDIDATE


def test_late_pre_votes_do_not_count_in_the_campaign() -> None:
    """A candidate needs real votes; a late grant of a pre-vote is none."""
    member = solo(voters=(1, 2, 3, 4, 5))
    wait(member)
    for voter in (2, 3, 4, 5):
        member.core.step(VoteReply(NodeId(voter), A, Term(1), Campaign.PRE, True))
    assert member.core.role is Role.CANDIDATE
    assert member.core.drops[Drop.STALE_REPLY] == 2


def test_a_lost_pre_vote_ends_in_waiting() -> None:
    """Refused by a majority: follow whoever comes, in the same term."""
    member = solo()
    wait(member)
    for sender in (B, C):
        member.core.step(VoteReply(sender, A, Term(0), Campaign.PRE, False))
    assert (member.core.role, member.core.term) == (Role.FOLLOWER, 0)


def test_a_lost_campaign_ends_in_waiting() -> None:
    """The vote stays given."""
    member = solo(settings=RaftSettings(pre_vote=False))
    wait(member)
    for sender in (B, C):
        member.core.step(VoteReply(sender, A, Term(1), Campaign.REAL, False))
    assert (member.core.role, member.core.vote) == (Role.FOLLOWER, A)


def test_the_candidates_own_vote_counts_when_it_is_durable() -> None:
    """A majority that includes a vote which a crash may forget is none."""
    member = solo(settings=RaftSettings(pre_vote=False))
    member.synced = False
    wait(member)
    member.core.step(VoteReply(B, A, Term(1), Campaign.REAL, True))
    assert (member.core.role, member.core.votes) == (Role.CANDIDATE, {B: True})
    member.sync()
    assert member.core.leader == A


def test_a_completed_write_of_an_earlier_campaign_is_no_vote() -> None:
    """Only the vote of the present term counts."""
    member = solo(settings=RaftSettings(pre_vote=False))
    member.synced = False
    wait(member)
    member.core.step(TimeoutNow(C, A, Term(1)))  # from who leads the term after all
    member.take()
    member.core.step(VoteReply(B, A, Term(2), Campaign.REAL, True))
    member.sync(1)
    assert (member.core.role, member.core.votes) == (Role.CANDIDATE, {B: True})
    member.sync()
    assert member.core.leader == A


@pytest.mark.parametrize("campaign", [Campaign.PRE, Campaign.REAL])
def test_who_hears_from_its_leader_ignores_requests(campaign: Campaign) -> None:
    """A removed, cut off or slow node cannot end the term of a leader that others hear from."""
    member = solo()
    member.core.step(Heartbeat(B, A, Term(1), Index(0), 0))
    member.take()
    member.core.step(ask(campaign, 7))
    assert member.take() == []
    assert (member.core.term, member.core.drops[Drop.LEADER_ALIVE]) == (1, 1)


def test_a_leader_shields_itself_and_a_transfer_passes_every_shield() -> None:
    """While a majority answers it a leader ignores campaigns, but for one that a leader asked for."""
    member = solo()
    core = lead(member)
    core.step(ask(Campaign.REAL, 7))
    assert core.role is Role.LEADER
    core.step(ask(Campaign.TRANSFER, 7))
    assert (core.role, core.vote) == (Role.FOLLOWER, C)


def test_a_shield_ends_an_election_time_out_after_the_last_sign_of_life() -> None:
    """Then votes are given as usual."""
    member = solo(settings=RaftSettings(election_ticks=10))
    member.core.step(Heartbeat(B, A, Term(1), Index(0), 0))
    for _ in range(9):
        member.core.tick()
    member.take()
    member.core.step(ask(Campaign.PRE, 7))
    assert member.take() == []
    member.core.timeout = 99
    member.core.tick()
    member.core.step(ask(Campaign.PRE, 7))
    (reply,) = member.take()
    assert isinstance(reply, VoteReply)
    assert reply.granted


@pytest.mark.parametrize(("campaign", "term"), [(Campaign.PRE, 3), (Campaign.REAL, 2), (Campaign.PRE, 2)])
def test_a_campaign_behind_our_term_is_told_of_it(campaign: Campaign, term: int) -> None:
    """So a node that is behind, or without pre-votes, catches up instead of asking for ever."""
    member = solo(terms=[1], term=3)
    member.core.step(ask(campaign, term))
    (reply,) = member.take()
    assert isinstance(reply, VoteReply)
    assert (reply.term, reply.granted) == (3, False)


def test_a_pre_vote_is_refused_for_a_worse_log() -> None:
    """It would lose the real vote too."""
    member = solo(terms=[1, 2])
    member.core.step(ask(Campaign.PRE, 9, last=(5, 1)))
    (reply,) = member.take()
    assert isinstance(reply, VoteReply)
    assert (reply.term, reply.granted) == (2, False)


def test_a_node_that_may_have_forgotten_a_vote_gives_none_and_does_not_campaign() -> None:
    """After amnesia a second vote in the same term would be possible."""
    member = solo(franchise=Franchise.NONE)
    member.core.step(ask(Campaign.REAL, 7))
    assert member.core.vote is None
    assert member.core.drops[Drop.NO_FRANCHISE] == 1
    assert wait(member) == []
    member.core.step(TimeoutNow(B, A, Term(7)))
    assert member.core.role is Role.FOLLOWER


def test_a_node_that_may_have_forgotten_a_vote_is_silent() -> None:
    """Its acknowledgement or heartbeat's answer would be counted as that of the disk which may have promised otherwise."""
    member = solo(franchise=Franchise.NONE)
    member.core.step(Heartbeat(C, A, Term(1), Index(0), 1))
    member.core.step(Append(C, A, Term(1), Term(0), Index(0), Entries(Index(1), [Term(1)], b"\0", [b"x"])))
    assert (member.take(), member.core.term, member.core.log.last) == ([], 0, 0)
    assert member.core.drops == {Drop.NO_FRANCHISE: 2}


def test_a_node_on_an_older_disk_takes_entries_and_has_no_word() -> None:
    """It has forgotten votes, maybe, so it gives none and does not campaign; what a leader sends it, it has."""
    member = solo(franchise=Franchise.NO_WORD)
    member.core.step(ask(Campaign.REAL, 7))
    assert (member.core.vote, member.core.drops) == (None, {Drop.NO_FRANCHISE: 1})
    assert wait(member) == []
    with pytest.raises(ProposalRefused):
        member.core.campaign()
    member.core.step(Append(C, A, Term(7), Term(0), Index(0), Entries(Index(1), [Term(7)], b"\0", [b"x"])))
    assert [reply.index for reply in [*member.take(), *member.sync()] if isinstance(reply, AppendReply)] == [1]
    member.core.step(TimeoutNow(C, A, Term(7)))
    assert member.core.role is Role.FOLLOWER


def test_a_new_member_in_place_of_a_lost_disk_has_no_word_in_earlier_terms() -> None:
    """Leaders of the terms before its admission may count on what the lost disk said."""
    member = solo(admitted=PlacedProposals(Index(2), Term(3)))
    member.core.step(Append(C, A, Term(2), Term(0), Index(0), Entries(Index(1), [Term(2)], b"\0", [b"x"])))
    (refusal,) = member.take()
    assert isinstance(refusal, AppendReply)
    assert (refusal.term, refusal.index) == (3, 0)
    assert (member.core.log.last, member.disk.hard_state.term) == (0, 3)


@pytest.mark.parametrize(("terms", "granted"), [([], False), ([1], False), ([1, 2], False), ([1, 3], True), ([1, 3, 3], True)])
def test_a_new_member_in_place_of_a_lost_disk_votes_when_it_has_the_entry_that_says_so(
    terms: list[int], *, granted: bool
) -> None:
    """The configurations before that entry mean the lost disk; a log that has another entry there does not have it."""
    admitted = PlacedProposals(Index(2), Term(3))
    voter = solo(terms=terms, admitted=admitted)
    voter.core.step(ask(Campaign.REAL, 7))
    replies = [message for message in voter.take() if isinstance(message, VoteReply)]
    assert [reply.granted for reply in replies] == [True] * granted
    assert bool(wait(solo(terms=terms, admitted=admitted))) is granted


def test_a_new_member_in_place_of_a_lost_disk_keeps_its_vote_over_a_restart() -> None:
    """The admission is given at every start, and takes nothing back that was promised since."""
    voter = solo(terms=[1, 3], term=7, vote=2, admitted=PlacedProposals(Index(2), Term(3)))
    assert (voter.core.term, voter.core.vote) == (7, B)


@pytest.mark.parametrize("member", [solo(4, learners=(4,)), solo(9)], ids=["learner", "no member"])
def test_only_voters_campaign(member: Member) -> None:
    """A learner, or a node that was removed, waits; it shields no leader that it has not heard from for long."""
    member.core.step(Heartbeat(B, member.core.id, Term(1), Index(0), 0))
    assert wait(member) == []
    assert (member.core.role, member.core.leader) == (Role.FOLLOWER, None)


def test_who_may_not_campaign_lets_a_transfer_time_out() -> None:
    """A leader that wants a learner to lead waits in vain."""
    member = solo(4, learners=(4,))
    member.core.step(Heartbeat(B, NodeId(4), Term(1), Index(0), 0))
    member.take()
    member.core.step(TimeoutNow(B, NodeId(4), Term(1)))
    assert member.take() == []
    assert (member.core.role, member.core.term) == (Role.FOLLOWER, 1)


def test_a_learner_votes_when_it_is_asked() -> None:
    """It may be a voter already and not know it; refusing could leave the group without a leader."""
    member = solo(4, learners=(4,))
    member.core.step(VoteRequest(A, NodeId(4), Term(1), Campaign.REAL, Index(0), Term(0)))
    (reply,) = member.take()
    assert isinstance(reply, VoteReply)
    assert reply.granted


def test_patience_leaves_leadership_to_others() -> None:
    """A hint: where others live, they campaign first."""
    patient = RaftSettings(patience=2)
    waits = [[solo(member, settings=each).core.timeout for member in range(1, 50)] for each in (RaftSettings(), patient)]
    assert [(min(each), max(each)) for each in waits] == [(10, 19), (30, 39)]


def test_equal_time_outs_do_not_split_votes_for_ever() -> None:
    """Every wait is drawn anew, so that one of them is first in the end."""
    cluster = Cluster((1, 2, 3, 4, 5), settings=RaftSettings(pre_vote=False))
    for core in (member.core for member in cluster.members.values()):
        core.timeout = 10
    cluster.tick(60)
    assert len(cluster.leaders()) == 1


def test_a_leader_that_hears_no_majority_steps_down() -> None:
    """Its clients are told within two election time-outs instead of never, and the others can elect (Cloudflare 2020)."""
    cluster = Cluster()
    cluster.elect(1)
    cluster.passes = lambda message: message.receiver != A  # it is heard, but hears nobody
    cluster.tick(20)
    assert cluster.core(1).role is not Role.LEADER
    cluster.tick(60)
    assert cluster.leaders() in ([B], [C])


def test_a_cut_off_node_comes_back_without_disturbing_anyone() -> None:
    """Terms do not grow while it asks in vain, and its return ends no leadership."""
    cluster = Cluster()
    leader = cluster.elect(1)
    term = leader.term
    cluster.cut(3)
    cluster.tick(100)
    cluster.heal()
    cluster.tick(40)
    assert (leader.role, leader.term, cluster.core(3).term, cluster.core(3).leader) == (Role.LEADER, term, term, A)


def test_a_node_with_a_newer_term_is_taken_back() -> None:
    """Without pre-votes its term has grown: the leader hears of it, steps down, and one election settles it."""
    cluster = Cluster(settings=RaftSettings(pre_vote=False))
    cluster.elect(1)
    cluster.cut(3)
    cluster.tick(60)
    assert cluster.core(3).term > cluster.core(1).term
    cluster.heal()
    cluster.tick(80)
    assert len({core.term for core in (cluster.core(member) for member in (1, 2, 3))}) == 1
    assert len(cluster.leaders()) == 1


@pytest.mark.parametrize("seed", range(5))
def test_a_single_voter_leads_after_its_first_tick(seed: int) -> None:
    """There is nobody to wait for: a restart of a group of one costs no election time-out."""
    cluster = Cluster((1,), seed=seed)
    cluster.tick()
    assert cluster.leaders() == [node(1)]
    cluster.restart(1)
    cluster.tick()
    assert cluster.leaders() == [node(1)]


def test_a_single_voter_waits_for_its_own_disk() -> None:
    """Its vote counts when it is written: a slow disk must not make it spend a term with every tick."""
    member = solo(1, voters=(1,))
    member.synced = False
    for _ in range(8):
        member.core.tick()
        member.take()
    assert (member.core.role, member.core.term) == (Role.CANDIDATE, 1)
    member.sync()
    assert member.core.role is Role.LEADER


def waits(core: RaftCore) -> int:
    """Ticks until its wait ends."""
    return core.timeout - core.elapsed


def test_a_campaign_that_waits_for_answers_is_repeated_soon() -> None:
    """A split vote costs between a half and one and a half election time-outs, but the own disk has all the time of a wait."""
    found = []
    for seed in range(100):
        member = solo(1, term=1)
        core, member.synced = member.core, False
        core.rng.seed(seed)
        while core.role is Role.FOLLOWER:
            core.tick()
        found.append(waits(core))
        core.step(VoteReply(node(2), node(1), Term(2), Campaign.PRE, True))
        member.take()
        assert core.role is Role.CANDIDATE
        assert 10 <= waits(core) < 20
        member.sync()
        found.append(waits(core))
    assert set(found) == set(range(5, 15))


def test_a_voter_of_a_configuration_under_way_is_not_single() -> None:
    """Its log ends with a second voter that may have voted for somebody else."""
    member = solo(1, voters=(1, 2), term=1)
    alone = Configuration(voters=(node(1),), outgoing=(node(1), node(2)))
    member.core.step(Append(node(2), node(1), Term(1), Term(0), Index(0), column(1, 1, kinds=b"\2", payloads=[alone.to_bytes()])))
    member.take()
    member.core.become_follower(Term(2), None)
    assert member.core.timeout >= 10


def test_a_configuration_without_voters_is_refused_everywhere() -> None:
    """In its force a node would win without any vote."""
    member = solo(1, term=1)
    core = member.core
    core.step(Append(node(2), node(1), Term(1), Term(0), Index(0), column(1, 1, kinds=b"\2", payloads=[b"{}"])))
    core.step(InstallSnapshot(node(2), node(1), Term(1), SnapshotDescriptor(Index(9), Term(1))))
    member.take()
    assert core.log.last == 0
    assert core.copying is None
    assert core.drops[Drop.BAD_CONFIGURATION] == 2


@pytest.mark.parametrize("payload", [b"junk", b"{}"])
def test_a_damaged_configuration_on_disk_ends_the_group_by_name(payload: bytes) -> None:
    """The entry is named: it is a finding of the log."""
    damaged = Disk(HardState(Term(1)), entries=column(1, 1, 1, kinds=b"\0\2", payloads=[b"x", payload]))
    with pytest.raises(InvariantBroken, match="entry 2"):
        RaftCore(node(1), rng=random.Random(1), restored=damaged.restored())
