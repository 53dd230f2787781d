"""Comparing sums with peers: a majority says whose disk differs, and nothing is guessed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import cast

import pytest

from cmdlog.cluster.copying.copy_frames import copy_credentials
from cmdlog.cluster.copying.log_sums import RANGES_MAX
from cmdlog.cluster.replication import Replication
from cmdlog.cluster.transport.peer_network import PeerNetwork
from cmdlog.cluster.transport.peer_transport import Address
from cmdlog.node.scrub.entry_sums import RANGE_ENTRIES, RangeSums
from cmdlog.node.scrub.log_comparison import TURN_S, LogComparison, ScrubGroup, ScrubPeers, SumVerdict, judge_sums
from cmdlog.raft.configuration import Configuration, nodes
from cmdlog.raft.wire.secure_frames import Secret
from cmdlog.wal.ids import CLUSTER_GROUP
from tests.member.members import free_addresses

A, B = 0xA, 0xB


class FakePeers(ScrubPeers):
    """Peers with given sums; a missing one cannot be reached."""

    def __init__(self, others: Mapping[int, Mapping[int, RangeSums] | None], *, node: int = 1) -> None:
        self.node, self._sums = node, others
        self.asked: list[tuple[int, int, int, int]] = []
        self.safe, self.wanted, self.turn = True, list[str](), 0.0
        self.want_copy = self.wanted.append
        self.commits: dict[int, int] = {}

    def others(self) -> Sequence[int]:
        return sorted(self._sums)

    def committed(self) -> Mapping[int, int]:
        return self.commits

    def ask_sums(self, node: int, group: int, *, first: int, last: int) -> RangeSums:
        self.asked.append((node, group, first, last))
        known = self._sums[node]
        if known is None:
            raise ConnectionRefusedError(node)
        return {number: value for number, value in known.get(group, {}).items() if first <= number <= last}

    def quorum_is_safe(self) -> bool:
        return self.safe

    @property
    def turn_s(self) -> float:
        return self.turn


@pytest.mark.parametrize(
    ("sums", "differs"),
    [
        ({1: A, 2: A, 3: A}, None),
        ({1: B, 2: A, 3: A}, (1,)),
        ({1: A, 2: A, 3: B}, (3,)),
        ({1: A, 2: B, 3: 0xC}, ()),
        ({1: A, 2: B}, ()),
        ({1: A, 2: A}, None),
        ({1: A}, None),
    ],
)
def test_a_majority_of_the_voters_decides(sums: Mapping[int, int], differs: tuple[int, ...] | None) -> None:
    """Of three voters two agree against one; one against one, or three ways, names nobody."""
    found = judge_sums({node: {5: {9: value}} for node, value in sums.items()}, voters=3)
    assert found == ([] if differs is None else [SumVerdict(5, 9, differs)])


def test_two_of_five_are_no_majority() -> None:
    """Two that agree against one, of five voters, decide nothing: the others may hold what the one holds."""
    assert judge_sums({1: {0: {0: B}}, 2: {0: {0: A}}, 3: {0: {0: A}}}, voters=5) == [SumVerdict(0, 0, ())]


def test_a_comparison_asks_each_peer_for_what_this_node_has() -> None:
    """In questions of bounded length; a range that a peer does not know says nothing."""
    mine = {0: dict.fromkeys(range(3, 3 + RANGES_MAX + 5), A), 7: {2: B}}
    peers = FakePeers({2: {0: {3: A, 4: B}, 7: {2: B}}, 3: {0: {4: B, 99_999: A}}})
    comparison = LogComparison(peers, mine)
    while comparison.ask_next():
        pass
    assert peers.asked[:3] == [(2, 0, 3, 2 + RANGES_MAX), (2, 0, 3 + RANGES_MAX, 7 + RANGES_MAX), (2, 7, 2, 2)]
    assert comparison.verdicts() == [SumVerdict(0, 4, (1,))]
    assert (comparison.answered, comparison.ranges) == ([1, 2, 3], 3)


def test_a_peer_that_is_not_reached_is_passed_over() -> None:
    """It is asked once, and counts as a voter that has said nothing."""
    peers = FakePeers({2: None, 3: {0: {0: B}, 1: {0: A}}})
    comparison = LogComparison(peers, {0: {0: A}, 1: {0: A}})
    while comparison.ask_next():
        pass
    assert [node for node, *_ in peers.asked] == [2, 3, 3]
    assert comparison.verdicts() == [SumVerdict(0, 0, ())]


def test_a_verdict_names_its_entries() -> None:
    """From the first to the last of the range; entry 0 does not exist."""
    assert SumVerdict(0, 0, ()).indexes == (1, RANGE_ENTRIES - 1)
    assert SumVerdict(0, 2, ()).indexes == (2 * RANGE_ENTRIES, 3 * RANGE_ENTRIES - 1)


# -- the peers: who is asked, and when a member may go to be copied ------------------------------------------------------

CREDENTIALS = copy_credentials(bytes(16), 2, os.urandom(8), Secret(b"a secret of a cluster in these tests"))


class KnownPeers(ScrubPeers):
    """Of node 2, in a cluster of these voters."""

    def __init__(self, *voters: int, connected: set[int], learners: tuple[int, ...] = ()) -> None:
        super().__init__(CREDENTIALS, cast(Replication, None), cast(PeerNetwork, None), list, want_copy=print)
        configuration = Configuration(nodes(voters), learners=nodes(learners))
        self._groups = {0: ScrubGroup(configuration, 17), int(CLUSTER_GROUP): ScrubGroup(configuration, 5)}
        self._known, self._live = dict(zip(voters, free_addresses(len(voters)), strict=True)), connected

    def groups(self) -> dict[int, ScrubGroup]:
        return self._groups

    def addresses(self) -> dict[int, Address]:
        return self._known

    def connected(self) -> set[int]:
        return self._live


@pytest.mark.parametrize(
    ("voters", "connected", "safe"),
    [
        ((1, 2, 3), {1, 3}, True),
        ((1, 2, 3), {1, 2, 3}, True),
        ((1, 2, 3), {1}, False),
        ((1, 2), {1}, False),
        ((2,), set(), False),
        ((1, 2, 3, 4, 5), {1, 3, 5}, True),
        ((1, 2, 3, 4, 5), {1, 3}, False),
    ],
)
def test_a_quorum_is_safe_when_the_others_make_one_alone(voters: tuple[int, ...], connected: set[int], safe: bool) -> None:
    """This node itself does not count: it is about to go."""
    assert KnownPeers(*voters, connected=connected).quorum_is_safe() is safe


def test_voters_are_asked_and_learners_are_not() -> None:
    """A learner may be anything yet."""
    asked = KnownPeers(1, 2, 3, connected=set(), learners=(4,))
    assert asked.others() == [1, 3]
    assert asked.committed() == {0: 17, int(CLUSTER_GROUP): 5}
    assert asked.turn_s == TURN_S


def test_a_peer_that_is_not_there_cannot_be_asked() -> None:
    """An error of the system, as the comparison expects it."""
    with pytest.raises(OSError, match="node 1"):
        KnownPeers(1, 2, connected=set()).ask_sums(1, 0, first=0, last=3)
