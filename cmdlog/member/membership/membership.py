"""Membership of one running member: its fault log, its peers by the roll, and, where it leads, the reconciler.

One rule: a committed failure set is in the fault log before anything else follows from its entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cmdlog.cluster.copying.wishes import CopyWish, WishStanding
from cmdlog.cluster.membership.fault_sets import FaultSets
from cmdlog.cluster.membership.member_requests import MemberRequest
from cmdlog.cluster.membership.membership_view import UNDER_WAY
from cmdlog.cluster.membership.operator_desk import RequestKind
from cmdlog.cluster.membership.reconciler import Reconciler, ReconcilerGround
from cmdlog.member.consensus import Consensus
from cmdlog.member.leading.leadership import Standing
from cmdlog.member.leading.leading import Leading
from cmdlog.member.membership.roll_follower import RollFollower
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.roles.membership import forget_acknowledgements
from cmdlog.wal.fault_log import FaultRecord
from cmdlog.wal.format.cluster_record import ClusterMember
from cmdlog.wal.ids import CLUSTER_GROUP


class Membership:
    """`cmdlog.cluster.membership.operator_desk.MembershipDesk`, and what every member does. Any thread."""

    def __init__(
        self,
        consensus: Consensus,
        leading: Leading,
        faults: FaultSets,
        *,
        failed: Callable[[BaseException], None],
        failure_s: float,
    ) -> None:
        """Brings the book of peers to what the log says; blocking, before the network starts. `failed` ends this node; a node
        that is silent for `failure_s` is given up, 0: never. Raises: WalError."""
        self._consensus, self._leadership, self._faults = consensus, leading.leadership, faults
        self._driver, self._roll = driver, roll = consensus.driver, consensus.roll
        network = consensus.network
        self._follower = RollFollower(roll, network.book, network, forget=self._forget_life, failed=failed)
        self.hears = self._follower.hears  # whether messages of a peer are taken; under the driver's lock
        leadership = leading.leadership
        self._reconciler = Reconciler(ReconcilerGround(
            driver=driver, groups=driver.groups, roll=roll, faults=faults, fitness=consensus.fitness,
            leads=lambda: leadership.standing is Standing.LEADING, leader_url=lambda: roll.url_of(leadership.leader),
            unstated=consensus.missing_members, pinned=self._follower.pinned, state=consensus.machine.state,
            give_leadership=leading.transfer.give_leadership, failure_ticks=self._silence_ticks(failure_s),
        ))  # fmt: skip

    def _silence_ticks(self, failure_s: float) -> int:
        """A node that is given up sooner than a leader that is not heard would lose its vote to a pause that costs no
        election."""
        settings, tick_s = self._driver.groups.cores[CLUSTER_GROUP].settings, self._consensus.ground.tick_s
        return max(round(failure_s / tick_s), 2 * settings.election_ticks) if failure_s else 0

    def _forget_life(self, node: int) -> None:
        """Another life of the node's disk is committed; under the driver's lock."""
        for core in self._driver.groups.cores.values():
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
            cluster = self._driver.groups.cores.get(CLUSTER_GROUP)
            if cluster is not None:
                self._consensus.marks.set_voters(len(cluster.configuration.voters))
        self._reconciler.note_ticks(ticks)

    # -- cmdlog.cluster.membership.operator_desk.MembershipDesk ----------------------------------------------------------------

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
        """As `MembershipDesk.request`."""
        wanted = MemberRequest(kind, node, peer or "", client or "", force)
        return self._reconciler.request_change(wanted, base=base, plan=plan)

    def take_wish(self, wish: CopyWish) -> WishStanding:
        """A disk wants to be filled: what the cluster says to that. It never waits; the disk asks again."""
        return self._reconciler.take_wish(wish)

    def members(self) -> dict[str, Any]:
        """As `MembershipDesk.members`."""
        with self._driver.lock:
            roll, silence = self._roll, self._reconciler.silence()
            under_way = [of for of in roll.stated.values() if of.stage in UNDER_WAY]
            return {
                "version": roll.version,
                "leader": self._leadership.leader,
                "operation": {"node": under_way[0].node, "state": under_way[0].stage.value} if under_way else None,
                "waits": self._reconciler.why_waiting(),
                "failed": {"sequence": self._faults.sequence, "nodes": sorted(self._faults.failed)},
                "members": self._describe(silence),
            }

    @property
    def fault_records(self) -> Sequence[FaultRecord]:
        """Every failure set that this node knows, oldest first."""
        return self._faults.records

    def failure_sets(self) -> list[dict[str, Any]]:
        """Every set that this node knows, oldest first."""
        return [describe_fault(record) for record in self._faults.records]

    def _describe(self, silence: Mapping[int, int]) -> list[dict[str, Any]]:
        configuration = self._driver.groups.cores[CLUSTER_GROUP].configuration
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
                "silent_s": None if silent is None else round(silent * self._consensus.ground.tick_s, 3),
            })  # fmt: skip
        return rows

    def _unstated(self, node: int) -> ClusterMember:
        """One of the first members, before the log states it."""
        of = self._roll.member(node)
        return ClusterMember(node, b"", f"{of.peer[0]}:{of.peer[1]}", of.client)


def describe_fault(record: FaultRecord) -> dict[str, Any]:
    """Plain data."""
    return {
        "sequence": record.sequence, "failed": sorted(record.failed), "term": record.term, "author": record.author,
        "reason": record.reason, "demotions": [list(demotion) for demotion in record.demotions],
    }  # fmt: skip
