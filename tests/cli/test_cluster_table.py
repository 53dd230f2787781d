"""The cluster on a terminal: verdict first, then what is wrong, a row per node, a row per partition."""

from __future__ import annotations

import io

from rich.console import Console

from cmdlog.cli.cluster.cluster_health import judge_cluster
from cmdlog.cli.cluster.cluster_table import (
    PARTITIONS_SHOWN,
    SETS_SHOWN,
    cluster_table,
    headline,
    lag_rows,
    member_lines,
    node_row,
)
from cmdlog.wal.ids import CLUSTER_GROUP
from tests.api.fake_desk import COPY, a_member
from tests.cli.test_cluster_health import a_group, a_node, gone


def test_row_of_a_node_says_state_role_and_lag() -> None:
    """The leader by the cluster's word; of a node that is gone what the leader knows."""
    peers = [{"node": 3, "lag_entries": 7, "lag_s": 3.55}]
    nodes = [
        a_node(1, groups={"0": a_group(1, last=20, peers=peers)}),
        a_node(2, groups={"0": a_group(2, last=20, applied=18)}),
        gone(3),
    ]
    health = judge_cluster(nodes)
    assert [node_row(node, health, "voter") for node in nodes] == [
        ["1", "http://node1", "running", "voter", "leader", "1", "4", "10%", "0"],
        ["2", "http://node2", "running", "voter", "follower", "1", "4", "10%", "2 / -"],
        ["3", "http://node3", "unreachable", "voter", "", "", "", "", "7 / 3.5"],
    ]
    assert node_row({**gone(3), "node": None}, health)[0] == "?"
    assert lag_rows(health) == (["partition", "node 1", "node 2", "node 3"], [["0", "0", "2 / -", "7 / 3.5"]])


def test_role_is_what_the_node_is_for_clients() -> None:
    """One that was elected takes over first; one that campaigns says so."""
    for changed, role in (
        ({"standing": "taking_over"}, "taking over"),
        ({"standing": "following", "groups": {str(CLUSTER_GROUP): {"term": 1, "role": "pre_candidate"}}}, "pre candidate"),
        ({"standing": "following", "groups": {str(CLUSTER_GROUP): {"term": 1, "role": "leader"}}}, "follower"),
    ):
        node = a_node(2, partitions={}, **changed)
        assert node_row(node, judge_cluster([node]))[4] == role


def test_partitions_that_lag_most_are_shown_of_many() -> None:
    """A terminal has so many lines."""
    count = PARTITIONS_SHOWN + 10
    groups = {str(n): a_group(2, applied=10 if n < count - 1 else 3, lag_s=20.0) for n in range(count)}
    leader = a_node(1, groups={str(n): a_group(1) for n in range(count)}, partitions={str(n): {} for n in range(count)})
    _, rows = lag_rows(judge_cluster([leader, a_node(2, groups=groups)]))
    assert len(rows) == PARTITIONS_SHOWN
    assert rows[0] == [str(count - 1), "0", "7 / 20.0!"]
    assert rows[1][0] == "0"


def test_whole_picture_has_verdict_findings_and_tables() -> None:
    """What a terminal of 120 columns shows."""
    nodes = [a_node(1), gone(2)]
    health = judge_cluster(nodes)
    written = io.StringIO()
    Console(width=120, file=written).print(cluster_table(health, nodes))
    shown = written.getvalue()
    first, second = shown.splitlines()[:2]
    assert (first.strip(), second.strip()) == ("degraded: node 1 leads, term 4", "node 2 is unreachable: no answer")
    assert "Lag by partition" in shown
    assert headline(judge_cluster([gone(1)])) == "unavailable: no leader"
    assert lag_rows(judge_cluster([gone(1)]))[1] == []


def test_members_changes_and_failure_sets_have_lines() -> None:
    """What happens to members, who is gone, and the newest of the failure sets."""
    members = [a_member(1), a_member(2, "removed"), a_member(4, "admitted")]
    history = [
        {"sequence": n, "failed": [3] if n % 2 else [], "reason": "silent" if n % 2 else ""} for n in range(1, SETS_SHOWN + 2)
    ]
    leader = a_node(
        1,
        members=members,
        operation={"node": 4, "state": "admitted"},
        copying={"copies": [COPY]},
        failure_set={"nodes": [], "history": history},
    )
    assert member_lines([leader, gone(4, "bootstrapping")]) == [
        "in progress: node 4, admitted", "copy to node 4: copying 40 %, 0.0 MiB/s, 6 s left", "removed: node 2",
        "failure set 2: none", "failure set 3: 3 (silent)",
        "failure set 4: none", "failure set 5: 3 (silent)", "failure set 6: none",
    ]  # fmt: skip
    assert member_lines([a_node(1), gone(2)]) == []
    written = io.StringIO()
    nodes = [leader, gone(4, "bootstrapping")]
    Console(width=120, file=written).print(cluster_table(judge_cluster(nodes), nodes))
    assert "copying 40 %" in written.getvalue()
