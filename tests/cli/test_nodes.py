"""Nodes of a demo: who leads, when they are level, and that none outlives the demo, not even one that is stopped."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.demo import nodes
from cmdlog.cli.demo.nodes import PORTS, DemoNodes, LeadingNode, free_ports
from cmdlog.wal.ids import CLUSTER_GROUP
from tests.waiting import wait_for


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DemoNodes]:
    """Three nodes that were not started; a test waits for them as briefly as it can."""
    monkeypatch.setattr(nodes, "run_command", lambda *_, **__: ({}, 0.0))
    monkeypatch.setattr(nodes, "POLL_S", 0.001)
    monkeypatch.setattr(nodes, "PATIENCE_S", 0.01)
    made = DemoNodes(tmp_path, partitions=2, count=3)
    yield made
    made.close()


def say(monkeypatch: pytest.MonkeyPatch, cluster: DemoNodes, told: dict[int, dict[str, Any]]) -> None:
    """What each node says of itself."""
    monkeypatch.setattr(cluster, "status", lambda node: told.get(node, {}))


def member(node: int, standing: str, term: int) -> dict[str, Any]:
    """The part that names a leader."""
    return {
        "cluster": {"node": node, "standing": standing, "groups": {"0": {"term": 99}, str(int(CLUSTER_GROUP)): {"term": term}}}
    }


def positions(*of: tuple[int, int]) -> dict[str, Any]:
    """The part that says how far a node is."""
    return {"partitions": {str(n): {"committed": done, "applied": run} for n, (done, run) in enumerate(of)}}


def test_ports_are_not_those_of_connections() -> None:
    """A connection to a dead node could get its port by chance, and then nothing could listen there."""
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    found = free_ports(20)
    assert len(set(found)) == 20
    assert all(port in PORTS and port < max(low, PORTS.stop) for port in found)


def test_leader_of_the_newest_term_leads(cluster: DemoNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that cannot hear the others may believe for a while that it does; others do not count."""
    say(monkeypatch, cluster, {1: member(1, "leading", 3), 2: member(2, "leading", 4), 3: member(3, "taking_over", 5)})
    assert cluster.wait_leader() == LeadingNode(term=4, node=2)


def test_cluster_without_a_leader_is_an_error(cluster: DemoNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """After some time; nodes that do not answer lead nothing."""
    say(monkeypatch, cluster, {1: member(1, "following", 3)})
    with pytest.raises(CommandFailed, match="no node leads the cluster after"):
        cluster.wait_leader()


@pytest.mark.parametrize(
    "third",
    [{}, positions((5, 5), (7, 6)), positions((5, 5), (6, 6)), positions((5, 5))],
    ids=["silent", "not run", "lags", "partition missing"],
)  # fmt: skip
def test_nodes_are_level_when_all_have_run_the_same(
    cluster: DemoNodes, monkeypatch: pytest.MonkeyPatch, third: dict[str, Any]
) -> None:
    """Whatever the third one lacks, they are not."""
    same = positions((5, 5), (7, 7))
    say(monkeypatch, cluster, {1: same, 2: same, 3: same})
    assert cluster.wait_level() == {"0": (5, 5), "1": (7, 7)}
    say(monkeypatch, cluster, {1: same, 2: same, 3: third})
    with pytest.raises(CommandFailed, match="do not agree"):
        cluster.wait_level()


def members(leader: int | None, failed: list[int], **states: str) -> dict[str, Any]:
    """What node 1 says of the members."""
    stated = [{"node": int(name.removeprefix("n")), "state": state} for name, state in states.items()]
    return {"leader": leader, "failure_set": {"nodes": failed}, "members": stated}


@pytest.mark.parametrize(
    ("told", "votes"),
    [
        (members(1, [], n3="member"), True),
        (members(2, [], n3="member"), False),
        (members(1, [3], n3="member"), False),
        (members(1, [], n3="admitted"), False),
        (members(1, [], n2="member"), False),
        ({}, False),
    ],
    ids=["votes", "not the leader's word", "declared failed", "learns", "unknown", "silence"],
)
def test_node_votes_when_the_leader_says_so(
    cluster: DemoNodes, monkeypatch: pytest.MonkeyPatch, told: dict[str, Any], *, votes: bool
) -> None:
    """A member that nobody misses; a follower may not know it yet."""
    started: list[int] = []
    monkeypatch.setattr(cluster, "start", started.append)
    monkeypatch.setattr(cluster, "_read", lambda node, _path: told if node == 1 else {})
    if votes:
        cluster.start_voting(3)
    else:
        with pytest.raises(CommandFailed, match="node 3 does not vote"):
            cluster.start_voting(3)
    assert started == [3]


def test_node_that_joins_gets_its_own_cluster_file(cluster: DemoNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a member from then on; one that retires is none any more, and its process is ended."""
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(cluster, "_command", lambda *words: asked.append(words))
    monkeypatch.setattr(cluster, "kill", lambda *nodes: asked.append(("kill", *map(str, nodes))))
    cluster.add(4)
    assert list(cluster.nodes) == [1, 2, 3, 4]
    assert asked[0][:4] == ("join", "4", "--cluster", "cluster.json")
    cluster.retire(1)
    assert list(cluster.nodes) == [2, 3, 4]
    assert asked[1:] == [("retire", "1", "--wait"), ("kill", "1")]


@pytest.mark.slow
def test_real_nodes_are_paused_killed_and_ended(tmp_path: Path) -> None:
    """A node that is alone waits for the others; stopped, it answers nothing, and its end needs no answer of it."""
    cluster = DemoNodes(tmp_path, partitions=1, count=3)
    try:
        cluster.start(1, 2)
        pids = [pid for node in (1, 2) for pid in (cluster._servers[node].pid, *cluster.status(node)["sites"])]
        assert cluster.kill(2) == 2
        assert cluster.pause(1) == 2
        wait_for(lambda: [state_of(pid) for pid in pids] == ["T", "T", "", ""])
        assert cluster.status(1) == {}
        cluster.resume(1)
        assert cluster.status(1)["cluster"]["node"] == 1
        cluster.pause(1)
    finally:
        cluster.close()
    wait_for(lambda: not any(map(state_of, pids)))
    cluster.close()


@pytest.mark.slow
def test_node_that_exits_by_itself_is_named(tmp_path: Path) -> None:
    """With what it wrote, as soon as something is waited for."""
    cluster = DemoNodes(tmp_path, partitions=1, count=3)
    try:
        cluster.start(3)
        os.kill(cluster._servers[3].pid, signal.SIGKILL)
        wait_for(lambda: not cluster._servers[3].alive)
        with pytest.raises(CommandFailed, match="node 3 exited by itself"):
            cluster.wait_leader()
    finally:
        cluster.close()


def state_of(pid: int) -> str:
    """The letter of the kernel; "" when the process is gone or only waits for its parent."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if state == "Z" else state
