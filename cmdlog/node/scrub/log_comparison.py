"""Compares this node's sums of the log with those of its peers, and says whose disk differs.

One rule: a majority decides, and nothing is guessed. Entries that are committed have the same bytes on every disk. So where a
majority of the voters has one sum, a node with another one holds something else, although every block of it reads well; where no
majority agrees it is reported and nobody is blamed. A peer that has not read a range yet, or cannot be reached, says nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from cmdlog.cluster.cluster_file import MemberAddress
from cmdlog.cluster.copying.copy_client import CopyClient, SourceLost
from cmdlog.cluster.copying.copy_values import CopyRefused
from cmdlog.cluster.copying.log_sums import RANGES_MAX, SumsRequest
from cmdlog.cluster.replication import Replication
from cmdlog.cluster.transport.handshake import HelloCredentials
from cmdlog.cluster.transport.peer_network import PeerNetwork
from cmdlog.cluster.transport.peer_transport import Address, PeerTls
from cmdlog.node.scrub.entry_sums import RANGE_ENTRIES, RangeSums, range_end
from cmdlog.raft.configuration import Configuration, NodeId
from cmdlog.raft.multi_raft import RaftGroups
from cmdlog.raft.quorum import has_quorum

TURN_S: Final = 30.0  # between two nodes that find damage at the same moment: the second one sees that the first has gone

log = structlog.get_logger("cmdlog.scrub")


@dataclass(frozen=True, slots=True)
class SumVerdict:
    """A range that is not the same on all disks that were asked."""

    group: int
    range: int
    differs: tuple[int, ...]  # nodes whose disk differs from the majority; (): no majority agrees

    @property
    def indexes(self) -> tuple[int, int]:
        """First and last entry of the range."""
        return max(1, self.range * RANGE_ENTRIES), range_end(self.range)


@dataclass(frozen=True, slots=True)
class ScrubGroup:
    """A group of consensus, as this node knows it."""

    configuration: Configuration
    committed: int  # the last entry that is known to be committed and that this node has durably


class ScrubPeers:
    """The cluster, as the scrub of one of its members needs it: the peers' sums come by the channel for copies.

    A question at a time, over a connection of its own that is closed again: a comparison takes place once in a pass. Called by
    the scrub's thread alone.
    """

    def __init__(
        self,
        credentials: HelloCredentials,
        driver: Replication,
        network: PeerNetwork,
        members: Callable[[], Iterable[MemberAddress]],
        *,
        want_copy: Callable[[str], None],
        tls: PeerTls | None = None,
    ) -> None:
        """`members` are those of the roll. `want_copy`: this node is to be copied from its peers, for this reason."""
        self.node = int(credentials.me.node)  # this one
        self._credentials, self._driver, self._network, self._members, self._tls = credentials, driver, network, members, tls
        self.want_copy = want_copy

    def groups(self) -> dict[int, ScrubGroup]:
        """Every group of the running member."""

        def look_at_all(groups: RaftGroups) -> dict[int, ScrubGroup]:
            found = {int(group): core.status() for group, core in groups.cores.items()}
            return {group: ScrubGroup(of.configuration, min(of.commit, of.durable)) for group, of in found.items()}

        looked: dict[int, ScrubGroup] = self._driver.ask_groups(look_at_all)
        return looked

    def addresses(self) -> dict[int, Address]:
        """Of the members, this one too."""
        return {member.node: member.peer for member in self._members()}

    def connected(self) -> set[int]:
        """Peers that both hear and are heard."""
        peers = self._network.status().peers
        return {int(p.node) for p in peers if p.connected_since_s is not None and p.calls_since_s is not None}

    def others(self) -> Sequence[int]:
        """The other voters of any group that are reached at a known address, ascending."""
        known = self.addresses()
        voters = {node for of in self.groups().values() for node in of.configuration.voters}
        return sorted(int(node) for node in voters if node != self.node and node in known)

    def committed(self) -> Mapping[int, int]:
        """The last entry of each group that is known here to be committed."""
        return {group: of.committed for group, of in self.groups().items()}

    def ask_sums(self, node: int, group: int, *, first: int, last: int) -> RangeSums:
        """What the peer knows of these ranges. Raises: OSError, when it cannot be asked."""
        try:
            with CopyClient(self._credentials, node, self.addresses()[node], tls=self._tls) as client:
                return client.ask_sums(SumsRequest(group, first, last, RANGE_ENTRIES)).sums
        except (SourceLost, CopyRefused) as error:
            raise OSError(str(error)) from error

    def compare(self, mine: Mapping[int, RangeSums]) -> LogComparison:
        """Begins a comparison of this node's sums by group."""
        return LogComparison(self, mine)

    def quorum_is_safe(self) -> bool:
        """Whether the others could serve without this node for as long as a copy takes."""
        live = {NodeId(node) for node in self.connected()} - {NodeId(self.node)}
        return all(has_quorum(of.configuration, live) for of in self.groups().values())

    @property
    def turn_s(self) -> float:
        """How long this node waits after a finding, so that two nodes do not go at the same moment."""
        everybody = sorted({self.node, *self.others()})
        return TURN_S * everybody.index(self.node)


