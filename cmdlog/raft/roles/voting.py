"""Giving votes: the same in every role.

One rule: a vote depends on this node's term, vote and log alone, never on whether its own configuration knows the candidate or
itself: that configuration may be behind, and a learner that does not know of its promotion may be the vote that is missing.
"""

from __future__ import annotations

from cmdlog.raft.errors import Drop
from cmdlog.raft.messages import Campaign, VoteReply, VoteRequest
from cmdlog.raft.state import State
from cmdlog.wal.ids import Term


def shields_leader(state: State, request: VoteRequest) -> bool:
    """Whether the request is to be ignored because our leader is alive (dissertation, section 4.2.3): a node that was removed,
    or hears nobody, must not end its term. Where leases are in use, a node that has just started does not know whom it shielded
    before, so it shields anyone for as long."""
    settings = state.settings
    if not settings.check_quorum or request.campaign is Campaign.TRANSFER:
        return False
    heard = state.leader is not None and state.elapsed < settings.election_ticks
    return heard or (settings.lease_ticks > 0 and state.ticks < settings.election_ticks)


def on_vote_request(state: State, request: VoteRequest) -> None:
    """Grants or refuses. A vote is durable before it is sent; a pre-vote changes nothing and may leave at once."""
    if not state.enfranchised:
        state.drop(Drop.NO_FRANCHISE)
        return
    good = state.log.up_to_date(request.last_index, request.last_term)
    if request.campaign is Campaign.PRE:
        granted = good and request.term > state.term
        _reply(state, request, request.term if granted else state.term, granted=granted)
        return
    granted = good and (state.vote == request.sender or (state.vote is None and state.leader is None))
    if granted:
        state.vote = request.sender
        state.restart_timer()
    _reply(state, request, state.term, granted=granted)


def _reply(state: State, request: VoteRequest, term: Term, *, granted: bool) -> None:
    reply = VoteReply(state.id, request.sender, term, request.campaign, granted)
    (state.now if request.campaign is Campaign.PRE else state.after).append(reply)
