"""Nodes of the demo's cluster: who leads, when they are level, and that none outlives the demo, not even one that is stopped."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.demo import cluster_nodes
from cmdlog.cli.demo.cluster_nodes import PORTS, DemoCluster, LeadingNode, free_ports
from cmdlog.wal.ids import CLUSTER_GROUP
from tests.waiting import wait_for

APP = "procedures.samples.bank:db"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DemoCluster]:
    """Three nodes that were not started; a test waits for them as briefly as it can."""
    monkeypatch.setattr(cluster_nodes, "run_command", lambda *_, **__: ({}, 0.0))
    monkeypatch.setattr(cluster_nodes, "POLL_S", 0.001)
    monkeypatch.setattr(cluster_nodes, "PATIENCE_S", 0.01)
    made = DemoCluster(tmp_path, application=APP, partitions=2)
    yield made
    made.close()


def say(monkeypatch: pytest.MonkeyPatch, cluster: DemoCluster, told: dict[int, dict[str, Any]]) -> None:
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


def test_leader_of_the_newest_term_leads(cluster: DemoCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that cannot hear the others may believe for a while that it does; others do not count."""
    say(monkeypatch, cluster, {1: member(1, "leading", 3), 2: member(2, "leading", 4), 3: member(3, "taking_over", 5)})
    assert cluster.wait_leader() == LeadingNode(term=4, node=2)


def test_cluster_without_a_leader_is_an_error(cluster: DemoCluster, monkeypatch: pytest.MonkeyPatch) -> None:
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
    cluster: DemoCluster, monkeypatch: pytest.MonkeyPatch, third: dict[str, Any]
) -> None:
    """Whatever the third one lacks, they are not."""
    same = positions((5, 5), (7, 7))
    say(monkeypatch, cluster, {1: same, 2: same, 3: same})
    assert cluster.wait_level() == {"0": (5, 5), "1": (7, 7)}
    say(monkeypatch, cluster, {1: same, 2: same, 3: third})
    with pytest.raises(CommandFailed, match="do not agree"):
        cluster.wait_level()


@pytest.mark.slow
def test_real_nodes_are_paused_killed_and_ended(tmp_path: Path) -> None:
    """A node that is alone waits for the others; stopped, it answers nothing, and its end needs no answer of it."""
    cluster = DemoCluster(tmp_path, application=APP, partitions=1)
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
    cluster = DemoCluster(tmp_path, application=APP, partitions=1)
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
