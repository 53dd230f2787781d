"""Elections: campaigning, with and without a term of its own, and giving votes, which is the same in every role.

One rule: a candidate counts what voters of its configuration said about this term, its own vote included, and nothing is counted
or asked before it is durable: a request that left before its term was written could be answered by a vote for a log that a crash
has shortened since.

A vote depends on this node's term, vote and log alone, never on whether its own configuration knows the candidate or itself: that
configuration may be behind, and a learner that does not know of its promotion may be the vote that is missing.
"""

from __future__ import annotations

from typing import Final

from cmdlog.raft.errors import Drop
from cmdlog.raft.messages import Campaign, HardState, Removed, TimeoutNow, VoteReply, VoteRequest
from cmdlog.raft.quorum import Ballot, vote_result
from cmdlog.raft.ready import Role, RoleReason
from cmdlog.raft.state import State
from cmdlog.wal.ids import Term

GIVE_WAY_EVERY: Final = 4  # election time-outs: one campaign and the wait before the next

# Campaigning


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


# Giving votes


def shields_leader(state: State, request: VoteRequest) -> bool:
    """Whether the request is to be ignored because our leader is alive (dissertation, section 4.2.3): a node that was removed,
    or hears nobody, must not end its term."""
    settings = state.settings
    if not settings.check_quorum or request.campaign is Campaign.TRANSFER:
        return False
    return state.leader is not None and state.elapsed < settings.election_ticks


def tell_removed(state: State, request: VoteRequest) -> None:
    """Tells a node that asks for votes when a committed configuration is without it, and all later ones are: the commit of its
    removal did not reach it, it is sent nothing any more, and would campaign for ever."""
    needed = state.needed_configurations()
    if needed[0].voters and not any(request.sender in value.members() for value in needed):
        at = next(at for at, value in state.log.configurations if value is needed[0])
        state.now.append(Removed(state.id, request.sender, state.term, at))


def on_removed(state: State, message: Removed) -> None:
    """A committed configuration is without this node. It waits, and campaigns no more unless its log gets a later one."""
    if message.index < state.configuration_index:
        state.drop(Drop.STALE_REPLY)
        return
    state.removed_at, state.soft_changed = max(state.removed_at, message.index), True
    if state.role is Role.PRE_CANDIDATE or state.role is Role.CANDIDATE:
        state.become_follower(state.term, None, RoleReason.REMOVED)


def on_vote_request(state: State, request: VoteRequest) -> None:
    """Grants or refuses. A vote is durable before it is sent; a pre-vote changes nothing and may leave at once."""
    tell_removed(state, request)
    if not state.enfranchised:
        state.drop(Drop.NO_FRANCHISE)
        return
    good = state.log.up_to_date(request.last_index, request.last_term)
    if request.campaign is Campaign.PRE:
        granted = good and request.term > state.term
        if granted:
            _give_way(state, request)
        _answer(state, request, request.term if granted else state.term, granted=granted)
        return
    granted = good and (state.vote == request.sender or (state.vote is None and state.leader is None))
    if granted:
        state.vote = request.sender
        state.restart_timer()
    _answer(state, request, state.term, granted=granted)


def _give_way(state: State, request: VoteRequest) -> None:
    """Leaves the campaign to a node that would win: on long ways many begin one before they hear of each other's, and split the
    votes. Of two that ask at the same time the one with the better log continues, else the one with the higher number. Not twice
    in a row: who asks again and again may hear no answers, and must not keep the others from leading."""
    own = state.log.last_term, state.log.last, state.id
    outbids = (request.last_term, request.last_index, request.sender) > own
    asks = state.role is Role.PRE_CANDIDATE
    if not (state.role is Role.FOLLOWER or (asks and outbids)) or state.ticks < state.give_way_from:
        return
    state.give_way_from = state.ticks + GIVE_WAY_EVERY * state.settings.election_ticks
    if asks:
        state.become_follower(state.term, None, RoleReason.ELECTION_LOST)
    waited = state.elapsed  # since the leader was heard, which shields it no more
    state.restart_timer(state.pace.extra_ticks)
    state.elapsed, state.timeout = waited, waited + state.timeout


def _answer(state: State, request: VoteRequest, term: Term, *, granted: bool) -> None:
    reply = VoteReply(state.id, request.sender, term, request.campaign, granted)
    (state.now if request.campaign is Campaign.PRE else state.after).append(reply)
