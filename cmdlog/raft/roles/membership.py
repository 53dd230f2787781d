"""Changing who is in the group.

One rule: the configuration in force is the last one in the log, from the moment it is appended, committed or not; cut from the
log, it is as if it had never been (paper, section 6). So at every moment, also after a restart, it is a function of the log
alone. At most one configuration is above the commit mark, and the first one of a term comes only after an entry of that term is
committed (the bug of single-server changes that was found in 2015): so two that can both win elections are always neighbours,
and neighbours have no disjoint majorities (`confchange` keeps more than that). Only `force_recovery` steps out of this line.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final

from cmdlog.raft.confchange import apply_change, check_base, leave_joint
from cmdlog.raft.configuration import Configuration, MemberChange, NodeId
from cmdlog.raft.errors import ChangeRefused, Refusal
from cmdlog.raft.messages import KIND_CONFIGURATION, Entries, TimeoutNow
from cmdlog.raft.quorum import has_quorum
from cmdlog.raft.ready import PlacedProposals, Role, RoleReason
from cmdlog.raft.roles import reads
from cmdlog.raft.state import State
from cmdlog.wal.ids import Index, Term

FORCED_TERMS: Final = 1 << 20  # more terms than a group spends in its life
_CONFIGURATION_KINDS: Final = bytes([KIND_CONFIGURATION])


class MembershipGuard(enum.Enum):
    """Whether a change may put the group's life at risk."""

    CHECKED = "checked"
    FORCED = "forced"  # an operator knows better: new voters may lag, and those heard from may be no majority


def change(state: State, steps: Sequence[MemberChange], *, base: Configuration | None, guard: MembershipGuard) -> PlacedProposals:
    """Appends the configuration that follows from the present one. Raises: ChangeRefused, BadChange."""
    if state.role is not Role.LEADER:
        raise ChangeRefused(Refusal.NOT_LEADER, leader=state.leader)
    if state.handover is not None:
        raise ChangeRefused(Refusal.TRANSFERRING, leader=state.handover.target)
    if not state.term_committed:
        raise ChangeRefused(Refusal.TERM_NOT_COMMITTED)
    if state.configuration_index > state.log.commit:
        raise ChangeRefused(Refusal.CHANGE_PENDING, f"configuration at {state.configuration_index} is not committed")
    if base is not None:
        check_base(state.configuration, base)
    following = apply_change(state.configuration, steps)
    if guard is MembershipGuard.CHECKED:
        _check_life(state, following)
    return _append(state, following)


def _check_life(state: State, following: Configuration) -> None:
    """New voters must have nearly all of the log, else commits would wait for them, and all up to the present configuration,
    else a node that is a member again would have no vote yet; and the voters that are heard from must be a majority of the new
    ones, else the change would be the last thing this group commits."""
    log = state.log
    needed = max(state.configuration_index, log.last - state.settings.promotion_entries_max)
    for node in following.voters:
        if node == state.id or state.configuration.is_voter(node):
            continue
        progress = state.progress.get(node)
        if progress is None or progress.match < needed:
            raise ChangeRefused(Refusal.LAGGING, f"node {node} is not a learner that has caught up")
    if not has_quorum(following, state.live()):
        raise ChangeRefused(Refusal.QUORUM_AT_RISK, f"heard from {sorted(state.live())} of voters {following.voters}")


def _append(state: State, configuration: Configuration) -> PlacedProposals:
    log, payload = state.log, configuration.to_bytes()
    before = log.last
    placed = PlacedProposals(Index(before + 1), state.term)
    log.append(Entries(placed.first, [state.term], _CONFIGURATION_KINDS, [payload]), [(placed.first, configuration)])
    state.dirty = True
    if state.role is Role.LEADER:
        state.count_proposed(len(payload))
        state.refresh_progress(before)
    return placed


def on_commit(state: State, before: Index) -> None:
    """The commit mark moved from `before`: what waited for the present configuration to be committed."""
    at, configuration = state.log.configurations[-1]
    if at > state.log.commit:
        return
    if before < at:
        reads.begin_round(state)  # sends the commit to everybody, before those who left are forgotten
        state.refresh_progress(before)
    if configuration.auto_leave:
        _append(state, leave_joint(configuration))
    elif not configuration.is_voter(state.id):
        # It led, without counting itself, until the others could continue without it (paper, section 6). One of them is asked to
        # campaign at once, after the commit of the removal: waiting for a time-out would leave them without a leader for long.
        if (successor := state.best_successor()) is not None:
            state.now.append(TimeoutNow(state.id, successor, state.term))
        state.become_follower(state.term, None, RoleReason.REMOVED)


def forget_acknowledgements(state: State, node: NodeId) -> None:
    """Another life of the node's disk takes its place: what the former one has acknowledged here, the new one may not have.

    A removal that is committed forgets it, too. But a leader that came later may have both entries, of the removal and of the
    return, before it knows that the life is another one, and has heard the former one until then.
    """
    if state.progress.pop(node, None) is not None:
        state.refresh_progress(state.log.last)


def force_recovery(state: State, epoch: int) -> PlacedProposals:
    """A majority is lost for good and an operator accepts what is lost with it: this node becomes the only voter.

    The configuration is marked `forced`, and so is every later one. The operator chooses the survivor with the best (last term,
    last index). It writes without an election, so a majority that lives after all, or a second survivor, may use the same terms
    for other entries. Therefore the term goes far above theirs, and the group leaves the cluster that it was of: `epoch`, drawn
    at random, is the same for all groups of the node, and every frame carries it from now on (duty 14).
    Raises: ChangeRefused while a leader is heard from.
    """
    if state.leader is not None:
        raise ChangeRefused(Refusal.LEADER_ALIVE, leader=state.leader)
    if not state.enfranchised:
        raise ChangeRefused(Refusal.NO_SUCH_VOTER, "this node may have forgotten what it voted for and acknowledged")
    configuration = Configuration(voters=(state.id,), forced=True, epoch=epoch)
    state.become_candidate(Term(state.term + FORCED_TERMS + epoch % FORCED_TERMS), reason=RoleReason.FORCED)
    return _append(state, configuration)
