"""Giving votes: the same in every role.

One rule: a vote depends on this node's term, vote and log alone, never on whether its own configuration knows the candidate or
itself: that configuration may be behind, and a learner that does not know of its promotion may be the vote that is missing.
"""

from __future__ import annotations

from typing import Final

from cmdlog.raft.errors import Drop
from cmdlog.raft.messages import Campaign, Removed, VoteReply, VoteRequest
from cmdlog.raft.ready import Role, RoleReason
from cmdlog.raft.state import State
from cmdlog.wal.ids import Term

GIVE_WAY_EVERY: Final = 4  # election time-outs: one campaign and the wait before the next


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
        _reply(state, request, request.term if granted else state.term, granted=granted)
        return
    granted = good and (state.vote == request.sender or (state.vote is None and state.leader is None))
    if granted:
        state.vote = request.sender
        state.restart_timer()
    _reply(state, request, state.term, granted=granted)


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


def _reply(state: State, request: VoteRequest, term: Term, *, granted: bool) -> None:
    reply = VoteReply(state.id, request.sender, term, request.campaign, granted)
    (state.now if request.campaign is Campaign.PRE else state.after).append(reply)
