"""The end of a running node's life as a member: it has to be copied, or the cluster has removed it.

One rule: why is durable before the process ends, so that the next start does what has to be done, however this one dies.

A node learns it from its log, or, since nobody sends entries to a node that was removed, by asking: while it knows no leader it
asks the others what is stated of it.

A node that lacks more than its log can hold never catches up by entries: it may run them only when it knows all that its leader
had committed by then (`cmdlog.cluster.executed_marks`), and its log is full before that. It has to be copied, too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Final

import structlog

from cmdlog.member.member_roll import MemberRoll
from cmdlog.member.rejoin.admission import AdmissionWish, Neighbours
from cmdlog.member.rejoin.member_opening import wish_copy
from cmdlog.member.rejoin.rejoin_ground import RejoinGround
from cmdlog.member.rejoin.rejoin_record import MemberTombstone, RejoinReason, write_tombstone
from cmdlog.operator_error import OperatorError
from cmdlog.raft import SnapshotDescriptor
from cmdlog.wal.errors import WalError
from cmdlog.wal.format.cluster_record import ClusterMember, MemberStage

ASK_TICKS: Final = 20  # without a leader, between two questions: nobody else tells a node that was replaced or removed
STUCK_TICKS: Final = 100  # with a full log of entries that cannot be run, and others that can do without its vote
STAGGER_TICKS: Final = 50  # more, for each node before this one: two that are stuck do not leave at once

log = structlog.get_logger("cmdlog.cluster")


class CopyNeeded(OperatorError):
    """The node cannot run with what it has; the next start makes it again from a copy."""

    hint = "start the node again: it copies what it lacks from the other nodes; `cmdlog serve` does so by itself"


class LifeEnd:
    """Of one node. Any thread."""

    def __init__(
        self,
        ground: RejoinGround,
        incarnation: bytes,
        roll: MemberRoll,
        fail: Callable[[BaseException], None],
        *,
        can_write: Callable[[], bool],
        connected: Callable[[], Collection[int]],
    ) -> None:
        """`fail` ends the node in order, with an error; `can_write`: its volume is not full; `connected`: the nodes that it
        speaks with."""
        self._can_write, self._connected = can_write, connected
        self._stuck: object = None
        self._stuck_ticks = 0
        self._ground, self._incarnation, self._roll, self._fail = ground, incarnation, roll, fail
        self.too_far_back: set[int] = set()  # groups whose missing entries no log holds
        self._lock = threading.Lock()
        self._ended = self._asking = False
        self._ticks = 0
        roll.watch(self._judge_roll)
        self._judge_roll()

    def want_copy(self, reason: RejoinReason, why: str) -> None:
        """Ends the node; its next start copies it, unless that could not be written down: then it ends with that error."""
        if not self._begin_end():
            return
        try:
            wish_copy(self._ground, reason, why)
        except WalError as error:
            self._fail(error)
        else:
            self._fail(CopyNeeded(f"node {self._ground.node} has to be copied: {why}"))

    def end_too_far_back(self, group: int, missing: SnapshotDescriptor) -> None:
        """The leader offers a state instead of entries, since no log holds what this node lacks."""
        self.too_far_back.add(group)
        why = f"no log holds what it lacks of group {group} any more, up to entry {missing.index}"
        self.want_copy(RejoinReason.TOO_FAR_BACK, why)

    def _judge_roll(self) -> None:
        self.judge(self._roll.stated.get(self._ground.node))

    def judge(self, member: ClusterMember | None) -> None:
        """What the cluster states of this node."""
        if member is None or (not member.incarnation and not self._is_over(member)):
            return
        if member.stage is MemberStage.REMOVED and member.incarnation == self._incarnation:
            if self._begin_end():
                tombstone = MemberTombstone(self._ground.node, self._incarnation, member.ended)
                write_tombstone(self._ground.files, self._ground.directory, tombstone)
                log.error("node_was_removed", ended=dict(member.ended))
                self._fail(tombstone.error(self._ground.directory))
        elif member.incarnation != self._incarnation:
            other = member.incarnation.hex() or "another one"
            self.want_copy(
                RejoinReason.REPLACED, f"the cluster has replaced its incarnation {self._incarnation.hex()} by {other}"
            )

    def _is_over(self, member: ClusterMember) -> bool:
        """Whether the cluster, which knows no present life of this node, has had this one, or had another one before it.

        A disk that was new while nobody answered began a cluster of its own. Nobody hears it, so it has to be copied.
        """
        return self._incarnation in member.former or (member.stage is MemberStage.EXPECTED and bool(member.former))

    def note_ticks(self, ticks: int, *, is_led: bool, stuck_at: object) -> None:
        """Time passes. `is_led`: this node knows a leader, which would say what concerns it; `stuck_at`: where a node is whose
        log is full of entries that it may not run yet; something false of any other."""
        self._note_stuck(ticks, stuck_at if is_led and self._can_write() else None)
        self._ticks = 0 if is_led else self._ticks + ticks
        if self._ticks >= ASK_TICKS and not self._asking:
            self._ticks, self._asking = 0, True
            threading.Thread(target=self._ask, name="cmdlog-standing", daemon=True).start()

    def _note_stuck(self, ticks: int, stuck_at: object) -> None:
        at = stuck_at or None
        self._stuck_ticks = self._stuck_ticks + ticks if at is not None and at == self._stuck else 0
        self._stuck = at
        before = sum(member.node < self._ground.node for member in self._roll.members)
        if self._stuck_ticks >= STUCK_TICKS + STAGGER_TICKS * before and self._is_dispensable():
            self.want_copy(
                RejoinReason.TOO_FAR_BACK, "its log is full of entries that it may not run before it has the newest one"
            )

    def _is_dispensable(self) -> bool:
        """Whether the others can admit its next life without its vote: voters that it speaks with are a quorum."""
        me, stated = self._ground.node, self._roll.stated
        voters = [of.node for of in self._roll.members if of.node not in stated or stated[of.node].stage is MemberStage.MEMBER]
        return len(set(self._connected()).intersection(voters) - {me}) > len({*voters, me}) // 2

    def _ask(self) -> None:
        """In a thread of its own: the others may not answer for long."""
        try:
            neighbours = Neighbours(self._ground.node, self._roll.members)
            for standing in AdmissionWish(self._ground, neighbours, self._incarnation).ask_once(reason="").standings:
                if standing.begun:
                    self.judge(standing.member)
        finally:
            self._asking = False

    def _begin_end(self) -> bool:
        with self._lock:
            begins, self._ended = not self._ended, True
            return begins
