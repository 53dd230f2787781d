"""What a member does when leadership comes, goes, or is somebody else's.

One rule: under the driver's lock, and nothing here waits: what takes time is the take-over's (`cmdlog.member.leading.takeover`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from cmdlog.cluster.executed_marks import ExecutedMarks
from cmdlog.member.leading.leadership_transfer import LeadershipTransfer
from cmdlog.member.sequenced_machine import SequencedMachine
from cmdlog.node.outcome import NoLeader, NotLeading, NotReady
from cmdlog.node.sequencing.intake import Closed
from cmdlog.node.sequencing.sequencer import Sequencer
from cmdlog.raft.configuration import NodeId

NAMELESS_TICKS: Final = 3  # without a leader, until refusals say that there is none

log = structlog.get_logger("cmdlog.cluster")


class LeadershipEvents:
    """See the module."""

    def __init__(
        self,
        node: NodeId,
        url_of: Callable[[int], str],
        machine: SequencedMachine,
        sequencer: Sequencer,
        marks: ExecutedMarks,
        *,
        take_over: Callable[[tuple[int, ...]], None],
        transfer: LeadershipTransfer,
    ) -> None:
        """`url_of` a node, for clients. `take_over` begins what comes before the first call."""
        self._node, self._url_of, self._machine, self._sequencer = node, url_of, machine, sequencer
        self._marks, self._take_over, self._transfer = marks, take_over, transfer
        self._named: NodeId | None = None  # the leader that refusals name
        self._nameless = 0  # ticks without a leader

    def begin_leading(self, terms: tuple[int, ...]) -> None:
        """All groups are led here."""
        self._named = self._node
        self._sequencer.intake.refuse(Closed.LEADER, NotLeading("this node takes over; the call is safe to repeat here"))
        self._take_over(terms)

    def end_leading(self, leader: NodeId | None, reason: str) -> None:
        """Some group is led by another node, or by none."""
        self._marks.follow()
        self._named = leader = leader or self._transfer.target
        waiting = self._machine.follow()
        why = "the node led no more before a majority had the call"
        unknown = self._sequencer.replicated.step_down(self._refusal(leader), why)
        for done in waiting:
            done(NotReady("this node leads no more"))
        self._transfer.end_offer()
        log.warning("leadership_lost", leader=leader, outcome_unknown=unknown, reason=reason)

    def name_leader(self, leader: NodeId | None, *, follows: bool, ticks: int = 0) -> None:
        """A refusal that says where calls are taken says where they are taken now. So many ticks have passed: between two leaders
        the last one is named, who knows the next."""
        self._nameless = self._nameless + ticks if leader is None else 0
        known = leader is not None or self._nameless >= NAMELESS_TICKS
        if follows and known and leader != self._named and isinstance(self._sequencer.admission.refusal, NoLeader | NotLeading):
            self._named = leader
            self._sequencer.intake.refuse(Closed.LEADER, self._refusal(leader))

    def _refusal(self, leader: NodeId | None) -> NotReady:
        if leader is None or leader == self._node:
            return NoLeader(
                "the cluster has no leader at present: `/readyz` says which nodes this one does not reach; start them"
            )
        where = self._url_of(leader)
        return NotLeading(f"node {leader} leads the cluster: send calls to {where}", where, leader)
