"""Campaigning, with and without a term of its own.

One rule: a candidate counts what voters of its configuration said about this term, its own vote included, and nothing is counted
or asked before it is durable: a request that left before its term was written could be answered by a vote for a log that a crash
has shortened since.
"""

from __future__ import annotations

from cmdlog.raft.errors import Drop
from cmdlog.raft.messages import Campaign, HardState, TimeoutNow, VoteReply, VoteRequest
from cmdlog.raft.quorum import Ballot, vote_result
from cmdlog.raft.ready import Role, RoleReason
from cmdlog.raft.state import State
from cmdlog.wal.ids import Term


def on_timeout(state: State, reason: RoleReason = RoleReason.ELECTION_TIMEOUT) -> None:
    """No leader was heard from, or a campaign led to nothing. Who may not campaign keeps waiting, without shielding anyone."""
    if state.role is Role.CANDIDATE:
        state.pace.undecided += 1
    if not state.promotable:
        state.become_follower(state.term, None, RoleReason.REMOVED)
    elif state.settings.pre_vote:
        _ask(state, reason)
    else:
        campaign(state, Campaign.REAL, reason)


def on_timeout_now(state: State, message: TimeoutNow) -> None:
    """The leader wants this node to lead: no pre-vote, no waiting. A node that may not campaign lets the transfer time out."""
    del message
    if state.promotable:
        campaign(state, Campaign.TRANSFER, RoleReason.TRANSFER)


def _ask(state: State, reason: RoleReason) -> None:
    state.become_pre_candidate(reason)
    _await_votes(state)
    _request(state, Campaign.PRE, Term(state.term + 1))
    _count(state, Campaign.PRE)


def campaign(state: State, kind: Campaign, reason: RoleReason) -> None:
    """Begins a term as candidate."""
    state.become_candidate(reason=reason)
    _request(state, kind, state.term)


def _await_votes(state: State) -> None:
    """From now on the campaign waits for answers alone, not for a leader's sign of life: it is repeated half an election time-out
    earlier than that wait would end, so that a split vote costs less than the failure that led to it. But not before answers of
    the disks and ways that were seen could be here."""
    state.restart_timer(state.pace.extra_ticks)
    state.timeout -= state.settings.election_ticks // 2
    state.asked_at = state.ticks


def _request(state: State, kind: Campaign, term: Term) -> None:
    box = state.now if kind is Campaign.PRE else state.after
    for peer in state.configuration.members():
        if peer != state.id and state.configuration.is_voter(peer):
            box.append(VoteRequest(state.id, peer, term, kind, state.log.last, state.log.last_term))


def is_promising(state: State) -> bool:
    """Whether this node has promised something in its term that is not durable yet, and follows nobody: what it waits for cannot
    happen before, so no time-out runs, however slow the disk is."""
    if state.leader is not None or not state.log.writes:
        return False
    return any(write.hard_state is not None and write.hard_state.term == state.term for write in state.log.writes)


def on_vote_durable(state: State, written: list[HardState]) -> None:
    """What this node promised without a leader is written: if that is its vote of this term, its wait begins now. A candidate
    counts its vote, and hears others from now on; a voter gives the one that it voted for the time to win."""
    if not any(hard.term == state.term and hard.vote is not None and hard.vote == state.vote for hard in written):
        return
    if state.role is Role.CANDIDATE and state.id not in state.votes:
        _await_votes(state)
        state.votes[state.id] = True
        _count(state, Campaign.REAL)
    elif state.role is Role.FOLLOWER:
        state.restart_timer(state.pace.extra_ticks)


def on_vote_reply(state: State, reply: VoteReply) -> None:
    """Counts one voter's first answer; an answer to another campaign, or to another kind of it, is stale."""
    pre = state.role is Role.PRE_CANDIDATE
    asked_term = state.term + 1 if pre and reply.granted else state.term
    if pre is not (reply.campaign is Campaign.PRE) or reply.term != asked_term:
        state.drop(Drop.STALE_REPLY)
        return
    state.votes.setdefault(reply.sender, reply.granted)
    _count(state, reply.campaign)


def _count(state: State, kind: Campaign) -> None:
    ballot = vote_result(state.configuration, state.votes)
    if ballot is not Ballot.OPEN:
        state.pace.note_answer(state.ticks - state.asked_at, state.ticks)
    if ballot is Ballot.LOST:
        state.become_follower(state.term, None, RoleReason.ELECTION_LOST)
    elif ballot is Ballot.WON and kind is Campaign.PRE:
        campaign(state, Campaign.REAL, state.reason)
    elif ballot is Ballot.WON:
        state.pace.undecided = 0
        state.become_leader()
