"""Peers and pins follow the roll; between the entry and the book nothing of the node is taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from cmdlog.cluster.transport.peer_book import PeerBook
from cmdlog.cluster.transport.peer_transport import Address
from cmdlog.member.member_roll import MemberRoll
from cmdlog.member.membership import roll_follower
from cmdlog.member.membership.roll_follower import RollFollower
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.wire.secure_frames import Peer
from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.format.cluster_record import ClusterMember, MemberStage
from cmdlog.wal.group_state import GroupStates
from tests.member.test_member_roll import CLUSTER, stated
from tests.waiting import wait_for
from tests.wal.sim.simfiles import Fault, SimFiles

ME = Identity(bytes(16), 1, b"life-of1")
OLD, NEW = b"life-of3", b"new-of-3"
FIRST = ClusterMember(3, OLD, "127.0.0.1:7103", "http://127.0.0.1:8103")


class Network:
    """Keeps the peers that it is to call."""

    def __init__(self) -> None:
        self.peers: Mapping[NodeId, Address] = {}

    def set_peers(self, peers: Mapping[NodeId, Address]) -> None:
        self.peers = peers


class Followed:
    """A roll, a book that has met node 3, and who follows."""

    def __init__(self) -> None:
        self.files, self.network, self.index = SimFiles(), Network(), 10
        self.roll = MemberRoll(GroupStates(), CLUSTER)
        self.book = PeerBook.open(self.files, "/", ME)
        self.book.pin(Peer(NodeId(3), OLD))
        self.failures: list[BaseException] = []
        self.forgotten: list[int] = []
        self.follower = self.follow()

    def follow(self) -> RollFollower:
        """As at a start."""
        return RollFollower(self.roll, self.book, self.network, forget=self.forgotten.append, failed=self.failures.append)

    def state(self, member: ClusterMember) -> None:
        """The entry is committed."""
        self.index += 1
        self.roll.observe(self.index, stated(member, self.index))


@pytest.fixture
def followed() -> Followed:
    """The thread does not run yet."""
    return Followed()


def test_the_peers_are_those_of_the_roll_that_may_be_there(followed: Followed) -> None:
    """Not this node, nobody who is only expected, nobody who was removed."""
    assert sorted(followed.network.peers) == [2, 3]
    followed.follower.start()
    followed.state(ClusterMember(4, b"", "127.0.0.1:7104", "http://n4", MemberStage.EXPECTED))
    followed.state(replace(FIRST, stage=MemberStage.REMOVED))
    wait_for(lambda: sorted(followed.network.peers) == [2])
    followed.state(ClusterMember(4, NEW, "127.0.0.1:7104", "http://n4", MemberStage.JOINING))
    wait_for(lambda: followed.network.peers.get(NodeId(4)) == ("127.0.0.1", 7104))
    followed.follower.stop()


def test_a_new_life_is_heard_once_it_is_in_the_book(followed: Followed) -> None:
    """And what the former one still says is not taken from the entry on."""
    followed.state(FIRST)
    assert followed.follower.hears(3)
    assert followed.follower.pinned() == {3: OLD}
    joining = ClusterMember(3, NEW, FIRST.peer, FIRST.client, MemberStage.JOINING, former=(OLD,))
    followed.state(joining)
    assert not followed.follower.hears(3)
    assert followed.follower.pinned() == {}
    assert followed.forgotten == [3]
    followed.follower.start()
    wait_for(lambda: followed.follower.hears(3))
    assert followed.follower.pinned() == {3: NEW}
    assert followed.book.records[NodeId(3)].former == (OLD,)
    followed.follower.stop()


def test_what_the_log_says_at_the_start_is_pinned_before_anybody_is_heard(followed: Followed) -> None:
    """A crash after the entry and before the book is made good."""
    followed.state(ClusterMember(3, NEW, FIRST.peer, FIRST.client, MemberStage.ADMITTED, former=(OLD,)))
    again = followed.follow()
    assert again.hears(3)
    assert followed.book.records[NodeId(3)].incarnation == NEW


def test_a_life_that_is_over_is_never_pinned_again(followed: Followed) -> None:
    """The book knows better than an entry of an old log."""
    followed.book.admit(NodeId(3), NEW)
    followed.follower.start()
    followed.state(FIRST)
    followed.state(ClusterMember(4, b"", "127.0.0.1:7104", "http://n4", MemberStage.EXPECTED))
    assert not followed.follower.hears(3)
    followed.follower.stop()
    assert followed.book.records[NodeId(3)].incarnation == NEW


def test_a_full_disk_is_tried_again(followed: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node stays unheard until there is room."""
    monkeypatch.setattr(roll_follower, "RETRY_S", 0.001)
    followed.files.fail_at(1, Fault.NO_SPACE)
    followed.follower.start()
    followed.state(ClusterMember(3, NEW, FIRST.peer, FIRST.client, MemberStage.JOINING, former=(OLD,)))
    wait_for(lambda: followed.follower.hears(3))
    assert followed.failures == []
    followed.follower.stop()


def test_a_book_that_cannot_be_written_ends_the_node(followed: Followed) -> None:
    """It could not know whom it hears."""
    followed.follower.start()
    followed.files.fail_at(1, Fault.IO_ERROR)
    followed.state(ClusterMember(3, NEW, FIRST.peer, FIRST.client, MemberStage.JOINING, former=(OLD,)))
    wait_for(lambda: followed.failures)
    assert not followed.follower.hears(3)
    followed.follower.stop()
