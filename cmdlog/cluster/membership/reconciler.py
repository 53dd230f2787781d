"""The reconciler: brings the groups, step by step, to what the cluster has decided about its members.

One rule: it acts at the node that takes calls, under the driver's lock, and knows nothing but what is replicated: the next leader
continues where this one stops. One MEMBER or FAULTS entry is on its way at a time, since the next step depends on it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import structlog

from cmdlog.cluster.copying.wishes import CopyWish, WishRefusal, WishStanding
from cmdlog.cluster.leader_fitness import LeaderFitness, Unfitness
from cmdlog.cluster.membership.fault_sets import FaultSets
from cmdlog.cluster.membership.member_plan import (
    ChangeGroups,
    GiveLeadership,
    Rest,
    StateFaults,
    StateMember,
    Step,
    Wait,
    change_of,
    next_step,
)
from cmdlog.cluster.membership.member_requests import MemberRequest, decide_request, decide_wish, find_successor
from cmdlog.cluster.membership.membership_view import MembershipView, see_groups, silent_ticks
from cmdlog.cluster.membership.operator_desk import MembershipRefused, RefusedBecause
from cmdlog.cluster.membership.quorum_forecast import forecast_request
from cmdlog.cluster.replication import Replication
from cmdlog.raft import BadChange, ChangeRefused, MembershipGuard, RaftCore
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.multi_raft import RaftGroups
from cmdlog.wal.format.cluster_record import ClusterMember, FaultSet
from cmdlog.wal.format.record import RecordKind
from cmdlog.wal.ids import CLUSTER_GROUP

QUIET_TICKS: Final = 5  # between two looks while there is nothing to do, or only to wait
ANSWER_S: Final = 10.0  # for the first entry of a request to be committed
LEADS_S: Final = 5.0  # for another node to take the leadership that an operator gives it

log = structlog.get_logger("cmdlog.cluster")


class Roll(Protocol):
    """`MemberRoll`, as far as it is looked at here."""

    stated: Mapping[int, ClusterMember]
    faults: FaultSet | None
    version: int


@dataclass(frozen=True, slots=True)
class ReconcilerGround:
    """What it works with; everything is called under the driver's lock."""

    driver: Replication
    groups: RaftGroups
    roll: Roll
    faults: FaultSets
    fitness: LeaderFitness
    leads: Callable[[], bool]  # whether this node takes calls
    leader_url: Callable[[], str]
    unstated: Callable[[], Iterable[ClusterMember]]  # first members that were met, and that the log does not state yet
    pinned: Callable[[], Mapping[int, bytes]]  # node -> incarnation from which messages are taken
    state: Callable[[RecordKind, Mapping[str, Any], Callable[[Any], None]], None]  # places an entry of the cluster group
    give_leadership: Callable[[NodeId], None]
    failure_ticks: int  # of silence until a voter is given up; 0: never


