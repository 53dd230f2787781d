"""Metrics of a cluster: every row of the table has samples, and they are what the status says."""

from __future__ import annotations

from typing import Any

import pytest

from cmdlog.node.telemetry.cluster_metrics import (
    CLUSTER_METRICS,
    ClusterReading,
    MetricRow,
    cluster_samples,
    counter_row,
    gauge_row,
    times_row,
)
from cmdlog.node.telemetry.stage_timings import SECONDS, Histogram
from cmdlog.wal.ids import CLUSTER_GROUP

PEER = {
    "node": 2, "connected_since_s": 5.0, "round_trip_s": 0.25, "connections": 3, "out_bytes": 10, "out_messages": 4,
    "in_bytes": 20, "in_messages": 5, "queue_bytes": 7, "dropped_messages": 6,
}  # fmt: skip


MEMBERS = [
    {"node": 1, "state": "member", "seat": "voter"}, {"node": 2, "state": "admitted", "seat": "learner"},
    {"node": 3, "state": "removed", "seat": ""}, {"node": 4, "state": "expected", "seat": ""},
]  # fmt: skip


def a_group(**changed: Any) -> dict[str, Any]:
    """One that is level, and has no peers."""
    return {
        "role": "follower",
        "term": 3,
        "commit": 9,
        "lag_entries": 0,
        "lag_s": None,
        "reads_waiting": 0,
        "whole": [],
        "peers": [],
        **changed,
    }


def samples(**changed: Any) -> dict[str, dict[tuple[str, ...], Any]]:
    """Metric -> label values -> value, of a node of a cluster of two."""
    told = {
        "state": "running", "standing": "leading", "leader": 1, "groups": {"0": a_group(), str(CLUSTER_GROUP): a_group(term=4)},
        "version": 12, "members": MEMBERS, "operation": None, "failure_set": {"sequence": 3, "nodes": []},
        "went_back": [2],
        "copying": {"copies": []}, "elections": {}, "leader_changes": 2, "diverged": {}, "too_far_back": [], "peers": [],
        "unfit": [], "read_rounds": 8, "forwarding": {"sent": 4, "waiting": 3, "taken": 2, "placed": 1}, **changed,
    }  # fmt: skip
    made = cluster_samples(ClusterReading(told, Histogram(SECONDS)))
    return {name: {tuple(labels): value for labels, value in of} for name, of in made.items()}


def test_every_row_has_samples_and_no_other_metric_is_made() -> None:
    """The table is what people read."""
    assert samples().keys() == {row.name for row in CLUSTER_METRICS}
    assert samples()["cmdlog_cluster_went_back"] == {("2",): 1}


@pytest.mark.parametrize(("standing", "leader", "takes"), [("leading", 1, 1), ("following", 2, 0), ("following", None, 0)])
def test_who_leads_and_whether_this_node_takes_calls(standing: str, leader: int | None, takes: int) -> None:
    """Alerts ask for it: 0 is nobody."""
    found = samples(standing=standing, leader=leader)
    assert (found["cmdlog_cluster_leader"], found["cmdlog_cluster_takes_calls"]) == ({(): leader or 0}, {(): takes})


def test_labels_name_partitions_and_the_cluster_group() -> None:
    """The number of the cluster group means nothing to people."""
    assert samples()["cmdlog_cluster_term"] == {("0",): 3, ("cluster",): 4}
    assert samples(too_far_back=[CLUSTER_GROUP, 1])["cmdlog_cluster_too_far_back"] == {("cluster",): 1, ("1",): 1}


@pytest.mark.parametrize(("entries", "seconds", "sample"), [(0, None, {("0",): 0.0}), (4, 1.5, {("0",): 1.5}), (4, None, {})])
def test_unknown_age_has_no_sample(entries: int, seconds: float | None, sample: dict[tuple[str, ...], float]) -> None:
    """An alert on it would otherwise see 0 where nobody knows."""
    found = samples(groups={"0": a_group(lag_entries=entries, lag_s=seconds)})
    assert found["cmdlog_cluster_lag_entries"] == {("0",): entries}
    assert found["cmdlog_cluster_lag_seconds"] == sample


def test_leader_shows_its_followers_and_the_shortest_silence() -> None:
    """A peer that speaks in one group lives."""
    peers = [{"node": 2, "lag_entries": 5, "lag_s": 0.5, "silent_s": silent} for silent in (0.7, 0.1, None)]
    found = samples(groups={str(n): a_group(role="leader", peers=[peer]) for n, peer in enumerate(peers)})
    assert found["cmdlog_cluster_peer_silent_seconds"] == {("2",): 0.1}
    assert found["cmdlog_cluster_peer_lag_entries"] == {("2", "0"): 5, ("2", "1"): 5, ("2", "2"): 5}
    assert found["cmdlog_cluster_peer_lag_seconds"]["2", "1"] == 0.5
    assert found["cmdlog_cluster_role"] == {(group, "leader"): 1 for group in "012"}


