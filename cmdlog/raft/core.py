"""One node of one group: the operations, the gate for messages, and what comes out.

One rule: every input goes through one of the methods below, every effect comes out of `ready`. No clock, chance, disk, socket or
thread; the caller's duties are numbered in the package's head.

The gate checks a message's receiver and term once for all roles; then the table below says which role does what with which kind
of message. What is not in the table means nothing to the role and is counted.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from cmdlog.raft.configuration import Configuration, MemberChange, NodeId
from cmdlog.raft.entries import Completion
from cmdlog.raft.errors import Drop, ProposalRefused, Refusal
from cmdlog.raft.messages import (
    Append,
    AppendReply,
    Campaign,
    Entries,
    HardState,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    Message,
    ReadReply,
    ReadRequest,
    Removed,
    SnapshotDescriptor,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from cmdlog.raft.ready import EntriesWanted, PlacedProposals, Ready, Role, RoleReason
from cmdlog.raft.roles import campaign, fetching, follower, leader, membership, reads
from cmdlog.raft.roles.membership import MembershipGuard
from cmdlog.raft.settings import RaftSettings
from cmdlog.raft.state import Franchise, Restored, State
from cmdlog.wal.ids import Index

Handler = Callable[[State, Any], None]

_LEADER: Final = Role.LEADER  # a name of the module is found in a third of the time of a member of an enum
_SILENT: Final = Franchise.NONE  # an acknowledgement or a heartbeat's answer would be counted as the lost disk's
_FROM_LEADER: Final = (Append, Heartbeat, InstallSnapshot)  # only the leader of its term sends these
_ANSWERS: Final = (AppendReply, HeartbeatReply)  # most bring no news: their handlers say whether something may be done now
_CAMPAIGNING: Final[dict[type[Message], Handler]] = {
    VoteRequest: campaign.on_vote_request,
    VoteReply: campaign.on_vote_reply,
    TimeoutNow: campaign.on_timeout_now,
    Removed: campaign.on_removed,
}
HANDLERS: Final[dict[Role, dict[type[Message], Handler]]] = {
    Role.FOLLOWER: {
        VoteRequest: campaign.on_vote_request,
        Append: follower.on_append,
        Heartbeat: follower.on_heartbeat,
        InstallSnapshot: follower.on_install_snapshot,
        TimeoutNow: campaign.on_timeout_now,
        ReadReply: follower.on_read_reply,
        Removed: campaign.on_removed,
    },
    Role.PRE_CANDIDATE: _CAMPAIGNING,
    Role.CANDIDATE: _CAMPAIGNING,
    Role.LEADER: {
        VoteRequest: campaign.on_vote_request,
        AppendReply: leader.on_append_reply,
        HeartbeatReply: leader.on_heartbeat_reply,
        ReadRequest: leader.on_read_request,
    },
}


class RaftCore(State):
    """See the module. Not thread-safe: one owner, one thread."""

    __slots__ = ()

    def __init__(
        self,
        node: NodeId,
        *,
        rng: random.Random,
        settings: RaftSettings | None = None,
        restored: Restored | None = None,
    ) -> None:
        """A node that is new (`restored` left out: it knows no group), or as its disk has it. Raises: InvariantBroken."""
        super().__init__(node, rng=rng, settings=settings or RaftSettings(), restored=restored or Restored())

    # Time and messages

    def tick(self) -> None:
        """One unit of the caller's time has passed."""
        self._check_alive()
        self.ticks += 1
        if self.role is _LEADER:
            leader.tick(self)
            return
        if campaign.is_promising(self):
            return
        self.elapsed += 1
        if self.elapsed >= self.timeout:
            campaign.on_timeout(self)
        elif self.reads.asked:
            reads.expire(self)

    def step(self, message: Message) -> None:
        """Takes a message of a peer. One that is malformed, stale or impossible is dropped and counted in `drops`."""
        if self.failed is not None:
            raise self.failed
        if type(message) not in _ANSWERS:
            self.dirty = True
        if message.receiver != self.id:
            self.drop(Drop.NOT_FOR_US)
        elif self.franchise is _SILENT:
            self.drop(Drop.NO_FRANCHISE)
        elif message.term > self.term:
            self._step_newer(message)
        elif message.term < self.term:
            self._step_older(message)
        elif message.sender == self.leader or not isinstance(message, _FROM_LEADER):
            if (handler := HANDLERS[self.role].get(type(message))) is None:
                self.drop(Drop.WRONG_ROLE)
            else:
                handler(self, message)
        elif self.leader is not None:
            self.drop(Drop.SECOND_LEADER)
        else:
            self.become_follower(self.term, message.sender, RoleReason.LEADER_FOUND)
            self._dispatch(message)

    def _step_newer(self, message: Message) -> None:
        """A newer term makes everyone a follower (paper, Figure 2, Rules for Servers), but for questions about votes that are not
        to disturb anyone, and answers to them."""
        if isinstance(message, VoteRequest):
            if campaign.shields_leader(self, message):
                campaign.tell_removed(self, message)
                self.drop(Drop.LEADER_ALIVE)
                return
            if message.campaign is Campaign.PRE:
                campaign.on_vote_request(self, message)
                return
        elif isinstance(message, VoteReply) and message.campaign is Campaign.PRE and message.granted:
            self._dispatch(message)
            return
        reason = RoleReason.HIGHER_TERM if self.handover is None else RoleReason.TRANSFER
        self.become_follower(message.term, message.sender if isinstance(message, _FROM_LEADER) else None, reason)
        self._dispatch(message)

    def _step_older(self, message: Message) -> None:
        """A passed term means nothing any more; but its leader or candidate learns ours, or it would continue for ever."""
        if isinstance(message, Removed):
            campaign.on_removed(self, message)  # what is committed stays so, whatever terms this node has spent since
            return
        if isinstance(message, _FROM_LEADER):
            self.after.append(AppendReply(self.id, message.sender, self.term, Index(0)))
        elif isinstance(message, VoteRequest):
            self.after.append(VoteReply(self.id, message.sender, self.term, message.campaign, False))
        self.drop(Drop.STALE_TERM)

    def _dispatch(self, message: Message) -> None:
        handler = HANDLERS[self.role].get(type(message))
        if handler is None:
            self.drop(Drop.WRONG_ROLE)
        else:
            handler(self, message)

    # Requests of the caller

    def propose(self, payloads: list[bytes]) -> PlacedProposals:
        """Appends entries to this leader's log, in this order. Returns where they stand if they stay.

        The list now belongs to the log. Whether the entries are committed is known when `committed` passes their index; after a
        change of leader their outcome is unknown until then, not failed. Raises: ProposalRefused (nothing was appended),
        ValueError for no payloads.
        """
        if self.failed is not None:
            raise self.failed
        if not payloads:
            raise ValueError("nothing is proposed")
        if self.role is not _LEADER:
            raise ProposalRefused(Refusal.NOT_LEADER, leader=self.leader)
        placed = leader.propose(self, payloads)
        self.dirty = True
        return placed

    def read_index(self, context: int) -> None:
        """Asks for an index that covers everything acknowledged before this call, on the leader or on a follower. The answer is a
        ReadResult with this context, which must not be in use by another read. Raises: ProposalRefused."""
        self._check_alive()
        reads.request(self, context)
        self.dirty = True

    def campaign(self) -> None:
        """Asks to lead now, without waiting for the time-out; while a leader is heard from, the others shield it. A leader leads
        on, and a campaign under way continues: begun again it would spend a term, and throw away the votes that are on their way.
        Raises: ProposalRefused where this node may not campaign."""
        self._check_alive()
        if self.role is not Role.FOLLOWER:
            return
        if not self.promotable:
            raise ProposalRefused(Refusal.NO_SUCH_VOTER, f"node {self.id} itself", leader=self.leader)
        campaign.on_timeout(self, RoleReason.CAMPAIGN)

    def set_patience(self, patience: int) -> None:
        """How many election time-outs this node leaves to the others, from its next wait on (`RaftSettings.patience`)."""
        self.settings = replace(self.settings, patience=patience)

    def transfer(self, target: NodeId) -> None:
        """Offers leadership to another voter. Raises: ProposalRefused."""
        self._check_alive()
        leader.begin_transfer(self, target)

    def change(
        self,
        steps: Sequence[MemberChange],
        *,
        base: Configuration | None = None,
        guard: MembershipGuard = MembershipGuard.CHECKED,
    ) -> PlacedProposals:
        """Changes the members; `base` makes it a compare-and-set. In force at once, safe once committed.

        Where that has to be joint, the leader ends it by an entry of its own; until that is committed, no other change is taken.
        Raises: ChangeRefused, BadChange.
        """
        self._check_alive()
        return membership.change(self, steps, base=base, guard=guard)

    def force_recovery(self, epoch: int) -> PlacedProposals:
        """See `membership.force_recovery`."""
        self._check_alive()
        return membership.force_recovery(self, epoch)

    # Out and back

    def ready(self, bytes_max: int | None = None) -> Ready | None:
        """What is to be done now, or None. It is taken with the call: the next Ready continues from here.

        Its entries to write, and those to apply, are bounded by `ready_bytes_max` and by `bytes_max`; with 0 there are none this
        time, but messages still leave. What is left waits for the next call.
        """
        if self.failed is not None:
            raise self.failed
        if not self.dirty:
            return None
        if self.role is _LEADER:
            leader.fill(self)
        elif self.reads.to_ask:
            reads.ask_leader(self)
        log = self.log
        entries = committed = soft = None
        now, self.now = self.now, []
        after: list[Message] = []
        self.dirty = False
        if log.taken < log.last or log.handed < log.commit:
            entries, committed = self.take_entries(bytes_max)
            self.dirty = log.taken < log.last or (log.handed < log.commit and log.handed < log.stable)
            if log.configurations[-1][1] is not self.judged:
                self.soft_changed = True  # only what is appended or committed here can change who is a member
        if log.taken == log.last:  # an acknowledgement waits for the last of the entries that it may speak of
            after, self.after = self.after, after
        hard, copy, fetch = self._take_hard_state(entries is not None), self.offered_copy, self.offered_fetch
        written: Completion | None = None
        if entries is not None or hard is not None:
            written = log.begin_write(self.write_number + 1, hard, now=self.ticks)
            self.write_number += 1
        if self.soft_changed:
            soft = self.take_soft_state()
        results, self.read_results = self.read_results, []
        if not (written or now or after or committed or results or copy or soft or fetch):
            return None
        self.offered_copy = self.offered_fetch = None
        return Ready(hard, entries, now, after, committed, results, copy, written, soft, fetch)

    def _take_hard_state(self, with_commit: bool) -> HardState | None:
        """The hard state when it must be written; beside entries, also when only the commit mark has moved."""
        handed, log = self.handed_hard, self.log
        same = self.term == handed.term and self.vote == handed.vote
        if same and not with_commit:
            return None
        commit = log.commit if log.commit <= log.taken else log.taken  # a mark above what is written would name a hole at restart
        if same and commit == handed.commit:
            return None
        self.handed_hard = HardState(self.term, self.vote, commit)
        return self.handed_hard

    def advance(self, completion: Completion | None) -> None:
        """The write of a Ready, and every one before it, is durable. A completion that is of no write under way is ignored, and
        so is the None of a Ready that writes nothing."""
        if self.failed is not None:
            raise self.failed
        log = self.log
        if completion is None or not log.writes or not (done := log.complete(completion)):
            return
        self.pace.note_sync(self.ticks - done[0].begun, self.ticks)
        role = self.role
        if role is _LEADER:
            leader.maybe_commit(self)
        elif self.leader is None:
            campaign.on_vote_durable(self, [write.hard_state for write in done if write.hard_state is not None])
        if log.handed < log.commit:
            self.dirty = True

    def report_entries(self, wanted: EntriesWanted, entries: Entries | None) -> None:
        """What a Ready's `fetch` asked for was read: entries from `wanted.first` on, or None, when the caller's log does not have
        them any more."""
        self._check_alive()
        fetching.take_report(self, wanted, entries)

    # Snapshots

    def manifest_at(self, index: Index) -> SnapshotDescriptor:
        """The manifest of a snapshot of the state at `index`, which the caller has applied and the log still has."""
        term = self.log.term_at(index)
        if term is None or index > self.log.handed:
            raise ValueError(
                f"no snapshot at {index}: the log is handed out up to {self.log.handed} and begins after {self.log.base}"
            )
        return SnapshotDescriptor(index, term, self.log.configuration_at(index))

    def compact(self, manifest: SnapshotDescriptor, upto: Index) -> Index:
        """The snapshot is durable: it is what far followers get from now on, and entries up to `upto`, at most the snapshot's
        index, are forgotten, but for those that follow a snapshot which a follower is copying now. Returns the index up to which
        the log is gone; the caller's own log may be cut so far."""
        self._check_alive()
        if not self.manifest.index <= manifest.index <= self.log.handed or upto > manifest.index:
            raise ValueError(f"cannot compact to {upto} by a snapshot at {manifest.index}: handed out up to {self.log.handed}")
        self.manifest = manifest
        floor = min([upto, *leader.pinned(self, upto)])
        if floor > self.log.base:
            self.log.compact(floor)
        return self.log.base

    def _check_alive(self) -> None:
        if self.failed is not None:
            raise self.failed