def judge_sums(by_node: Mapping[int, Mapping[int, RangeSums]], *, voters: int) -> list[SumVerdict]:
    """node -> group -> range -> sum; the ranges in which two nodes differ, by group and range."""
    found = []
    places = sorted({(group, number) for groups in by_node.values() for group, sums in groups.items() for number in sums})
    for group, number in places:
        sums = {node: groups[group][number] for node, groups in by_node.items() if number in groups.get(group, {})}
        ((common, count), *others) = Counter(sums.values()).most_common()
        if others:
            differing = sorted(node for node, value in sums.items() if value != common)
            found.append(SumVerdict(group, number, tuple(differing) if count > voters // 2 else ()))
    return found


class LogComparison:
    """One comparison: a question per step, so that none of them holds anything up for long."""

    def __init__(self, peers: ScrubPeers, mine: Mapping[int, RangeSums]) -> None:
        self._peers, self.node, others = peers, peers.node, list(peers.others())
        self._by_node: dict[int, dict[int, dict[int, int]]] = {peers.node: {g: dict(sums) for g, sums in mine.items()}}
        self._voters = len(others) + 1
        self._questions = [
            (node, group, first, min(first + RANGES_MAX, max(sums) + 1) - 1)
            for node in others
            for group, sums in sorted(mine.items())
            if sums
            for first in range(min(sums), max(sums) + 1, RANGES_MAX)
        ]

    def ask_next(self) -> bool:
        """One question; False when there was none left."""
        if not self._questions:
            return False
        node, group, first, last = self._questions.pop(0)
        try:
            said = self._peers.ask_sums(node, group, first=first, last=last)
        except OSError as error:
            log.info("scrub_peer_not_asked", node=node, reason=str(error))
            self._questions = [question for question in self._questions if question[0] != node]
            return True
        mine = self._by_node[self._peers.node][group]
        theirs = self._by_node.setdefault(node, {}).setdefault(group, {})
        theirs.update({number: value for number, value in said.items() if number in mine})
        return True

    @property
    def answered(self) -> list[int]:
        """Nodes that are compared, this one too."""
        return sorted(self._by_node)

    @property
    def ranges(self) -> int:
        """How many ranges of this node at least one other has as well."""
        mine = {(group, number) for group, sums in self._by_node[self.node].items() for number in sums}
        others = [groups for node, groups in self._by_node.items() if node != self.node]
        return sum(any(number in groups.get(group, {}) for groups in others) for group, number in mine)

    def verdicts(self) -> list[SumVerdict]:
        """After the last question."""
        return judge_sums(self._by_node, voters=self._voters)
