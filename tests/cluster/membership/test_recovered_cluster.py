"""A directory that a recovery made is the first member of a new cluster, and other nodes join it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import cmdlog
from cmdlog.cluster.cluster_file import ClusterFile, MemberAddress
from cmdlog.cluster.membership.recovered_cluster import NotRecovered, recovered_cluster
from cmdlog.node.assembly import MACHINE
from cmdlog.node.node import Node
from cmdlog.wal.ids import CLUSTER_GROUP
from replay.errors import NotSoleVoter
from replay.log.collect_evidence import gather
from replay.plan.cluster_planner import make_joint_plan
from replay.recover.from_cluster import rebuild_jointly
from tests.commands import Command
from tests.member.members import Members, ask_retried, free_addresses, leads, member_of, members
from tests.node.apps.faulty import db
from tests.node.rig import counters
from tests.waiting import wait_for

pytestmark = pytest.mark.slow  # sites and sockets

FILES = MACHINE.files


def recovered(cluster: Members, *nodes: int) -> tuple[str, ClusterFile]:
    """What these nodes' directories give, and its file."""
    out = str(cluster.folder / "out")
    plan = make_joint_plan(FILES, [str(cluster.folder / f"n{node}") for node in nodes])
    rebuild_jointly(plan, FILES, out, workers=0)
    node = gather(FILES, out).node_id
    return out, recovered_cluster(FILES, out, MemberAddress(node, free_addresses(1)[0], "http://again"))


def join_another(cluster: Members, leader: Node, number: int) -> None:
    """An operator adds a node; it copies what the cluster has, and votes."""
    (peer,) = free_addresses(1)
    member_of(leader).membership.request("add", number, peer=f"{peer[0]}:{peer[1]}", client="http://another")
    cluster.cluster = replace(cluster.cluster, members=(*cluster.cluster.members, MemberAddress(number, peer, "http://another")))
    cluster.join(number)
    wait_for(
        lambda: [row["seat"] for row in member_of(leader).membership.members()["members"] if row["node"] == number] == ["voter"]
    )


def test_it_takes_calls_as_a_member_and_keeps_its_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of three directories; the new cluster of one leads itself, also after a restart, and none of the old ones counts."""
    with members(tmp_path, monkeypatch, count=3) as cluster:
        cluster.join_all()
        ask_retried(cluster.leader, "bump", key="a", id=1, amount=5)
        wait_for(lambda: member_of(cluster.leader()).consensus.roll.version > 4)
        cluster.close_all()
        _, file = recovered(cluster, 1, 2)
        (first,) = file.nodes
        (tmp_path / "out").rename(tmp_path / "again")
        new = Members(tmp_path, count=1)
        new.cluster, new.folder, new.clock = file, tmp_path, cluster.clock
        (tmp_path / f"n{first}").rename(tmp_path / "old")
        (tmp_path / "again").rename(tmp_path / f"n{first}")
        node = new.join(first)
        new.wait_hurried(lambda: leads(node))
        assert ask_retried(lambda: node, "bump", key="b", id=1, amount=1) is not None
        assert counters(node) == {1: 6}
        wait_for(
            lambda: (
                member_of(node).consensus.roll.stated[first].incarnation == member_of(node).consensus.network.book.me.incarnation
            )
        )
        new.close(first)
        node = new.join(first)
        new.wait_hurried(lambda: leads(node))
        assert counters(node) == {1: 6}
        join_another(new, node, 7)
        new.close_all()
        uses = make_joint_plan(FILES, [str(tmp_path / name) for name in (f"n{first}", "old")], accept_data_loss=True)
        chosen = {choice.group: choice.chosen for choice in uses.choices}
        assert chosen[CLUSTER_GROUP] == str(tmp_path / f"n{first}")


def test_only_what_a_recovery_made_becomes_a_member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member of several is refused, and so are a node alone as it was begun, and another node's number."""
    with members(tmp_path, monkeypatch, count=3) as cluster:
        cluster.join_all()
        ask_retried(cluster.leader, "bump", key="a", id=1, amount=5)
        cluster.close_all()
        with pytest.raises(NotSoleVoter):
            recovered_cluster(FILES, str(tmp_path / "n1"), MemberAddress(1, ("h", 1), "http://h"))
        out, file = recovered(cluster, 1, 2, 3)
        with pytest.raises(NotRecovered, match="not node 9"):
            recovered_cluster(FILES, out, MemberAddress(9, ("h", 1), "http://h"))
        assert (file.database, file.shape["partitions"], len(file.members)) == (cluster.app.name, 2, 1)


def test_the_command_writes_the_file_of_one_node(tmp_path: Path, command: Command) -> None:
    """What `recover --to` made of a node alone; the original itself is refused, and so is a second member."""
    made, out, file = tmp_path / "made", tmp_path / "out", tmp_path / "cluster.json"
    with cmdlog.open(str(made), db, partitions=2) as node:
        assert node.call("bump", id=1, amount=4)
    base = ["cluster", "init", "tests.node.apps.faulty:db", "--to", file, "--cluster-secret-file", tmp_path / "secret"]
    one = ["--member", "1=127.0.0.1:7000,http://127.0.0.1:8000"]
    assert command("recover", made, "--to", out)[0] == 0
    code, told = command.text(*base, *one, "--from", made)
    assert (code, "recover" in told) == (2, True), told
    code, told = command.text(*base, *one, "--member", "2=127.0.0.1:7001,http://127.0.0.1:8001", "--from", out)
    assert (code, "cluster join" in told) == (2, True), told
    code, told = command.text(*base, *one, "--from", out)
    assert code == 0, told
    found = ClusterFile.load(file)
    assert (found.nodes, found.shape["partitions"], found.database) == ((1,), 2, db.name)
    assert str(out) in told
