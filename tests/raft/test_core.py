"""The core as a whole: election, replication, commit, restart, and the gate for messages."""

from __future__ import annotations

from cmdlog.raft import Role
from tests.raft.cluster import Cluster


def test_three_nodes_elect_replicate_and_commit() -> None:
    """A proposal to the leader reaches every state machine, in order."""
    cluster = Cluster()
    leader = cluster.elect(1)
    leader.propose([b"a", b"b"])
    leader.propose([b"c"])
    cluster.settle()
    cluster.tick()  # followers learn of the last commit with the next heartbeat
    assert [cluster.applied(member) for member in (1, 2, 3)] == [[b"a", b"b", b"c"]] * 3
    assert [cluster.core(member).role for member in (1, 2, 3)] == [Role.LEADER, Role.FOLLOWER, Role.FOLLOWER]


def test_entries_survive_a_restart_of_all_nodes() -> None:
    """What was acknowledged is there, and the terms go on, when every node restarts at once."""
    cluster = Cluster()
    cluster.elect(2).propose([b"kept"])
    cluster.settle()
    term = cluster.core(2).term
    for member in (1, 2, 3):
        cluster.restart(member)
    cluster.elect(3)
    cluster.tick()
    assert [cluster.applied(member) for member in (1, 2, 3)] == [[b"kept"]] * 3
    assert cluster.core(3).term > term
