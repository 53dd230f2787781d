"""Membership of one running member: its fault log, its peers by the roll, and, where it leads, the reconciler.

One rule: a committed failure set is in the fault log before anything else follows from its entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cmdlog.cluster.copying.wishes import CopyWish, WishStanding
from cmdlog.cluster.executed_marks import ExecutedMarks
from cmdlog.cluster.leader_fitness import LeaderFitness
from cmdlog.cluster.membership.fault_sets import FaultSets
from cmdlog.cluster.membership.member_requests import MemberRequest
from cmdlog.cluster.membership.membership_view import UNDER_WAY
from cmdlog.cluster.membership.operator_desk import RequestKind
from cmdlog.cluster.membership.reconciler import Reconciler, ReconcilerGround
from cmdlog.cluster.replication import Replication
from cmdlog.cluster.transport.peer_network import PeerNetwork
from cmdlog.member.leadership import Leadership, Standing
from cmdlog.member.leading.leadership_transfer import LeadershipTransfer
from cmdlog.member.lost_majority.left_behind import members_left_behind
from cmdlog.member.member_roll import MemberRoll
from cmdlog.member.membership.roll_follower import RollFollower
from cmdlog.member.sequenced_machine import SequencedMachine
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.multi_raft import RaftGroups
from cmdlog.raft.roles.membership import forget_acknowledgements
from cmdlog.wal.errors import WalError
from cmdlog.wal.fault_log import FaultLog, FaultRecord
from cmdlog.wal.format.cluster_record import ClusterMember, FaultSet
from cmdlog.wal.format.record import RecordKind, decode_record, peek_record
from cmdlog.wal.ids import CLUSTER_GROUP


@dataclass(frozen=True, slots=True)
class MembershipGround:
    """What it is built on."""

    roll: MemberRoll
    network: PeerNetwork
    groups: RaftGroups  # under the driver's lock
    driver: Replication
    machine: SequencedMachine
    leadership: Leadership
    fitness: LeaderFitness
    marks: ExecutedMarks
    transfer: LeadershipTransfer
    faults: FaultLog
    faults_changed: Callable[[FaultRecord], None]  # a new failure set is durable; under the driver's lock
    failed: Callable[[BaseException], None]  # ends this node
    failure_s: float
    tick_s: float


class MembershipParts:
    """`cmdlog.cluster.membership.operator_desk.MemberDesk`, and what every member does. Any thread."""

    def __init__(self, of: MembershipGround) -> None:
        """Brings fault log and book of peers to what the log says; blocking, before the network starts. Raises: WalError."""
        self._of, self._driver, self._roll = of, of.driver, of.roll
        book = of.network.book
        self._faults = FaultSets(of.faults, book.identity.cluster_id, of.faults_changed)
        if of.roll.faults is not None:
            self._faults.adopt_set(of.roll.faults)
        self._follower = RollFollower(of.roll, book, of.network, forget=self._forget_life, failed=of.failed)
        self._reconciler = Reconciler(ReconcilerGround(
            of.driver, of.groups, of.roll, self._faults, of.fitness, lambda: of.leadership.standing is Standing.LEADING,
            lambda: of.roll.url_of(of.leadership.leader), self.missing_members, self._follower.pinned, of.machine.state,
            of.transfer.give_leadership, _silence_ticks(of),
        ))  # fmt: skip

    def _forget_life(self, node: int) -> None:
        """Another life of the node's disk is committed; under the driver's lock."""
        for core in self._of.groups.cores.values():
            forget_acknowledgements(core, NodeId(node))

    def start(self) -> None:
        """Follows the roll."""
        self._follower.start()

    def stop(self) -> None:
        """Idempotent."""
        self._follower.stop()

    def note_ticks(self, ticks: int) -> None:
        """So many ticks have passed."""
        with self._driver.lock:
            cluster = self._of.groups.cores.get(CLUSTER_GROUP)
            if cluster is not None:
                self._of.marks.set_voters(len(cluster.configuration.voters))
        self._reconciler.note_ticks(ticks)

    def hears(self, peer: int) -> bool:
        """Whether messages of this peer are taken; under the driver's lock."""
        return self._follower.hears(peer)

    def observe(self, record: bytes) -> None:
        """An entry of the cluster group is committed, and nobody has acted on it yet. Raises: WalError; the node has failed."""
        if peek_record(record).kind is RecordKind.FAULTS:
            try:
                self._faults.adopt_set(FaultSet.from_record(decode_record(record)))
            except WalError as error:
                self._driver.failed(error)
                raise

    def missing_members(self) -> list[ClusterMember]:
        """What the log lacks of the members: first ones that this node has met, and those that a forced recovery left behind."""
        book = self._of.network.book
        met = {int(node): record.incarnation for node, record in book.records.items()}
        missing = self._roll.missing_members({**met, int(book.me.node): book.me.incarnation})
        configuration = self._driver.ask(CLUSTER_GROUP, lambda core: core.configuration)
        return members_left_behind(self._roll.stated, missing, configuration)

    # -- cmdlog.cluster.membership.operator_desk.MemberDesk ----------------------------------------------------------------------

    def request(
        self,
        kind: RequestKind,
        node: int,
        *,
        peer: str | None = None,
        client: str | None = None,
        base: int | None = None,
        force: bool = False,
        plan: bool = False,
    ) -> dict[str, Any]:
        """As `MemberDesk.request`."""
        wanted = MemberRequest(kind, node, peer or "", client or "", force)
        return self._reconciler.request_change(wanted, base=base, plan=plan)

    def take_wish(self, wish: CopyWish) -> WishStanding:
        """As `MemberDesk.take_wish`."""
        return self._reconciler.take_wish(wish)

    def members(self) -> dict[str, Any]:
        """As `MemberDesk.members`."""
        with self._driver.lock:
            roll, silence = self._roll, self._reconciler.silence()
            under_way = [of for of in roll.stated.values() if of.stage in UNDER_WAY]
            return {
                "version": roll.version,
                "leader": self._of.leadership.leader,
                "operation": {"node": under_way[0].node, "state": under_way[0].stage.value} if under_way else None,
                "waits": self._reconciler.why_waiting(),
                "failed": {"sequence": self._faults.sequence, "nodes": sorted(self._faults.failed)},
                "members": self._describe(silence),
            }

    def failure_sets(self) -> list[dict[str, Any]]:
        """Every set that this node knows, oldest first."""
        return [describe_fault(record) for record in self._faults.records]

    def _describe(self, silence: Mapping[int, int]) -> list[dict[str, Any]]:
        configuration = self._of.groups.cores[CLUSTER_GROUP].configuration
        rows = []
        for node in sorted({*self._roll.stated, *(of.node for of in self._roll.members)}):
            member = self._roll.stated.get(node) or self._unstated(node)
            seat = "voter" if node in (*configuration.voters, *configuration.outgoing) else ""
            seat = seat or ("learner" if node in configuration.learners else "")
            silent = silence.get(node)
            rows.append({
                "node": node, "peer": member.peer, "client": member.client, "state": member.stage.value,
                "incarnation": member.incarnation.hex(), "former": [life.hex() for life in member.former],
                "forced": member.forced, "seat": seat,
                "silent_s": None if silent is None else round(silent * self._of.tick_s, 3),
            })  # fmt: skip
        return rows

    def _unstated(self, node: int) -> ClusterMember:
        """One of the first members, before the log states it."""
        of = self._roll.member(node)
        return ClusterMember(node, b"", f"{of.peer[0]}:{of.peer[1]}", of.client)


def _silence_ticks(of: MembershipGround) -> int:
    """A node that is given up sooner than a leader that is not heard would lose its vote to a pause that costs no election."""
    settings = of.groups.cores[CLUSTER_GROUP].settings
    return max(round(of.failure_s / of.tick_s), 2 * settings.election_ticks) if of.failure_s else 0


def describe_fault(record: FaultRecord) -> dict[str, Any]:
    """Plain data."""
    return {
        "sequence": record.sequence, "failed": sorted(record.failed), "term": record.term, "author": record.author,
        "reason": record.reason, "demotions": [list(demotion) for demotion in record.demotions],
    }  # fmt: skip
