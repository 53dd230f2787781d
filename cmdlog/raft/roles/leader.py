"""Leading: feeding followers, counting what they have, committing.

One rule: an entry counts as committed here only when a majority, in both halves of a joint configuration, has it durably and
it is of the leader's own term (paper, section 5.4.2 and Figure 8). The leader is one of that majority only by its own finished
write.

Entries are sent when a Ready is taken (`fill`), not when they are proposed: proposals, acknowledgements and freed windows that
come in between share one message per follower. Followers learn of a commit with the next entries or the next heartbeat; when
everything is committed, a heartbeat goes with the next tick, however rare they are.

Leadership is handed to another voter (dissertation, section 3.10). While that is under way nothing new is proposed, so that the
target can catch up with all of the log; and it always ends: with the new term, or by its time-out, and then proposals are taken
again. A `TimeoutNow` may arrive long after that: the election that it causes is as safe as any.
"""

from __future__ import annotations

from typing import Final

from cmdlog.raft.configuration import NodeId
from cmdlog.raft.errors import Drop, ProposalRefused, Refusal
from cmdlog.raft.messages import (
    Append,
    AppendReply,
    Entries,
    HeartbeatReply,
    InstallSnapshot,
    ReadRequest,
    TimeoutNow,
)
from cmdlog.raft.progress import FollowerProgress, Sending
from cmdlog.raft.quorum import has_quorum, joint_committed
from cmdlog.raft.ready import PlacedProposals, Role, RoleReason
from cmdlog.raft.roles import fetching, membership, reads
from cmdlog.raft.state import Handover, State
from cmdlog.wal.ids import Index

_REPLICATE: Final = Sending.REPLICATE  # a name of the module is found in a third of the time of a member of an enum

# Taking proposals


def propose(state: State, payloads: list[bytes]) -> PlacedProposals:
    """Appends entries to this leader's log. Raises: ProposalRefused."""
    settings = state.settings
    if state.handover is not None:
        raise ProposalRefused(Refusal.TRANSFERRING, leader=state.handover.target)
    size = sum(map(len, payloads))
    if size > settings.entry_bytes_max and (largest := max(map(len, payloads))) > settings.entry_bytes_max:
        raise ProposalRefused(Refusal.TOO_LARGE, f"{largest} bytes, at most {settings.entry_bytes_max}")
    # With nothing in flight anything of legal size is taken, so that no proposal is refused for ever.
    if state.proposed_bytes and state.proposed_bytes + size > settings.proposed_bytes_max:
        raise ProposalRefused(Refusal.IN_FLIGHT_BYTES, f"{state.proposed_bytes} bytes are not committed yet")
    log, term, count = state.log, state.term, len(payloads)
    waiting = log.untaken_bytes + log.writing_bytes
    if waiting and waiting + size > settings.undurable_bytes_max:
        raise ProposalRefused(Refusal.UNDURABLE_BYTES, f"{waiting} bytes wait for the own disk")
    if log.last - log.commit + count > settings.proposed_entries_max and log.commit < log.last:
        raise ProposalRefused(Refusal.IN_FLIGHT_ENTRIES, f"{log.last - log.commit} entries are not committed yet")
    first = Index(log.last + 1)
    log.append(Entries(first, [term] * count, bytes(count), payloads, size))
    state.count_proposed(size)
    return PlacedProposals(first, term)


def on_read_request(state: State, message: ReadRequest) -> None:
    """Reads of a follower; beyond the limit they are left to their time-out."""
    if state.reads.count >= state.settings.reads_max:
        state.drop(Drop.READS_PENDING)
    else:
        reads.take_reads(state, message.sender, message.contexts)


# Time


def tick(state: State) -> None:
    """Heartbeats; stepping down when no majority is heard from (dissertation, section 6.2); the end of a transfer or a copy."""
    settings = state.settings
    state.elapsed += 1
    if state.elapsed >= settings.election_ticks:
        state.elapsed = 0
        if settings.check_quorum and not has_quorum(state.configuration, state.active()):
            state.become_follower(state.term, None, RoleReason.QUORUM_LOST)
            return
    expire_transfer(state)
    if state.log.writes and _disk_hangs(state):
        return
    state.heartbeat_elapsed += 1
    if state.heartbeat_elapsed >= settings.heartbeat_ticks or _commit_is_unsent(state):
        state.heartbeat_elapsed = 0
        state.dirty = True
        reads.begin_round(state)
    for peer, progress in state.progress.items():
        if progress.sending is Sending.SNAPSHOT:
            _tick_copy(state, peer, progress)


def _commit_is_unsent(state: State) -> bool:
    """With nothing under way no message brings the last commit to the followers: it does not wait for a rare heartbeat."""
    log = state.log
    return log.commit == log.last and state.reads.commit_sent < log.commit


def _disk_hangs(state: State) -> bool:
    """Whether the role ended because the own disk does not answer. The others commit without it, but nothing is applied or
    answered here. After an election time-out, and what a slow disk is known to take, leadership is offered to a voter that is
    heard from; after a second one, this node steps down, if the others can elect: a leader that cannot write is worth less than
    none."""
    election = state.settings.election_ticks
    waited = state.ticks - state.log.writes[0].begun - state.pace.stall_ticks
    if waited < election:
        return False
    if waited >= 2 * election and has_quorum(state.configuration, state.live() - {state.id}):
        state.become_follower(state.term, None, RoleReason.DISK_STALLED)
        return True
    if state.handover is None and (successor := state.best_successor()) is not None:
        begin_transfer(state, successor)
    return False


