"""Reads that see everything acknowledged before them, without a log entry (dissertation, section 6.4).

One rule: a read is answered with the commit index of the moment in which it came, and only after a majority has confirmed, in a
round that began later, that it still follows this leader in this term.

Rounds are numbered; every heartbeat carries the latest number and every answer repeats it, so one round serves all reads that
came before it and a late answer confirms only its own round. A leader knows the true commit index only once it has committed an
entry of its own term; reads that come earlier are parked. With the role or the leader, all of it is forgotten and
reported as lost.
"""

from __future__ import annotations

from typing import Final

from cmdlog.raft.configuration import NodeId
from cmdlog.raft.errors import ProposalRefused, Refusal
from cmdlog.raft.messages import Heartbeat, ReadReply, ReadRequest
from cmdlog.raft.quorum import joint_committed
from cmdlog.raft.reads import Waiting
from cmdlog.raft.ready import ReadResult
from cmdlog.raft.state import State
from cmdlog.wal.ids import Index

READ_NUMBER_MASK: Final = (1 << 62) - 1

# At the leader


def take_reads(state: State, requester: NodeId, contexts: tuple[int, ...]) -> None:
    """Takes reads of this node or of a follower."""
    reads = state.reads
    if not state.term_committed:
        reads.parked.append((requester, contexts))
        reads.count += len(contexts)
    else:
        reads.waiting.append(Waiting(reads.round + 1, state.log.commit, requester, contexts))
        reads.count += len(contexts)


def unpark(state: State) -> None:
    """An entry of this term is committed: the parked reads begin."""
    parked, state.reads.parked = state.reads.parked, []
    for requester, contexts in parked:
        state.reads.count -= len(contexts)
        take_reads(state, requester, contexts)


def begin_round_if_wanted(state: State) -> None:
    """All reads that came since the last round share the next one, which begins when no earlier read waits for a round under way:
    however fast reads come, there is one round in a round trip. A round that is lost is made up for by the next heartbeat."""
    reads = state.reads
    if reads.waiting[0].round > reads.round:
        begin_round(state)


def begin_round(state: State) -> None:
    """Sends heartbeats with the next round; they also state how far the log is committed, as far as the receiver is known to
    have it: beyond that it might hold other entries (paper, Figure 2, AppendEntries 5)."""
    reads, commit = state.reads, state.log.commit
    reads.round += 1
    reads.commit_sent = commit
    for peer, progress in state.progress.items():
        state.now.append(Heartbeat(state.id, peer, state.term, min(progress.match, commit), reads.round))
    confirm(state)  # a leader that is a majority by itself asks nobody


def confirm(state: State) -> None:
    """Answers the reads whose round a majority has confirmed."""
    reads = state.reads
    if not reads.waiting:
        return
    acked = {peer: Index(progress.acked_round) for peer, progress in state.progress.items()}
    acked[state.id] = Index(reads.round)
    confirmed = joint_committed(state.configuration, acked)
    while reads.waiting and reads.waiting[0].round <= confirmed:
        read = reads.waiting.popleft()
        reads.count -= len(read.contexts)
        _answer(state, read.index, read.requester, read.contexts)
    if reads.waiting:
        state.dirty = True  # the next round may begin


def _answer(state: State, index: Index, requester: NodeId, contexts: tuple[int, ...]) -> None:
    if requester == state.id:
        state.read_results += [ReadResult(context, index) for context in contexts]
    else:
        state.now.append(ReadReply(state.id, requester, state.term, index, contexts))


# At any node


def request(state: State, context: int) -> None:
    """A read of this node. Raises: ProposalRefused."""
    reads = state.reads
    if state.leader is None:
        raise ProposalRefused(Refusal.NOT_LEADER)
    if reads.count + len(reads.asked) >= state.settings.reads_max:
        raise ProposalRefused(Refusal.READS_PENDING)
    if state.leader == state.id:
        take_reads(state, state.id, (context,))
    else:
        # On the wire each read has a number that no other read of any start of this node had: an answer to one that was given up,
        # or that a crash has ended, must not answer a later one.
        state.read_number = number = (state.read_number + 1) & READ_NUMBER_MASK
        reads.asked[number] = context, state.ticks + state.settings.read_ticks
        reads.to_ask.append(number)


def ask_leader(state: State) -> None:
    """A follower passes on the reads that came since the last Ready, in one message."""
    reads = state.reads
    assert state.leader is not None  # reads are taken for, and forgotten with, a leader
    state.now.append(ReadRequest(state.id, state.leader, state.term, tuple(reads.to_ask)))
    reads.to_ask.clear()


def expire(state: State) -> None:
    """Gives up reads that the leader has not answered: request or answer may be lost."""
    asked = state.reads.asked
    while asked:
        number, (context, deadline) = next(iter(asked.items()))
        if deadline > state.ticks:
            return
        del asked[number]
        state.read_results.append(ReadResult(context, None))
        state.dirty = True
