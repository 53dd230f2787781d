"""The judgement of a cluster: what each finding needs, whose word counts, and the exit code."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from cmdlog.cli.cluster.cluster_health import LAG_S_MAX, PartitionLag, Verdict, judge_cluster, member_findings, warn_of_history
from cmdlog.wal.ids import MILLIS_SHIFT
from tests.api.fake_desk import a_member


def a_group(node: int, *, last: int = 10, applied: int | None = None, lag_s: float | None = None, **more: Any) -> dict[str, Any]:
    """One partition, as the node has it; node 1 leads."""
    run = last if applied is None else applied
    return {
        "term": 4, "leader": 1, "last": last, "applied": run, "lag_entries": last - run, "lag_s": lag_s,
        "role": "leader" if node == 1 else "follower", "peers": [], **more,
    }  # fmt: skip


def a_node(node: int, **changed: Any) -> dict[str, Any]:
    """A healthy one."""
    return {
        "node": node, "url": f"http://node{node}", "state": "running", "standing": "leading" if node == 1 else "following",
        "leader": 1, "groups": {"0": a_group(node)}, "partitions": {"0": {"state": "ok"}}, "diverged": {}, "too_far_back": [],
        "cluster_id": "c", "log": {"fill": 0.1}, "peers": [], **changed,
    }  # fmt: skip


def gone(node: int, state: str = "unreachable") -> dict[str, Any]:
    """One that said nothing."""
    return {"node": node, "url": f"http://node{node}", "state": state, "error": "no answer"}


def told(*nodes: dict[str, Any]) -> tuple[Verdict, list[tuple[str, int | None]]]:
    """The verdict, and each finding's code and node."""
    health = judge_cluster(nodes)
    orjson.dumps(health.to_json())
    return health.verdict, [(finding.code, finding.node) for finding in health.findings]


def test_cluster_without_findings_is_healthy() -> None:
    """Who leads and the newest term are named."""
    assert told(a_node(1), a_node(2), a_node(3)) == (Verdict.HEALTHY, [])
    health = judge_cluster([a_node(1), a_node(2)])
    assert (health.leader, health.term) == (1, 4)


def test_exit_codes_tell_the_verdicts_apart() -> None:
    """None is one of the program's other codes."""
    assert [verdict.exit_code for verdict in Verdict] == [0, 18, 19]


FROZEN = {"site": None, "kind": "drill", "message": "restore drill: no progress for 86 s"}
LONG_CALL = {"site": 0, "kind": "call", "message": "put has run for 2 s"}
PEER = {"node": 3, "connected_since_s": None, "last_error": "refused"}


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"state": "configuring", "leader": None}, "not_running"),
        ({"leader": 3}, "disagrees"),
        ({"diverged": {"0": 41}}, "diverged"),
        ({"too_far_back": [0]}, "too_far_back"),
        ({"unfit": ["log_full"]}, "unfit"),
        ({"partitions": {"0": {"state": "disk_full"}}}, "partition_refuses"),
        ({"log": {"fill": 0.95}}, "log_nearly_full"),
        ({"stalled": [LONG_CALL, FROZEN]}, "stalled"),
        ({"peers": [PEER]}, "not_connected"),
        ({"peers": [PEER], "went_back": [3], "state": "diverged"}, "diverged"),
        ({"peers": [PEER], "went_back": [3], "state": "diverged", "leader": None}, "diverged"),
    ],
)
def test_each_trouble_of_a_node_is_a_finding_of_its_own(changed: dict[str, Any], code: str) -> None:
    """The cluster still takes calls, so it is degraded."""
    assert told(a_node(1), a_node(2, **changed), a_node(3)) == (Verdict.DEGRADED, [(code, 2)])


def test_node_that_is_gone_is_one_finding() -> None:
    """That others do not reach it either says nothing new."""
    assert told(a_node(1, peers=[PEER]), a_node(2), gone(3)) == (Verdict.DEGRADED, [("unreachable", 3)])
    assert told(a_node(1), a_node(2), gone(3, "bootstrapping")) == (Verdict.DEGRADED, [("not_running", 3)])