def _tick_copy(state: State, peer: NodeId, progress: FollowerProgress) -> None:
    """The manifest is sent again now and then, since it may be lost. The log is no longer kept for a copy that takes too long, or
    whose receiver is silent: it may be gone for good, and the log of this node is bounded."""
    progress.copy_ticks += 1
    silent = progress.heard <= state.ticks - state.settings.election_ticks
    if silent or progress.copy_ticks >= state.settings.copy_ticks_max:
        progress.probe()
    elif progress.copy_ticks % state.settings.election_ticks == 0:
        _send_manifest(state, peer, progress)


# Sending


def fill(state: State) -> None:
    """Sends every follower what it lacks, as far as its window is open."""
    if state.reads.waiting:
        reads.begin_round_if_wanted(state)
    last = state.log.last
    for peer, progress in state.progress.items():
        if progress.nudge:
            progress.nudge = False
            _send_empty(state, peer, progress)
        while progress.next <= last and progress.open and _send_entries(state, peer, progress):
            pass


def _send_entries(state: State, peer: NodeId, progress: FollowerProgress) -> bool:
    log, settings = state.log, state.settings
    prev_term = log.term_at(progress.next - 1)
    if prev_term is None:
        _offer_copy(state, peer, progress)
        return False
    if progress.next <= log.held:
        return fetching.send_fetched(state, peer, progress, prev_term)
    most, bytes_max = settings.append_entries_max, progress.message_bytes_max(settings)
    entries, size = log.batch(progress.next, log.last, entries_max=most, bytes_max=bytes_max)
    state.now.append(Append(state.id, peer, state.term, prev_term, log.commit, entries))
    progress.sent(Index(entries.first + len(entries.terms) - 1), size)
    return True


def _send_empty(state: State, peer: NodeId, progress: FollowerProgress) -> None:
    """Asks whether all that is under way has arrived: without it, a lost last message or a lost answer would stall a follower."""
    prev_term = state.log.term_at(progress.next - 1)
    if prev_term is None:
        _offer_copy(state, peer, progress)
        return
    empty = Entries(progress.next, [], b"", [])
    state.now.append(Append(state.id, peer, state.term, prev_term, state.log.commit, empty))


def _offer_copy(state: State, peer: NodeId, progress: FollowerProgress) -> None:
    """The follower's next entry is compacted. Nobody keeps a log for a node that does not answer."""
    if progress.heard > state.ticks - state.settings.election_ticks:
        progress.copy(state.manifest)
        _send_manifest(state, peer, progress)


def _send_manifest(state: State, peer: NodeId, progress: FollowerProgress) -> None:
    assert progress.manifest is not None
    state.now.append(InstallSnapshot(state.id, peer, state.term, progress.manifest))


def pinned(state: State, upto: Index) -> list[Index]:
    """Indexes after which the log is kept for copies under way. One that alone would keep too many bytes up to `upto` is given
    up: its receiver copies a later snapshot."""
    log, indexes = state.log, list[Index]()
    for progress in state.progress.values():
        if progress.manifest is None:
            continue
        at = progress.manifest.index
        if log.bytes_between(at, upto) > state.settings.copy_bytes_max:
            progress.probe()
        else:
            indexes.append(at)
    return indexes


# Answers


def on_append_reply(state: State, message: AppendReply) -> None:
    """A follower's durable log, or where to look for the place at which it meets this one."""
    progress, log = _heard(state, message.sender), state.log
    if progress is None:
        return
    if message.index > log.last:
        state.drop(Drop.BEYOND_LOG)
        return
    if message.rejected:
        if not progress.rejected(message.index, log.agreeing(message.hint_index, message.hint_term)):
            state.drop(Drop.STALE_REPLY)
        state.dirty = True
        return
    news = progress.accepted(message.index)
    if progress.sending is not _REPLICATE and message.index == progress.match >= log.base:
        progress.replicate()
        state.dirty = True
    if progress.next <= log.last:
        state.dirty = True  # its window may be open again
    if news:
        if log.commit < log.last:
            maybe_commit(state)
        if state.handover is not None:
            hand_over(state)
            state.dirty = True


def on_heartbeat_reply(state: State, message: HeartbeatReply) -> None:
    """The follower lives: its probe may go again, and what is under way is asked after."""
    progress = _heard(state, message.sender)
    if progress is None:
        return
    progress.acked_round = max(progress.acked_round, message.round)
    progress.paused = False
    if progress.match < state.log.last:
        progress.nudge = progress.sending is _REPLICATE
        state.dirty = True
    if state.reads.waiting:
        reads.confirm(state)
        state.dirty = True


def _heard(state: State, sender: NodeId) -> FollowerProgress | None:
    progress = state.progress.get(sender)
    if progress is None:
        state.drop(Drop.UNKNOWN_SENDER)
    else:
        progress.heard, progress.answered = state.ticks, True
    return progress


# Committing


def maybe_commit(state: State) -> None:
    """Moves the commit mark to what a majority has, and does what waited for that."""
    log = state.log
    if log.commit == log.last:
        return
    match = {state.id: log.stable}
    for peer, progress in state.progress.items():
        match[peer] = progress.match
    index = joint_committed(log.configurations[-1][1], match)
    if index <= log.commit or log.term_at(index) != state.term:
        return
    before, state.dirty = log.commit, True
    log.commit = index
    proposed = state.proposed
    while proposed and proposed[0][0] <= index:
        state.proposed_bytes -= proposed.popleft()[1]
    if state.reads.parked:
        reads.unpark(state)
    membership.on_commit(state, before)


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


def expire_transfer(state: State) -> None:
    """Gives up a transfer that took too long: the target is behind, gone, or lost the election."""
    if state.handover is not None and state.ticks >= state.handover.deadline:
        state.handover = None
