"""The peers of a member, as its scrub needs them: their sums by the channel for copies, and whether they can spare this node.

One rule: a question at a time, over a connection of its own that is closed again: a comparison takes place once in a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from cmdlog.cluster.cluster_file import MemberAddress
from cmdlog.cluster.copying.copy_client import CopyClient, SourceLost
from cmdlog.cluster.copying.copy_values import CopyRefused
from cmdlog.cluster.copying.log_sums import SumsRequest
from cmdlog.cluster.replication import Replication
from cmdlog.cluster.transport.handshake import HelloCredentials
from cmdlog.cluster.transport.peer_network import PeerNetwork
from cmdlog.cluster.transport.peer_transport import Address, PeerTls
from cmdlog.node.scrub.entry_sums import RANGE_ENTRIES, RangeSums
from cmdlog.raft.configuration import Configuration, NodeId
from cmdlog.raft.multi_raft import RaftGroups
from cmdlog.raft.quorum import has_quorum

TURN_S = 30.0  # between two nodes that find damage at the same moment: the second one sees that the first has gone


@dataclass(frozen=True, slots=True)
class ScrubGroup:
    """A group of consensus, as this node knows it."""

    configuration: Configuration
    committed: int  # the last entry that is known to be committed and that this node has durably


@dataclass(frozen=True, slots=True)
class ScrubMember:
    """What a member gives. Any thread."""

    credentials: HelloCredentials  # of the channel for copies
    groups: Callable[[], Mapping[int, ScrubGroup]]
    addresses: Callable[[], Mapping[int, Address]]  # of the members, this one too
    connected: Callable[[], Collection[int]]  # peers that speak with this node now
    want_copy: Callable[[str], None]
    tls: PeerTls | None = None


def look_at_groups(driver: Replication) -> dict[int, ScrubGroup]:
    """Every group of a running member."""

    def look_at_all(groups: RaftGroups) -> dict[int, ScrubGroup]:
        found = {int(group): core.status() for group, core in groups.cores.items()}
        return {group: ScrubGroup(of.configuration, min(of.commit, of.durable)) for group, of in found.items()}

    looked: dict[int, ScrubGroup] = driver.ask_groups(look_at_all)
    return looked


def connected_peers(network: PeerNetwork) -> set[int]:
    """Peers that both hear and are heard."""
    both = (peer for peer in network.status().peers if peer.connected_since_s is not None and peer.calls_since_s is not None)
    return {int(peer.node) for peer in both}


class ClusterPeers:
    """See `cmdlog.node.scrub.log_comparison.ScrubPeers`."""

    def __init__(self, member: ScrubMember) -> None:
        self._member, self.node = member, int(member.credentials.me.node)

    def others(self) -> Sequence[int]:
        """Voters of any group that are reached at a known address."""
        known = self._member.addresses()
        voters = {node for of in self._member.groups().values() for node in of.configuration.voters}
        return sorted(int(node) for node in voters if node != self.node and node in known)

    def committed(self) -> Mapping[int, int]:
        return {group: of.committed for group, of in self._member.groups().items()}

    def ask_sums(self, node: int, group: int, *, first: int, last: int) -> RangeSums:
        address = self._member.addresses()[node]
        try:
            with CopyClient(self._member.credentials, node, address, tls=self._member.tls) as client:
                return client.ask_sums(SumsRequest(group, first, last, RANGE_ENTRIES)).sums
        except (SourceLost, CopyRefused) as error:
            raise OSError(str(error)) from error

    def quorum_is_safe(self) -> bool:
        live = {NodeId(node) for node in self._member.connected()} - {NodeId(self.node)}
        return all(has_quorum(of.configuration, live) for of in self._member.groups().values())

    @property
    def turn_s(self) -> float:
        everybody = sorted({self.node, *self.others()})
        return TURN_S * everybody.index(self.node)

    def want_copy(self, reason: str) -> None:
        self._member.want_copy(reason)


def peers_of(
    credentials: HelloCredentials,
    driver: Replication,
    network: PeerNetwork,
    members: Callable[[], Iterable[MemberAddress]],
    *,
    want_copy: Callable[[str], None],
    tls: PeerTls | None,
) -> ClusterPeers:
    """The peers of a running member; `members` are those of the roll."""
    return ClusterPeers(
        ScrubMember(
            credentials,
            groups=lambda: look_at_groups(driver),
            addresses=lambda: {member.node: member.peer for member in members()},
            connected=lambda: connected_peers(network),
            want_copy=want_copy,
            tls=tls,
        )
    )
