"""Copies that others take of a member: what the source of copies is given of the node, and the state of a wish for one.

One rule: it decides nothing. Who is admitted says the roll, what a node's wish leads to says membership, and what a copy consists
of says `cmdlog.cluster.copying`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from cmdlog.cluster.copying.copied_groups import GroupReach, cluster_state
from cmdlog.cluster.copying.copy_desk import CopyGround, CopyLimits
from cmdlog.cluster.copying.copy_frames import copy_credentials
from cmdlog.cluster.copying.copy_source import CopyServer
from cmdlog.cluster.copying.copy_values import CopyRefusal, CopyStanding, LeaderAddress, LogShape, RollAddress
from cmdlog.cluster.copying.log_sums import SumsRequest
from cmdlog.cluster.copying.wishes import CopyWish, WishStanding
from cmdlog.cluster.executed_marks import ExecutedMarks
from cmdlog.cluster.genesis import GENESIS_TERM
from cmdlog.cluster.replication import Replication
from cmdlog.cluster.transport.peer_book import PeerBook, PeerRecord
from cmdlog.cluster.transport.peer_network import PeerNetwork
from cmdlog.cluster.transport.peer_transport import address_text
from cmdlog.member.leadership import Leadership
from cmdlog.member.member_ground import MemberGround
from cmdlog.member.member_roll import MemberRoll
from cmdlog.node.background.snapshot_schedule import LogView
from cmdlog.node.background.snapshotter import Snapshotter
from cmdlog.node.settings import Settings
from cmdlog.raft.configuration import NodeId
from cmdlog.wal.fault_log import read_faults
from cmdlog.wal.fault_record import encode_fault
from cmdlog.wal.files import Files
from cmdlog.wal.format.cluster_record import ClusterMember
from cmdlog.wal.group_state import GroupState
from cmdlog.wal.ids import BlockNumber, Lsn
from cmdlog.wal.log import Log
from cmdlog.wal.term_table import TermTable

CLUSTER_ANCHOR = "copy-cluster"  # while the log is read


@dataclass(frozen=True, slots=True)
class CopiedMember:
    """The node that is copied."""

    ground: MemberGround
    settings: Settings
    files: Files
    log: Log
    roll: MemberRoll
    driver: Replication
    terms: Mapping[int, TermTable]  # of every partition's committed entries; under the driver's lock
    leadership: Leadership
    marks: ExecutedMarks
    snapshots: Snapshotter
    too_far_back: Collection[int]  # groups whose missing entries no log holds
    take_wish: Callable[[CopyWish], WishStanding]
    known_sums: Callable[[SumsRequest], Mapping[int, int]]  # of the log, that the scrub has read


class MemberCopies:
    """Any thread."""

    def __init__(self, of: CopiedMember) -> None:
        self._of = of
        self._book: PeerBook | None = None  # of peers; none before `start`
        wal, identity, settings = of.log, of.log.instance.identity, of.settings
        shape = LogShape(wal.instance.segment_bytes, wal.instance.segments, wal.instance.log_reserve_bytes)
        ground = CopyGround(
            node=of.ground.node,
            directory=wal.directory,
            shape=shape,
            partitions=range(settings.partitions),
            reaches=self._reaches,
            cluster_state=self._cluster_state,
            newest=of.snapshots.newest,
            request_snapshots=of.snapshots.request_snapshots,
            faults=self._faults,
            hold_log=lambda name, block: wal.anchors.set(name, Lsn(BlockNumber(block), 0)),
            let_log_go=wal.anchors.release,
            member_of=self._member_of,
            take_wish=self._answer_wish,
            problem=self._problem,
            is_short=self._is_short,
            peers=self._peers,
            known_sums=of.known_sums,
        )
        self._source = CopyServer(
            copy_credentials(identity.cluster_id, of.ground.node, identity.incarnation, of.ground.secret),
            ground,
            CopyLimits(settings.copies_max, settings.copy_rate_bytes_per_s),
            tls=of.ground.tls,
        )

    def start(self, network: PeerNetwork) -> None:
        """Copies are asked for by the peers' port. Before the network starts."""
        self._book = network.book
        self._source.start(network)

    def stop(self) -> None:
        """Ends all copies. Idempotent."""
        self._source.stop()

    def status(self) -> Mapping[str, Any]:
        """Plain data."""
        return self._source.status()

    def cancel(self, node: int) -> int:
        """Ends the copies to a node, for an operator; their number."""
        return self._source.cancel(node)

    # -- what the source asks ----------------------------------------------------------------------------------------------

    def _reaches(self) -> dict[int, GroupReach]:
        def look_at_cores(groups: Any) -> dict[int, GroupReach]:
            return {int(group): GroupReach.of(core, self._of.terms.get(int(group))) for group, core in groups.cores.items()}

        reaches: dict[int, GroupReach] = self._of.driver.ask_groups(look_at_cores)
        return reaches

    def _member_of(self, node: int) -> ClusterMember | None:
        return self._of.roll.stated.get(node)

    def _cluster_state(self, reach: GroupReach) -> GroupState:
        wal = self._of.log
        wal.anchors.set(CLUSTER_ANCHOR, Lsn(BlockNumber(wal.first_blocks()[0]), 0))
        try:
            return cluster_state(wal, reach, last_txn=max(wal.recovered.groups.txn_id_max, self._of.driver.last_txn))
        finally:
            wal.anchors.release(CLUSTER_ANCHOR)

    def _peers(self) -> Mapping[NodeId, PeerRecord]:
        return {} if self._book is None else self._book.met

    def _faults(self) -> list[bytes]:
        wal = self._of.log
        cluster = wal.instance.identity.cluster_id
        return [encode_fault(cluster, record) for record in read_faults(self._of.files, wal.directory, wal.instance.identity)]

    def _problem(self) -> str:
        of = self._of
        if of.too_far_back:
            return f"node {of.ground.node} lacks entries itself, in groups {sorted(of.too_far_back)}: copy from another node"
        if diverged := of.marks.divergences():
            return f"partitions {sorted(diverged)} of node {of.ground.node} differ from the leader's: copy from another node"
        return ""

    def _is_short(self) -> bool:
        """Halfway from where snapshots make room to where calls are refused."""
        wal = self._of.log
        halfway = (1 + self._of.settings.snapshot_log_fraction) / 2
        return LogView(wal.first_blocks(), wal.instance.segments).fill >= halfway

    def _answer_wish(self, wish: CopyWish) -> CopyStanding:
        """A wish without a reason only looks, and changes nothing."""
        of, leader = self._of, self._of.leadership.leader
        leads = leader == of.ground.node
        standing = of.take_wish(wish) if leads and wish.reason else WishStanding(of.roll.stated.get(wish.node))
        refusal = None if standing.refusal is None else CopyRefusal(standing.refusal.value, standing.why)
        roll = tuple(RollAddress(member.node, address_text(member.peer), member.client) for member in of.roll.members)
        known = {address.node: address.peer for address in roll}
        return CopyStanding(
            node=of.ground.node,
            begun=any(reach.term > GENESIS_TERM for reach in self._reaches().values()),
            leads=leads,
            leader=None if leader is None or leader not in known else LeaderAddress(int(leader), known[leader]),
            member=standing.member,
            refusal=refusal,
            roll=roll,
        )