class EntryUnderWay:
    """An entry about members that is not committed yet."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.committed = False


class Reconciler:
    """Any thread."""

    def __init__(self, ground: ReconcilerGround) -> None:
        self._ground, self._driver, self._roll = ground, ground.driver, ground.roll
        self._statement: EntryUnderWay | None = None
        self._ticks = 0
        self._logged = ""  # the step that was logged last
        self.step: Step = Rest()  # the last one; read it for status

    # -- time ------------------------------------------------------------------------------------------------------------

    def note_ticks(self, ticks: int) -> None:
        """So many ticks have passed: the next step, if one is due."""
        with self._driver.lock:
            self._ticks += ticks
            if isinstance(self.step, Rest | Wait) and self._ticks < QUIET_TICKS:
                return
            self._ticks = 0
            if not self._ground.leads() or self._driver.failure is not None:
                self.step = Rest()
            elif self._statement is None:
                view = self._see()
                self.step = next_step(view)
                self._take_step(view, self.step)

    def _take_step(self, view: MembershipView, step: Step) -> None:
        self._log_step(step)
        if isinstance(step, ChangeGroups):
            self._change_groups(view, step)
        elif isinstance(step, StateMember):
            self._place(RecordKind.MEMBER, step.member.to_json())
        elif isinstance(step, StateFaults):
            self._place(RecordKind.FAULTS, step.faults.to_json())
        elif isinstance(step, GiveLeadership) and (successor := find_successor(view)):
            self._ground.give_leadership(NodeId(successor))

    def _change_groups(self, view: MembershipView, step: ChangeGroups) -> None:
        guard = MembershipGuard.FORCED if step.forced else MembershipGuard.CHECKED
        steps = change_of(step.act, step.node)
        for group in step.groups:
            try:
                seen = view.groups[group].configuration
                self._driver.ask(group, partial(RaftCore.change, steps=steps, base=seen, guard=guard))
            except (ChangeRefused, BadChange, KeyError) as error:
                log.info("member_change_refused", node=step.node, group=group, act=step.act.value, reason=str(error))

    def _log_step(self, step: Step) -> None:
        text = repr(step)
        if text != self._logged and not isinstance(step, Rest):
            log.info("member_step", kind=type(step).__name__, detail=text)
        self._logged = text

    def _see(self) -> MembershipView:
        return _view(self._ground)

    def _place(self, kind: RecordKind, value: Mapping[str, Any]) -> EntryUnderWay:
        statement = self._statement = EntryUnderWay()

        def done(reply: Any) -> None:
            statement.committed = not isinstance(reply, Exception)
            if self._statement is statement:
                self._statement = None
            statement.over.set()

        self._ground.state(kind, value, done)
        self._driver.wake()
        return statement

    # -- cmdlog.cluster.membership.operator_desk.MembershipDesk ----------------------------------------------------------------

    def request_change(self, wanted: MemberRequest, *, base: int | None, plan: bool) -> dict[str, Any]:
        """As `MembershipDesk.request`; blocking. Raises: MembershipRefused."""
        answer: dict[str, Any] = {}
        while True:
            with self._driver.lock:
                self._check_leads()
                statement = self._statement
                if plan:
                    return self._answer(wanted, already=False)
                if statement is None:
                    member, already = self._decide(wanted, base)
                    if already:
                        return self._answer(wanted, already=True)
                    if member is None:
                        answer = self._answer(wanted, already=False)  # a former leader hears from nobody, and would plan for that
                        self._ground.give_leadership(NodeId(wanted.node))
                        break
                    statement = self._place(RecordKind.MEMBER, member.to_json())
                    mine = True
                else:
                    mine = False
            if not statement.over.wait(ANSWER_S) or (mine and not statement.committed):
                raise MembershipRefused(
                    RefusedBecause.UNKNOWN_OUTCOME, "no majority has the entry yet: make the request again", leader=""
                )
            if mine:
                with self._driver.lock:
                    return self._answer(wanted, already=False)
        self._await_leader(wanted)
        return answer

    def _decide(self, wanted: MemberRequest, base: int | None) -> tuple[ClusterMember | None, bool]:
        """The entry that begins it, and whether nothing is left to do. A request for another state of the cluster is refused as
        that, whatever else speaks against it. Raises: MembershipRefused."""
        stale = base is not None and base != self._roll.version
        try:
            decision = decide_request(self._see(), wanted)
        except MembershipRefused:
            if not stale:
                raise
        else:
            if decision.already or not stale:
                return decision.member, decision.already
        raise MembershipRefused(
            RefusedBecause.STALE_BASE, f"the request was made for version {base} of the members, and this is {self._roll.version}"
        )

    def _await_leader(self, wanted: MemberRequest) -> None:
        """Until the node leads that leadership was given to. Raises: MembershipRefused."""
        over = threading.Event()
        for _ in range(int(LEADS_S * 20)):
            with self._driver.lock:
                cluster = self._driver.views().get(CLUSTER_GROUP)
                if cluster is not None and cluster.leader == wanted.node:
                    return
            over.wait(0.05)
        raise MembershipRefused(RefusedBecause.NO_SUCCESSOR, f"node {wanted.node} did not take the leadership")

    def _answer(self, wanted: MemberRequest, *, already: bool) -> dict[str, Any]:
        member = self._roll.stated.get(wanted.node)
        return {
            "kind": wanted.kind,
            "node": wanted.node,
            "state": "" if member is None else member.stage.value,
            "version": self._roll.version,
            "already": already,
            "plan": forecast_request(self._see(), wanted),
        }

    def _check_leads(self) -> None:
        if not self._ground.leads():
            url = self._ground.leader_url()
            raise MembershipRefused(
                RefusedBecause.NOT_LEADING, f"another node decides this: {url}" if url else "no node leads at present", leader=url
            )

    def take_wish(self, wish: CopyWish) -> WishStanding:
        """A disk wants to be filled: what the cluster says to that. It never waits; the disk asks again."""
        with self._driver.lock:
            known = self._roll.stated.get(wish.node)
            if not self._ground.leads():
                return WishStanding(known, WishRefusal.NOT_LEADING, "ask the node that leads")
            if self._statement is not None:
                return WishStanding(known, WishRefusal.BUSY, "another entry about members is on its way")
            standing, member = decide_wish(self._see(), wish)
            if member is not None:
                log.warning("copy_wished", node=wish.node, incarnation=wish.incarnation.hex(), reason=wish.reason)
                self._place(RecordKind.MEMBER, member.to_json())
        return standing

    def silence(self) -> dict[int, int]:
        """Ticks of silence of every other node, where this node leads; under the driver's lock."""
        return silent_ticks(self._ground.groups) if self._ground.leads() else {}

    def why_waiting(self) -> str:
        """Why the leading node does nothing now; "" elsewhere."""
        return self.step.why if isinstance(self.step, Wait) else ""


def _view(ground: ReconcilerGround) -> MembershipView:
    """Everything that the plan is made from."""
    groups, roll = ground.groups, ground.roll
    cluster = groups.cores[CLUSTER_GROUP]
    peers = {node for core in groups.cores.values() for node in core.configuration.members()} - {groups.node}
    said = {int(node): ground.fitness.of_peer(node) for node in peers} | {int(groups.node): ground.fitness.own}
    silent = {node for node, ticks in silent_ticks(groups).items() if 0 < ground.failure_ticks <= ticks}
    diverged = {node for node, reasons in said.items() if Unfitness.DIVERGED in reasons}
    return MembershipView(
        groups.node,
        {**{member.node: member for member in ground.unstated()}, **roll.stated},
        see_groups(groups, diverged=diverged, after=roll.version),
        ground.faults.sequence,
        ground.faults.failed,
        frozenset(silent),
        ground.pinned(),
        cluster.configuration.epoch,
        cluster.term,
        frozenset(node for node, reasons in said.items() if reasons),
    )
