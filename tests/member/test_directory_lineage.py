"""A directory that is older than what a peer has met: its node steps down, and has no word until the peer takes it."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from cmdlog.member.leading.directory_lineage import DirectoryLineage
from cmdlog.raft import Franchise, Role
from cmdlog.wal.ids import PartitionId
from tests.raft.cluster import Cluster


class Aged:
    """Node 1 of three, which leads its group, and what its peers say of its starts."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.core = self.cluster.elect(1)
        self.peers = [SimpleNamespace(node=node, met_later=False, was_called=True) for node in (2, 3)]
        groups = SimpleNamespace(cores={PartitionId(0): self.core}, ask=lambda _group, request: request(self.core))
        driver: Any = SimpleNamespace(lock=threading.RLock(), ask_groups=lambda request: request(groups))
        self.lineage = DirectoryLineage(1, driver, lambda: self.peers)  # type: ignore[arg-type,return-value]


@pytest.fixture
def aged() -> Aged:
    """Nobody has met a later start."""
    return Aged()


def test_a_leader_on_an_older_disk_steps_down_and_another_one_leads(aged: Aged) -> None:
    """As soon as one peer says it. It is said once, with the command that helps, and has no word in what follows."""
    assert not aged.lineage.look_at_peers()
    aged.peers[1].met_later = True
    with structlog.testing.capture_logs() as logs:
        assert aged.lineage.look_at_peers()
        assert not aged.lineage.look_at_peers()
    (said,) = logs
    assert (said["event"], said["met_by"]) == ("directory_went_back", [3])
    assert "cmdlog cluster replace 1" in said["remedy"]
    assert (aged.core.role, aged.core.franchise) == (Role.FOLLOWER, Franchise.NO_WORD)
    aged.cluster.tick(60)
    (leader,) = aged.cluster.leaders()
    assert leader != 1
    aged.cluster.core(leader).propose([b"taken"])
    aged.cluster.tick(3)
    assert aged.cluster.applied(1)[-1] == b"taken"


def test_a_peer_that_takes_the_node_gives_its_word_back(aged: Aged) -> None:
    """A copy of it ran there, say, and is gone."""
    aged.peers[0].met_later = True
    aged.lineage.look_at_peers()
    aged.peers[0].met_later = False
    assert aged.lineage.look_at_peers()
    assert (aged.lineage.met_later, aged.core.franchise) == (frozenset(), Franchise.FULL)


def test_a_peer_that_was_not_called_yet_is_waited_for(aged: Aged) -> None:
    """It may have met a later start."""
    assert not aged.lineage.is_asked_for
    aged.peers[0].was_called = False
    assert aged.lineage.is_asked_for
