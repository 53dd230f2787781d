"""Leadership goes to another node: in an orderly stop, when this node cannot serve while another one can, and on request.

One rule: what this node has proposed comes to its end first. Calls that come meanwhile wait, and are refused when the other node
leads: of these nothing is logged. Then all groups are offered to one node, in one message; it campaigns at once, for all of them.

    hold     nothing new is proposed; what was proposed is committed, run and answered, or its time is over
    offer    the successor gets what it lacks, and then the word to campaign
    over     it leads; or it did not within `OFFER_TICKS`, and this node continues, to try again later

A node that diverged answers nothing more, so it does not wait; without a fitter node it resigns, and does not campaign while
another one may (`RaftSettings.patience`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog

from cmdlog.cluster.group_transfer import extra_ticks, find_successors, offer_groups, resign_groups, set_patience
from cmdlog.cluster.leader_fitness import FIT, LeaderFitness, Unfitness
from cmdlog.cluster.replication import Replication
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.multi_raft import Parcel
from cmdlog.wal.ids import CLUSTER_GROUP

DRAIN_TICKS: Final = 10  # for calls under way to be answered; then those not committed get `outcome_unknown`
OFFER_TICKS: Final = 12  # a little more than `RaftSettings.transfer_ticks`, in which consensus gives a transfer up
PAUSE_TICKS: Final = 20  # after an offer that came to nothing
PATIENCE: Final = 2  # election time-outs that an unfit node waits longer than others
STEP_S: Final = 0.001  # between two looks of an orderly stop

log = structlog.get_logger("cmdlog.cluster")


class LeadershipTransfer:
    """Any thread."""

    def __init__(
        self,
        driver: Replication,
        fitness: LeaderFitness,
        *,
        drained: Callable[[], bool],
        peers: Callable[[], list[NodeId]],
        send: Callable[[list[Parcel]], None],
    ) -> None:
        """`drained`: whether everything that was proposed here is answered."""
        self._driver, self._fitness, self._drained, self._peers, self._send = driver, fitness, drained, peers, send
        self._ticks = self._not_before = 0
        self._held_at: int | None = None
        self._offered_at: int | None = None
        self._offers = 0  # made so far
        self.target: NodeId | None = None  # that was offered leadership last; under the driver's lock
        self._stopping = False
        self._wanted: NodeId | None = None  # that leadership was asked for

    def set_reasons(self, reasons: Unfitness) -> None:
        """Why this node should not lead, from now on; a stop stays one."""
        with self._driver.lock:
            reasons |= Unfitness.STOPPING if self._stopping else FIT
            if self._fitness.set_own(reasons):
                log.warning("leader_fitness_changed", reasons=reasons.names)
                self._driver.ask_groups(partial(set_patience, unfit=PATIENCE if reasons else 0))

    def note_tick(self) -> None:
        """A tick has passed: peers hear of it, and a step is made if one is due."""
        with self._driver.lock:
            self._ticks += 1
            if (parcels := self._fitness.due_parcels(self._peers())) and self._driver.failure is None:
                self._send(parcels)
            self._advance()

    def give_leadership(self, target: NodeId) -> None:
        """Everything that this node leads goes to that one; under the driver's lock. Given up when it does not take it."""
        if self._offered_at is None:
            self._wanted, self._not_before = target, self._ticks
            self._advance()

    def end_offer(self) -> None:
        """This node leads no more; under the driver's lock."""
        self._wanted = None
        self._release()

    def hand_over(self, timeout_s: float) -> bool:
        """An orderly stop begins. Returns when another node leads everything, or nobody can; blocking. Whether one does."""
        deadline = time.monotonic() + timeout_s
        with self._driver.lock:
            self._stopping, offers = True, self._offers - (self._offered_at is not None)
            self.set_reasons(self._fitness.own)
        while True:
            with self._driver.lock:
                cluster = self._driver.views().get(CLUSTER_GROUP)
                leader = None if cluster is None else cluster.leader
                if self._driver.failure is not None or (leader is not None and leader != self._fitness.node):
                    return self._driver.failure is None
                waits = leader is None and self._offers > offers  # between two leaders: the next one is not known at once
                if not waits and self._offered_at is None and self._find_successor() is None:
                    return False
                self._advance()
            if time.monotonic() >= deadline:
                return False
            time.sleep(STEP_S)

    # -- inside, under the driver's lock ---------------------------------------------------------------------------------

    def _find_successor(self) -> NodeId | None:
        return self._fitness.find_successor(self._driver.ask_groups(find_successors))

    def _advance(self) -> None:
        """The next step, if this node leads what a fitter one could lead."""
        reasons, cluster = self._fitness.own, self._driver.views().get(CLUSTER_GROUP)
        wanted = self._wanted
        if (reasons == FIT and wanted is None) or cluster is None or not cluster.leads or self._driver.failure is not None:
            self._release()
        elif self._offered_at is not None:
            if self._ticks - self._offered_at > OFFER_TICKS + self._driver.ask_groups(extra_ticks):
                log.warning("leadership_not_taken", to=self.target, reasons=reasons.names)
                self._wanted = None
                self._release()
                self._not_before = self._ticks + PAUSE_TICKS
        elif self._ticks >= self._not_before:
            self._offer(reasons)

    def _offer(self, reasons: Unfitness) -> None:
        self.target = target = self._wanted or self._find_successor()
        if target is None:
            self._release()
            if Unfitness.DIVERGED in reasons:
                log.error("leadership_resigned", reasons=reasons.names, remedy="no node with the majority's state is reachable")
                self._driver.ask_groups(resign_groups)
            return
        if self._held_at is None:
            self._held_at = self._ticks
            self._driver.hold_proposals()
        waits = not reasons & (Unfitness.DIVERGED | Unfitness.STUCK)
        if waits and not self._drained() and self._ticks - self._held_at < DRAIN_TICKS:
            return
        log.warning("leadership_offered", to=target, reasons=reasons.names)
        self._offered_at = self._ticks
        self._offers += 1
        self._driver.ask_groups(partial(offer_groups, target=target))

    def _release(self) -> None:
        self._offered_at = self.target = None
        if self._held_at is not None:
            self._held_at = None
            self._driver.let_propose()
