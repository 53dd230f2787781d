"""Copies that others take of a member: what the source of copies is given of the node, and the state of a wish for one.

One rule: it decides nothing. Who is admitted says the roll, what a node's wish leads to says membership, and what a copy consists
of says `cmdlog.cluster.copying`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from cmdlog.cluster.copying.copied_groups import GroupReach, cluster_state
from cmdlog.cluster.copying.copy_desk import CopyLimits
from cmdlog.cluster.copying.copy_frames import copy_credentials
from cmdlog.cluster.copying.copy_source import CopyServer
from cmdlog.cluster.copying.copy_values import CopyRefusal, CopyStanding, LeaderAddress, LogShape, RollAddress
from cmdlog.cluster.copying.log_sums import SumsRequest
from cmdlog.cluster.copying.wishes import CopyWish, WishStanding
from cmdlog.cluster.genesis import GENESIS_TERM
from cmdlog.cluster.transport.peer_book import PeerRecord
from cmdlog.cluster.transport.peer_transport import address_text
from cmdlog.member.consensus import Consensus
from cmdlog.member.leading.leadership import Leadership
from cmdlog.member.membership.membership import Membership
from cmdlog.node.background.snapshot_schedule import LogView
from cmdlog.node.settings import Settings
from cmdlog.node.snapshots.snapshotter import Snapshotter
from cmdlog.raft.configuration import NodeId
from cmdlog.wal.fault_record import encode_fault
from cmdlog.wal.format.cluster_record import ClusterMember
from cmdlog.wal.group_state import GroupState
from cmdlog.wal.ids import BlockNumber, Lsn
from cmdlog.wal.log import Log

CLUSTER_ANCHOR = "copy-cluster"  # while the log is read


class MemberCopies:
    """Any thread."""

    def __init__(
        self,
        consensus: Consensus,
        settings: Settings,
        wal: Log,
        *,
        leadership: Leadership,
        snapshots: Snapshotter,
        too_far_back: Collection[int],
        membership: Membership,
        known_sums: Callable[[SumsRequest], Mapping[int, int]],
    ) -> None:
        """`too_far_back`: groups whose missing entries no log holds; `known_sums`: of the log, that the scrub has read."""
        instance = wal.instance
        self._consensus, self._settings, self._wal, self._leadership = consensus, settings, wal, leadership
        self._too_far_back, self._membership = too_far_back, membership
        self.node, self.directory = consensus.ground.node, wal.directory
        self.partitions: Sequence[int] = range(settings.partitions)
        self.shape = LogShape(instance.segment_bytes, instance.segments, instance.log_reserve_bytes)
        self.newest, self.request_snapshots, self.known_sums = snapshots.newest, snapshots.request_snapshots, known_sums
        self.let_log_go = wal.anchors.release

    def make_server(self) -> CopyServer:
        """Takes those who copy this node."""
        member, identity, settings = self._consensus.ground, self._wal.instance.identity, self._settings
        ours = copy_credentials(identity.cluster_id, member.node, identity.incarnation, member.secret)
        limits = CopyLimits(settings.copies_max, settings.copy_rate_bytes_per_s)
        return CopyServer(ours, self, limits, tls=member.tls)

    # -- cmdlog.cluster.copying.copy_desk.SourceNode ------------------------------------------------------------------------

    @property
    def reaches(self) -> dict[int, GroupReach]:
        terms = self._consensus.machine.terms

        def look_at_cores(groups: Any) -> dict[int, GroupReach]:
            return {int(group): GroupReach.of(core, terms.get(int(group))) for group, core in groups.cores.items()}

        reaches: dict[int, GroupReach] = self._consensus.driver.ask_groups(look_at_cores)
        return reaches

    def cluster_state(self, reach: GroupReach) -> GroupState:
        wal = self._wal
        wal.anchors.set(CLUSTER_ANCHOR, Lsn(BlockNumber(wal.first_blocks()[0]), 0))
        try:
            return cluster_state(wal, reach, last_txn=max(wal.recovered.groups.txn_id_max, self._consensus.driver.last_txn))
        finally:
            wal.anchors.release(CLUSTER_ANCHOR)

    @property
    def faults(self) -> list[bytes]:
        cluster = self._wal.instance.identity.cluster_id
        return [encode_fault(cluster, record) for record in self._membership.fault_records]

    @property
    def problem(self) -> str:
        if self._too_far_back:
            return f"node {self.node} lacks entries itself, in groups {sorted(self._too_far_back)}: copy from another node"
        if diverged := self._consensus.marks.divergences():
            return f"partitions {sorted(diverged)} of node {self.node} differ from the leader's: copy from another node"
        return ""

    @property
    def is_short(self) -> bool:
        """Halfway from where snapshots make room to where calls are refused."""
        wal = self._wal
        halfway = (1 + self._settings.snapshot_log_fraction) / 2
        return LogView(wal.first_blocks(), wal.instance.segments).fill >= halfway

    def take_wish(self, wish: CopyWish) -> CopyStanding:
        """A wish without a reason only looks, and changes nothing."""
        of, leader = self._consensus, self._leadership.leader
        leads = leader == self.node
        standing = self._membership.take_wish(wish) if leads and wish.reason else WishStanding(of.roll.stated.get(wish.node))
        refusal = None if standing.refusal is None else CopyRefusal(standing.refusal.value, standing.why)
        roll = tuple(RollAddress(member.node, address_text(member.peer), member.client) for member in of.roll.members)
        known = {address.node: address.peer for address in roll}
        return CopyStanding(
            node=self.node,
            begun=any(reach.term > GENESIS_TERM for reach in self.reaches.values()),
            leads=leads,
            leader=None if leader is None or leader not in known else LeaderAddress(int(leader), known[leader]),
            member=standing.member,
            refusal=refusal,
            roll=roll,
        )

    @property
    def peers(self) -> Mapping[NodeId, PeerRecord]:
        return self._consensus.network.book.met

    def hold_log(self, name: str, block: int) -> None:
        self._wal.anchors.set(name, Lsn(BlockNumber(block), 0))

    def member_of(self, node: int) -> ClusterMember | None:
        return self._consensus.roll.stated.get(node)
