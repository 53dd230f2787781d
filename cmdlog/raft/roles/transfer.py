"""Handing leadership to another voter (dissertation, section 3.10).

One rule: while a transfer is under way nothing new is proposed, so that the target can catch up with all of the log; and a
transfer always ends: with the new term, or by its time-out, after which proposals are taken again.

A `TimeoutNow` may arrive long after the transfer was given up. The election that it causes is as safe as any.
"""

from __future__ import annotations

from cmdlog.raft.configuration import NodeId
from cmdlog.raft.errors import ProposalRefused, Refusal
from cmdlog.raft.messages import TimeoutNow
from cmdlog.raft.state import Handover, Role, State


def begin_transfer(state: State, target: NodeId) -> None:
    """Offers leadership to `target`, in place of any other. Raises: ProposalRefused."""
    if state.role is not Role.LEADER:
        raise ProposalRefused(Refusal.NOT_LEADER, leader=state.leader)
    if target == state.id or not state.configuration.is_voter(target):
        raise ProposalRefused(Refusal.NO_SUCH_VOTER, f"node {target}")
    if target not in state.live():
        raise ProposalRefused(Refusal.NOT_HEARD, f"node {target} in this term, lately")
    state.handover = Handover(target, state.ticks + transfer_ticks(state))
    state.dirty = True
    hand_over(state)


def transfer_ticks(state: State) -> int:
    """After which a transfer is given up: it is an election, on disks and ways as slow as was seen."""
    return state.settings.transfer_ticks + state.pace.extra_ticks


def hand_over(state: State) -> None:
    """Tells the target of the transfer under way to campaign, as soon as it has the whole log."""
    assert state.handover is not None
    target = state.handover.target
    if state.progress[target].match == state.log.last:
        state.now.append(TimeoutNow(state.id, target, state.term))


def expire(state: State) -> None:
    """Gives up a transfer that took too long: the target is behind, gone, or lost the election."""
    if state.handover is not None and state.ticks >= state.handover.deadline:
        state.handover = None
