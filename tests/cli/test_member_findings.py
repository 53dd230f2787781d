"""Findings about members: failures, changes that wait, last copies; a change that makes progress is none."""

from __future__ import annotations

from typing import Any

import pytest

from cmdlog.cli.cluster.cluster_health import Verdict, judge_cluster
from cmdlog.cli.cluster.member_findings import member_findings, warn_of_history
from cmdlog.wal.ids import MILLIS_SHIFT
from tests.api.fake_desk import a_member
from tests.cli.test_cluster_health import a_group, a_node, gone

NOW_MS = 1_000_000_000
DAY_S = 86_400.0
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


def reach(node: int, days_back: float | None, *, window_s: float = 30 * DAY_S) -> dict[str, Any]:
    """A node that can restore so many days; None: no moment. A thousand are the beginning."""
    if days_back is None:
        return {"node": node, "history": {"window_s": window_s, "oldest_txn": None, "oldest_time": None}}
    millis = 0 if days_back == 1000 else NOW_MS - int(days_back * DAY_S * 1000)
    time = f"{days_back:g} days ago" if millis else None
    return {"node": node, "history": {"window_s": window_s, "oldest_txn": str(millis << MILLIS_SHIFT), "oldest_time": time}}


SILENT = {"node": 3, "state": "unreachable"}


@pytest.mark.parametrize(
    ("rows", "warned"),
    [
        ([reach(1, 5), reach(2, 5), reach(3, 5)], False),
        ([reach(1, 5), reach(2, 1), reach(3, 5)], False),
        ([reach(1, 5), reach(2, 1), reach(3, 2)], True),
        ([reach(1, 5), reach(2, 1), SILENT], True),
        ([reach(1, 5), reach(2, None), reach(3, None)], True),
        ([reach(1, 1000), reach(2, 1), reach(3, 1)], True),
        (
            [reach(1, 1000, window_s=DAY_S), reach(2, 2, window_s=DAY_S), reach(3, 1)],
            False,
        ),  # beyond the window nothing is promised
        ([reach(1, 1), reach(2, 5), SILENT], False),
        ([reach(1, None), reach(2, None)], False),
        ([reach(1, 5, window_s=0.0), reach(2, 1)], False),
        ([{"node": 1, "state": "unreachable"}, reach(2, 1)], False),
    ],
)
def test_last_one_with_the_promised_past_is_named(rows: list[dict[str, Any]], warned: bool) -> None:
    """Whether another node that answers can restore as much of what is promised."""
    found = warn_of_history("replace", 1, rows, now_millis=NOW_MS)
    assert [warning.startswith("last_history: ") for warning in found] == [True] * warned


def test_only_who_goes_takes_the_past_along() -> None:
    """Neither a node that comes nor one that is given the leadership."""
    rows = [reach(1, 5), reach(2, 1)]
    warned = [
        kind for kind in ("add", "remove", "replace", "retire", "transfer") if warn_of_history(kind, 1, rows, now_millis=NOW_MS)
    ]
    assert warned == ["remove", "replace", "retire"]
