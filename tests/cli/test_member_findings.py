"""Findings about members: failures, changes that wait, last copies; a change that makes progress is none."""

from __future__ import annotations

from typing import Any

from cmdlog.cli.cluster.cluster_health import Verdict, judge_cluster
from cmdlog.cli.cluster.member_findings import member_findings
from tests.api.fake_desk import a_member
from tests.cli.test_cluster_health import a_group, a_node, gone

ALL = [a_member(1), a_member(2), a_member(3)]


def codes(nodes: list[dict[str, Any]]) -> list[tuple[str, int | None]]:
    """Each finding's code and node."""
    return [(finding.code, finding.node) for finding in judge_cluster(nodes).findings]


def test_declared_failure_is_named_with_its_number() -> None:
    """Beside the node's own silence."""
    failures = {"sequence": 7, "nodes": [3], "history": []}
    nodes = [a_node(1, members=ALL, version=2, failure_set=failures), a_node(2, members=ALL, version=1), gone(3)]
    assert codes(nodes) == [("unreachable", 3), ("declared_failed", 3)]
    (finding,) = member_findings(nodes, nodes[0])
    assert "failure set 7" in finding.text


def test_fault_log_that_cannot_be_read_is_a_finding() -> None:
    """Then it is unknown who failed."""
    assert codes([a_node(1, failure_set={"sequence": None, "nodes": [], "problem": "two copies differ"})]) == [("fault_log", 1)]


def test_node_on_its_way_need_not_answer_nor_be_level() -> None:
    """The cluster is healthy while a node copies; one that others do not reach yet is no finding either."""
    members = [*ALL[:2], a_member(3, "admitted")]
    peers = [{"node": 3, "connected_since_s": None, "last_error": "refused"}]
    lag = [{"node": 3, "lag_entries": 500, "lag_s": 60.0}]
    leader = a_node(1, members=members, groups={"0": a_group(1, last=900, peers=lag)}, peers=peers)
    nodes = [leader, a_node(2, groups={"0": a_group(2, last=900)}), gone(3, "bootstrapping")]
    assert (judge_cluster(nodes).verdict, codes(nodes)) == (Verdict.HEALTHY, [])
    leader["members"] = ALL
    assert codes(nodes) == [("not_running", 3), ("lags", 3)]


def test_node_that_has_not_been_started_is_a_finding() -> None:
    """A replaced node has no vote until then, so one failure less is survived, for ever if it is forgotten."""
    nodes = [a_node(1, members=[*ALL[:2], a_member(3, "expected")]), a_node(2), gone(3)]
    assert (judge_cluster(nodes).verdict, codes(nodes)) == (Verdict.DEGRADED, [("not_started", 3)])


def test_change_that_waits_says_why() -> None:
    """It needs somebody to look."""
    waits = {"operation": {"node": 4, "state": "expected"}, "waits": "node 4 has not asked yet"}
    assert codes([a_node(1, **waits)]) == [("change_waits", 4)]
    assert codes([a_node(1, **{**waits, "waits": ""})]) == []


def test_last_whole_copy_is_warned_of() -> None:
    """At the leader, which knows; a cluster of one node has no second copy to lose."""
    groups = {
        "0": a_group(1, whole=[1]),
        "1": a_group(1, whole=[1]),
        "2": a_group(1, whole=[1, 2]),
        "1022": a_group(1, whole=[1]),
    }
    nodes = [a_node(1, members=ALL[:2], groups=groups, partitions={})]
    (finding,) = judge_cluster(nodes).findings
    assert (finding.code, finding.node) == ("last_copy", 1)
    assert "all of partitions 0, 1" in finding.text
    assert codes([{**nodes[0], "members": ALL[:1]}]) == []
    (only,) = member_findings([], {"members": ALL, "groups": {"1022": {"whole": [2]}}})
    assert "all of the cluster's own group" in only.text
