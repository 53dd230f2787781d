"""One member of a simulated cluster whose members change: what every member has, and book of peers, fault log and reconciler.

One rule: as `tests.cluster.sim.sim_member`; membership is wired as `cmdlog.member.member` wires it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

from cmdlog.cluster.membership.fault_sets import FaultSets
from cmdlog.cluster.membership.member_requests import MemberRequest
from cmdlog.cluster.membership.operator_desk import MembershipRefused, RequestKind
from cmdlog.cluster.transport.peer_book import PeerBook, PeerRefused
from cmdlog.cluster.transport.peer_network import PeerNetwork
from cmdlog.cluster.transport.peer_transport import Address
from cmdlog.member.consensus import Consensus
from cmdlog.member.entry_reader import EntryReader
from cmdlog.member.leading.leading import Leading
from cmdlog.member.member_ground import MemberGround
from cmdlog.member.member_roll import MemberRoll
from cmdlog.member.membership.membership import Membership
from cmdlog.member.rejoin.rejoin_record import RejoinReason
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.messages import SnapshotDescriptor
from cmdlog.raft.wire.secure_frames import Peer
from cmdlog.wal.errors import WalError
from cmdlog.wal.fault_log import FaultLog
from cmdlog.wal.format.cluster_record import ClusterMember
from cmdlog.wal.format.record import RecordKind
from cmdlog.wal.group_state import GroupStates
from cmdlog.wal.ids import CLUSTER_GROUP
from tests.cluster.sim.list_images import capture_image, undisturbed
from tests.cluster.sim.sim_member import TICK_S, SimMember, directory_of

if TYPE_CHECKING:
    from tests.cluster.sim.members.changing_cluster import ChangingCluster

FAILURE_S: Final = 2.5


class _Network:
    """What membership needs of the network."""

    def __init__(self, book: PeerBook) -> None:
        self.book = book

    def set_peers(self, peers: Mapping[NodeId, Address]) -> None:
        """Everybody is called anyway."""


class ChangingMember(SimMember):
    """See the module."""

    def open_beside(self, recovered: GroupStates) -> None:
        files, directory, identity = self.machine.files, directory_of(self.node), self.log.instance.identity
        with undisturbed(files):
            self.book = PeerBook.open(files, directory, identity)
            self.fault_log = FaultLog.open(files, directory, identity)
            self.faults = FaultSets(self.fault_log, identity.cluster_id, lambda _record: None)
            for other in range(1, self._world.first + 1) if not recovered.state(CLUSTER_GROUP).members else ():
                if other != self.node and NodeId(other) not in self.book.records:
                    self.book.pin(Peer(NodeId(other), b"life%04d" % other))  # all have met before anybody votes
            self.roll = MemberRoll(recovered, self._world.cluster_file)
            if self.roll.faults is not None:
                self.faults.adopt_set(self.roll.faults)
        self.stamp = self.book.me, self.book.start

    def missing_members(self) -> list[ClusterMember]:
        met = {int(node): record.incarnation for node, record in self.book.records.items()}
        return self.roll.missing_members({**met, self.node: self.book.me.incarnation})

    def believes(self, sender: int, stamp: Any) -> bool:
        """Whether the peer's process is the one that belongs to the cluster."""
        peer, start = stamp
        if not self.membership.hears(sender):
            return False
        before = self.book.records.get(peer.node)
        with undisturbed(self.machine.files):
            try:
                self.book.pin(peer)
                self.book.acquaint(peer, start)
            except WalError:
                return False  # nothing of a peer is processed before it is in the book
            except PeerRefused:
                self._world.happened["peer refused"] += 1
                return False
        is_met = before is not None and before.start == start  # what the process of before had sent may arrive late
        self._world.happened["old copy heard"] += not is_met and peer in self._world.forgetful  # by one whose book is new, too
        return True

    def join_cluster(self) -> None:
        consensus = Consensus(
            ground=cast(MemberGround, SimpleNamespace(node=self.node, tick_s=TICK_S)), roll=self.roll, marks=self.marks,
            network=cast(PeerNetwork, _Network(self.book)), reader=cast(EntryReader, None), machine=self.sequenced,
            driver=self.driver, fitness=self.fitness,
        )  # fmt: skip
        leading = cast(Leading, SimpleNamespace(leadership=self.leadership, transfer=self.transfer))
        self.membership = Membership(consensus, leading, self.faults, failed=self._failed, failure_s=FAILURE_S)

    def observe(self, index: int, record: bytes) -> int:
        if record[4] in (RecordKind.MEMBER, RecordKind.FAULTS):
            self._world.note_decision(record)
        with undisturbed(self.machine.files):
            self.faults.observe(record)
        self.roll.observe(index, record)
        return super().observe(index, record)

    def request(self, kind: RequestKind, node: int, *, base: int | None = None, force: bool = False) -> bool:
        """An operator's request, without the wait for its entry; whether it begins something."""
        reconciler = self.membership._reconciler
        if not self.leads or reconciler._statement is not None:
            return False
        try:
            wanted = MemberRequest(kind, node, f"n{node}:1", f"http://n{node}", force=force)
            member, _ = reconciler._decide(wanted, base)
        except MembershipRefused as refused:
            self._world.happened[f"refused {refused.code.value}"] += 1
            return False
        if member is not None:
            reconciler._place(RecordKind.MEMBER, member.to_json())
            if kind in ("remove", "replace"):
                self._world.going.add(node)
        return member is not None

    def pin_roll(self) -> None:
        """The thread that keeps the book of peers has its turn."""
        try:
            with undisturbed(self.machine.files):
                self.membership._follower._follow()
        except WalError:
            self.world.condemn(self)  # it cannot know whom it hears

    def capture(self, partition: int) -> None:
        """A snapshot, as files too: a recovery may begin with it."""
        capture_image(self, partition)

    def tick(self, ticks: int = 1) -> None:
        super().tick(ticks)
        if self.driver.failure is None:
            self.membership.note_ticks(ticks)
            if self.world.rng.random() < 0.7:
                self.pin_roll()

    def refuse_copy(self, group: int, descriptor: SnapshotDescriptor) -> None:
        """Too far back: it ends, and comes back to be copied."""
        self._world.happened["too far back"] += 1
        with undisturbed(self.machine.files):
            self._world.wish_copy(self.node, RejoinReason.TOO_FAR_BACK)
        self._world.condemn(self)

    @property
    def _world(self) -> ChangingCluster:
        return cast("ChangingCluster", self.world)