def test_without_a_leader_the_cluster_is_unavailable() -> None:
    """Whatever else holds; a node that is taking over is named."""
    waits = {"standing": "following", "state": "configuring", "leader": None}
    verdict, found = told(a_node(1, **waits), gone(2), gone(3))
    assert verdict is Verdict.UNAVAILABLE
    assert found == [("no_leader", None), ("not_running", 1), ("unreachable", 2), ("unreachable", 3)]
    health = judge_cluster([a_node(1, standing="taking_over"), a_node(2)])
    assert [finding.text for finding in health.findings] == ["no node takes calls; node 1 is taking over"]


def test_a_leader_that_only_other_nodes_reach_is_named() -> None:
    """It may take calls: the one that asks lacks its credential, or does not trust its certificate."""
    health = judge_cluster([gone(1), a_node(2)])
    assert health.verdict is Verdict.UNAVAILABLE
    assert "node 1, which leads for node 2, gave no status" in health.findings[0].text
    assert health.verdict is Verdict.UNAVAILABLE


def test_of_two_leaders_the_one_in_the_later_term_counts() -> None:
    """The other was cut off, and does not know yet."""
    late = a_node(2, standing="leading", leader=2, groups={"0": a_group(2, term=5)})
    health = judge_cluster([a_node(1), late, a_node(3, leader=2)])
    assert (health.leader, health.term, health.verdict) == (2, 5, Verdict.DEGRADED)
    assert [(finding.code, finding.node) for finding in health.findings] == [("two_leaders", None), ("disagrees", 1)]


def test_nodes_of_two_clusters_are_told_apart() -> None:
    """URLs of two clusters on one command line."""
    assert told(a_node(1), a_node(2, cluster_id="d")) == (Verdict.DEGRADED, [("other_cluster", None)])


def test_lag_is_measured_against_the_leaders_last_entry() -> None:
    """A node that is cut off knows nothing of what it lacks; the leader knows its age."""
    peers = [{"node": 2, "lag_entries": 5, "lag_s": 2.5}, {"node": 3, "lag_entries": 7, "lag_s": 3.5}]
    leader = a_node(1, groups={"0": a_group(1, last=20, peers=peers)})
    waits = a_node(2, groups={"0": a_group(2, last=20, applied=16, lag_s=1.5)})
    cut = a_node(2, groups={"0": a_group(2, last=15)})
    assert judge_cluster([leader, waits]).lags[2] == {"0": PartitionLag(4, 1.5)}
    assert judge_cluster([leader, cut]).lags[2] == {"0": PartitionLag(5, 2.5)}
    assert judge_cluster([leader, gone(3)]).lags[3] == {"0": PartitionLag(7, 3.5, "leader")}
    assert judge_cluster([leader, a_node(2, groups={"0": a_group(2, last=20)})]).lags[2] == {"0": PartitionLag(0, 0.0)}


def test_without_a_leader_the_longest_log_is_the_measure() -> None:
    """Of a node that was not reached nothing is known then."""
    waits = {"standing": "following"}
    one = a_node(1, groups={"0": a_group(1, last=20)}, **waits)
    lags = judge_cluster([one, a_node(2, groups={"0": a_group(2, last=15)}, **waits), gone(3)]).lags
    assert (lags[2], lags[3]) == ({"0": PartitionLag(5, None)}, {})


def test_only_an_old_lag_is_a_finding() -> None:
    """Entries come and go by thousands under load."""
    for seconds, found in ((LAG_S_MAX, []), (LAG_S_MAX + 1, [("lags", 2)])):
        assert told(a_node(1), a_node(2, groups={"0": a_group(2, applied=1, lag_s=seconds)}))[1] == found


def test_older_server_is_judged_by_what_it_says() -> None:
    """Without entries there are no lags, and that is no finding."""
    old = {
        "node": 1, "url": "u", "state": "running", "standing": "leading", "leader": 1, "groups": {"0": {"term": 1}},
        "partitions": {"0": {}},
    }  # fmt: skip
    health = judge_cluster([old])
    assert (health.verdict, health.lags) == (Verdict.HEALTHY, {1: {}})


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
