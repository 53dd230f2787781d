"""Nodes of one cluster in one process: who takes calls, what a start and an orderly stop do, and what a follower refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cmdlog.member.member import ANCHOR
from cmdlog.member.member_ground import MemberState
from cmdlog.node.assembly import MACHINE
from cmdlog.node.boot import OtherApplication
from cmdlog.node.node import Node
from cmdlog.node.outcome import NotLeading, NotReady
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.messages import Campaign, VoteRequest
from cmdlog.wal.errors import Foreign, Locked
from cmdlog.wal.ids import CLUSTER_GROUP, Index, PartitionId, Term
from cmdlog.wal.log import Log
from procedures.samples.bank import db as bank
from snapshot.errors import PointRefused
from tests.member.members import Members, a_cluster, ask_retried, leads, member_of, members, number_of, status_of
from tests.node.rig import ask, counters, send
from tests.waiting import wait_for

pytestmark = pytest.mark.slow  # sites and sockets


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Members]:
    """A cluster of one node, which is not opened."""
    with members(tmp_path, monkeypatch) as made:
        yield made


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Members]:
    """Three nodes that run. A test leaves them so."""
    with pytest.MonkeyPatch.context() as patch, members(tmp_path_factory.mktemp("three"), patch, count=3) as made:
        made.join_all()
        yield made


def log_of(directory: Path) -> dict[int, Any]:
    """Of every group what its log ends with: term, vote, entries, code, commit."""
    log = Log.open(MACHINE.files, str(directory))
    try:
        groups = log.recovered.groups
        return {group: (state, groups.votes.get(group)) for group, state in groups.by_partition.items()}
    finally:
        log.close()


def refusals(node: Node) -> list[NotReady]:
    """What it answers to a call, a read and a query."""
    found = []
    for refused in (lambda: send(node, "bump", id=1, amount=1), lambda: send(node, "peek", id=1), lambda: counters(node)):
        with pytest.raises(NotReady) as told:
            refused()
        found.append(told.value)
    return found


def level(cluster: Members) -> object:
    """All nodes have committed and run the same; the newest index of each partition."""
    found = {
        tuple((part["committed"], part["applied"]) for part in node.status()["partitions"].values())
        for node in cluster.nodes.values()
    }
    return len(found) == 1 and all(committed == applied for committed, applied in next(iter(found))) and found


# -- a cluster of one ----------------------------------------------------------------------------------------------------------


def test_calls_wait_for_a_leader(alone: Members) -> None:
    """Before it has one a node refuses calls, reads and queries by name; then it takes them."""
    node = alone.join(1, attached=False)
    assert member_of(node).state.value == "configuring"
    node.attach(None)
    alone.leader()
    assert member_of(node).state is MemberState.RUNNING
    assert ask(node, "bump", id=1, amount=3) == 3
    assert counters(node) == {1: 3}


def test_node_that_has_met_nobody_neither_answers_nor_votes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`no_quorum`, for calls, reads and queries; ticks of any number make it no candidate, and nobody gets its vote."""
    with members(tmp_path, monkeypatch, count=3) as made:
        node = made.join(1)
        member_of(node).events.on_tick(100)
        for group in (PartitionId(0), PartitionId(CLUSTER_GROUP)):
            wanted = VoteRequest(NodeId(2), NodeId(1), Term(5), Campaign.REAL, Index(9), Term(4))
            member_of(node).events.on_messages(NodeId(2), [(group, wanted)])
        assert [refusal.code for refusal in refusals(node)] == ["no_quorum"] * 3
        assert status_of(node)["leader"] is None
        assert status_of(node)["state"] == "configuring"
        made.close(1)
        assert {(state.term, vote) for state, vote in log_of(tmp_path / "n1").values()} == {(1, (1, None))}


def test_start_and_stop_write_nothing(alone: Members, tmp_path: Path) -> None:
    """A node that is opened, and closed before it speaks with anybody: the log says what it said."""
    alone.join_all()
    for number in range(5):
        ask(alone.leader(), "bump", id=number, amount=number)
    alone.close(1)
    before = log_of(tmp_path / "n1")
    alone.join(1, attached=False)
    alone.close(1)
    assert log_of(tmp_path / "n1") == before


def test_executed_calls_and_keys_survive_a_restart(alone: Members) -> None:
    """The key of a call finds its outcome, and nothing runs twice."""
    ask(alone.join_all(), "bump", key="k", id=1, amount=3)
    alone.close(1)
    node = alone.join_all()
    assert ask(node, "bump", key="k", id=1, amount=3) == 3
    assert counters(node) == {1: 3}


def test_recovery_points_are_refused(alone: Members) -> None:
    """The log of a cluster states none; nothing of it is logged."""
    node = alone.join_all()
    before = node.status()["partitions"]
    with pytest.raises(PointRefused, match="--until"):
        node.take_point()
    assert node.status()["partitions"] == before


def test_directory_that_does_not_fit_is_refused_and_freed(alone: Members) -> None:
    """Another cluster's file, another program: the lock is given back, so the right one opens."""
    alone.join(1, attached=False)
    with pytest.raises(Locked):
        alone.join(1, attached=False)
    alone.close(1)
    with pytest.raises(Foreign):
        alone.join(1, cluster=a_cluster())
    with pytest.raises(OtherApplication):
        alone.join(2, cluster=a_cluster(2), app=bank)
    assert member_of(alone.join_all()).state is MemberState.RUNNING


def test_log_is_held_where_no_mark_calls_it_committed(alone: Members) -> None:
    """The anchor follows the commit marks: segments come free while the node runs."""
    node = alone.join_all()
    ask(node, "bump", id=1, amount=1)
    wait_for(lambda: ANCHOR in node._wal.anchors.status())
    held = node._wal.anchors.status()[ANCHOR]["block"]
    ask(node, "bump", id=1, amount=1)
    wait_for(lambda: node._wal.anchors.status()[ANCHOR]["block"] > held)


# -- three nodes ---------------------------------------------------------------------------------------------------------------


def test_follower_refuses_queries_and_names_the_leader(three: Members) -> None:
    """What a follower has may be old; calls and reads go to the leader (`test_member_calls`)."""
    leader = three.leader()
    ask_retried(three.leader, "bump", key="named", id=5, amount=1)
    url = f"http://node{number_of(leader)}"

    def refusal(node: Node) -> NotReady:
        with pytest.raises(NotReady) as told:
            counters(node)
        return told.value

    for node in three.followers():
        wait_for(lambda node=node: refusal(node).more() == {"leader": url})  # type: ignore[misc]
        assert type(refusal(node)) is NotLeading


def test_leader_that_is_cut_off_answers_no_read(three: Members) -> None:
    """It may have been deposed: its reads end in a refusal. The others go on, and it follows when it is back."""
    old = three.leader()
    ask_retried(three.leader, "bump", key="before", id=7, amount=1)
    number = number_of(old)
    peers = {NodeId(m.node): m.peer for m in three.cluster.members if m.node != number}
    member_of(old).consensus.network.set_peers({})
    try:
        new = three.leader(other_than=number)
        assert ask_retried(lambda: new, "bump", key="meanwhile", id=7, amount=1) == 2
        with pytest.raises(NotReady):
            counters(old)
        three.wait_hurried(lambda: not leads(old))
    finally:
        member_of(old).consensus.network.set_peers(peers)
    wait_for(lambda: status_of(old)["leader"] == number_of(three.leader()) != number, why=three.told)
    wait_for(lambda: level(three), why=three.told)
