"""The peers of a scrub: who is asked, and when a member may go to be copied."""

from __future__ import annotations

import os

import pytest

from cmdlog.cluster.copying.copy_frames import copy_credentials
from cmdlog.node.scrub.cluster_peers import TURN_S, ClusterPeers, ScrubGroup, ScrubMember
from cmdlog.raft.configuration import Configuration, nodes
from cmdlog.raft.wire.secure_frames import Secret
from cmdlog.wal.ids import CLUSTER_GROUP
from tests.member.members import free_addresses

CREDENTIALS = copy_credentials(bytes(16), 2, os.urandom(8), Secret(b"a secret of a cluster in these tests"))


def peers(*voters: int, connected: set[int], learners: tuple[int, ...] = (), wanted: list[str] | None = None) -> ClusterPeers:
    """Of node 2."""
    groups = {
        0: ScrubGroup(Configuration(nodes(voters), learners=nodes(learners)), 17),
        int(CLUSTER_GROUP): ScrubGroup(Configuration(nodes(voters), learners=nodes(learners)), 5),
    }
    addresses = dict(zip(voters, free_addresses(len(voters)), strict=True))
    reasons = [] if wanted is None else wanted
    return ClusterPeers(
        ScrubMember(CREDENTIALS, lambda: groups, lambda: addresses, lambda: connected, reasons.append),
    )


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
    assert peers(*voters, connected=connected).quorum_is_safe() is safe


def test_voters_are_asked_and_learners_are_not() -> None:
    """A learner may be anything yet."""
    asked = peers(1, 2, 3, connected=set(), learners=(4,))
    assert asked.others() == [1, 3]
    assert asked.committed() == {0: 17, int(CLUSTER_GROUP): 5}
    assert asked.turn_s == TURN_S


def test_a_peer_that_is_not_there_cannot_be_asked() -> None:
    """An error of the system, as the comparison expects it."""
    with pytest.raises(OSError, match="node 1"):
        peers(1, 2, connected=set()).ask_sums(1, 0, first=0, last=3)


def test_the_wish_goes_to_the_member() -> None:
    """With its reason."""
    wanted: list[str] = []
    peers(1, 2, 3, connected={1, 3}, wanted=wanted).want_copy("a reason")
    assert wanted == ["a reason"]