def test_connections_are_counted_both_ways() -> None:
    """Out is what this node says; before the first probe there is no round trip."""
    found = samples(peers=[PEER, {**PEER, "node": 3, "connected_since_s": None, "round_trip_s": None}])
    assert found["cmdlog_cluster_peer_connected"] == {("2",): 1, ("3",): 0}
    assert found["cmdlog_cluster_peer_round_trip_seconds"] == {("2",): 0.25}
    assert found["cmdlog_cluster_peer_messages_total"] == {("2", "in"): 5, ("2", "out"): 4, ("3", "in"): 5, ("3", "out"): 4}
    assert found["cmdlog_cluster_peer_bytes_total"]["2", "in"] == 20
    assert found["cmdlog_cluster_peer_connections_total"]["2",] == 3


def test_forwarded_calls_and_reasons_against_leading_are_shown() -> None:
    """What a follower sends is out; what a leader takes is in."""
    found = samples(unfit=["stuck"])
    assert found["cmdlog_cluster_forwarded_calls_total"] == {("out",): 4, ("in",): 2}
    assert found["cmdlog_cluster_forwarded_calls_waiting"] == {("out",): 3, ("in",): 1}
    assert found["cmdlog_cluster_read_rounds_total"] == {(): 8}
    assert found["cmdlog_cluster_unfit"] == {("stuck",): 1}


def test_members_are_counted_by_state_without_those_that_left() -> None:
    """Each one's seat has a series of its own."""
    found = samples()
    assert found["cmdlog_cluster_members"] == {("member",): 1, ("admitted",): 1, ("expected",): 1}
    seats = found["cmdlog_cluster_member"].keys()
    assert seats == {("1", "member", "voter"), ("2", "admitted", "learner"), ("4", "expected", "none")}
    assert (found["cmdlog_cluster_version"][()], found["cmdlog_cluster_change_under_way"]) == (12, {})
    assert samples(members=MEMBERS[1:])["cmdlog_cluster_members"]["member",] == 0
    under_way = samples(operation={"node": 2, "state": "admitted"})["cmdlog_cluster_change_under_way"]
    assert under_way == {("2",): 1}


def test_failure_set_has_its_number_and_nodes() -> None:
    """An alert names the node."""
    found = samples(failure_set={"sequence": 7, "nodes": [2, 3]})
    assert found["cmdlog_cluster_failure_set_sequence"] == {(): 7}
    assert found["cmdlog_cluster_failed"] == {("2",): 1, ("3",): 1}


def test_copies_show_share_rate_and_time_left() -> None:
    """Before the first bytes the time is not known, and has no sample."""
    copies = [{"node": 4, "percent": 40.0, "rate": 100, "left_s": 6.0}, {"node": 5, "percent": 0.0, "rate": 0, "left_s": None}]
    found = samples(copying={"copies": copies})
    assert found["cmdlog_cluster_copies"] == {(): 2}
    assert found["cmdlog_cluster_copy_ratio"] == {("4",): 0.4, ("5",): 0.0}
    assert found["cmdlog_cluster_copy_bytes_per_second"] == {("4",): 100, ("5",): 0}
    assert found["cmdlog_cluster_copy_left_seconds"] == {("4",): 6.0}


def test_whole_copies_are_the_leaders_word() -> None:
    """A follower does not know, and has no sample that an alert could take for none."""
    groups = {"0": a_group(role="leader", whole=[1, 2]), "1": a_group()}
    assert samples(groups=groups)["cmdlog_cluster_whole_copies"] == {("0",): 2}
    assert samples(groups=groups, members=MEMBERS[:1])["cmdlog_cluster_whole_copies"] == {}


def test_elections_have_a_zero_before_the_first() -> None:
    """A rate of a series that begins at 1 misses the first election."""
    assert samples()["cmdlog_cluster_elections_total"] == {("election_timeout",): 0}
    found = samples(elections={"election_timeout": 2, "transfer": 1})
    assert found["cmdlog_cluster_elections_total"] == {("election_timeout",): 2, ("transfer",): 1}


# -- Rows of the table of metrics are what their makers say


def test_rows_have_their_type_labels_and_buckets() -> None:
    """Only a histogram has buckets: those of all times."""
    assert counter_row("a_total", "what", "x", "y") == MetricRow("a_total", "counter", ("x", "y"), "what")
    assert gauge_row("a", "what") == MetricRow("a", "gauge", (), "what")
    assert times_row("a_seconds", "what") == MetricRow("a_seconds", "histogram", (), "what", SECONDS)
