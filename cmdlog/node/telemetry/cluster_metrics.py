"""Rows of the table of metrics; those of a node that is one of several, and the samples of one reading.

One rule: a reading is what `/v1/status` shows under `cluster`; nothing is asked for metrics alone. A node alone has no samples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from cmdlog.node.telemetry.stage_timings import SECONDS, Histogram
from cmdlog.wal.ids import CLUSTER_GROUP

Kind = Literal["counter", "gauge", "histogram"]
Samples = Iterable[tuple[Sequence[str], Any]]  # label values, and a number or a Histogram
FIRST_REASON: Final = "election_timeout"  # of elections: a rate needs its zero
SETTLED: Final = "member"  # states of a member
REMOVED: Final = "removed"
FORWARDED: Final = {"out": "sent", "in": "taken"}
FORWARDED_NOW: Final = {"out": "waiting", "in": "placed"}


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One metric of the table."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    meaning: str
    bounds: Sequence[float] = ()  # of a histogram's buckets


def counter_row(name: str, meaning: str, *labels: str) -> MetricRow:
    """A number that only grows."""
    return MetricRow(name, "counter", labels, meaning)


def gauge_row(name: str, meaning: str, *labels: str) -> MetricRow:
    """A number of this moment."""
    return MetricRow(name, "gauge", labels, meaning)


def times_row(name: str, meaning: str, *labels: str) -> MetricRow:
    """A histogram of seconds."""
    return MetricRow(name, "histogram", labels, meaning, SECONDS)


CLUSTER_METRICS: Final[tuple[MetricRow, ...]] = (
    gauge_row("cmdlog_cluster_state", "1 for the state of this member: configuring or running", "state"),
    gauge_row("cmdlog_cluster_leader", "number of the node that leads, as this one knows; 0: none"),
    gauge_row("cmdlog_cluster_takes_calls", "1 while this node leads and takes calls"),
    gauge_row("cmdlog_cluster_role", "1 for the role of this node in the group (a partition, or cluster)", "group", "role"),
    gauge_row("cmdlog_cluster_term", "term of the group", "group"),
    gauge_row("cmdlog_cluster_commit_index", "last entry of the group that is known here to be committed", "group"),
    gauge_row("cmdlog_cluster_lag_entries", "entries of the group that the leader has and this node has not applied", "group"),
    gauge_row("cmdlog_cluster_lag_seconds", "age of the oldest call among them; absent: its age is not known here", "group"),
    gauge_row("cmdlog_cluster_peer_lag_entries", "at a leader: entries that the peer has not on disk", "peer", "group"),
    gauge_row("cmdlog_cluster_peer_lag_seconds", "at a leader: age of the oldest call among them", "peer", "group"),
    gauge_row("cmdlog_cluster_peer_silent_seconds", "at a leader: time since the peer last said anything, in any group", "peer"),
    counter_row("cmdlog_cluster_elections_total", "campaigns that this node began, of any group", "reason"),
    counter_row("cmdlog_cluster_leader_changes_total", "changes of the cluster's leader that this node saw, losses included"),
    times_row("cmdlog_cluster_takeover_seconds", "from the beginning of this node's campaign until it took calls"),
    gauge_row("cmdlog_cluster_diverged", "1 while it is stopped: a batch did something else than on the leader", "partition"),
    gauge_row("cmdlog_cluster_went_back", "1 while this directory is older than what the peer has met of it", "peer"),
    gauge_row("cmdlog_cluster_too_far_back", "1 while this node lacks entries of the group that no log holds", "group"),
    gauge_row("cmdlog_cluster_members", "members by state; removed ones are no members", "state"),
    gauge_row("cmdlog_cluster_member", "1 for a member in its state and seat (voter, learner or none)", "node", "state", "seat"),
    gauge_row("cmdlog_cluster_version", "index of the newest committed entry about members, as this node knows"),
    gauge_row("cmdlog_cluster_change_under_way", "1 while a change of this member is under way", "node"),
    gauge_row("cmdlog_cluster_failure_set_sequence", "number of the failure set in force; 0: no node was ever declared failed"),
    gauge_row("cmdlog_cluster_failed", "1 for each node that is declared failed", "node"),
    gauge_row("cmdlog_cluster_whole_copies", "at a leader of several nodes: those that answer and hold all committed", "group"),
    gauge_row("cmdlog_cluster_copies", "copies of this node's data to other nodes that are under way"),
    gauge_row("cmdlog_cluster_copy_ratio", "share of the copy to this node that is sent", "node"),
    gauge_row("cmdlog_cluster_copy_bytes_per_second", "rate of the copy to this node", "node"),
    gauge_row("cmdlog_cluster_copy_left_seconds", "time that the copy to this node still takes; absent: not known", "node"),
    gauge_row("cmdlog_cluster_unfit", "1 while the node should not lead, by reason", "reason"),
    counter_row("cmdlog_cluster_forwarded_calls_total", "calls sent to the node that leads, or taken from another", "direction"),
    gauge_row("cmdlog_cluster_forwarded_calls_waiting", "of them, those that are not answered yet", "direction"),
    counter_row("cmdlog_cluster_read_rounds_total", "questions to a majority whether this node still leads, for reads"),
    gauge_row("cmdlog_cluster_reads_waiting", "reads that wait for a majority to confirm the leader"),
    gauge_row("cmdlog_cluster_peer_connected", "1 while messages of this node can reach the peer", "peer"),
    counter_row("cmdlog_cluster_peer_connections_total", "connections made to the peer", "peer"),
    counter_row("cmdlog_cluster_peer_messages_total", "messages of consensus; out: to the peer", "peer", "direction"),
    counter_row("cmdlog_cluster_peer_bytes_total", "bytes of the connections with the peer", "peer", "direction"),
    counter_row("cmdlog_cluster_peer_dropped_messages_total", "messages that found no connection, or no room", "peer"),
    gauge_row("cmdlog_cluster_peer_queue_bytes", "bytes of messages that wait for the peer's connection", "peer"),
    gauge_row("cmdlog_cluster_peer_round_trip_seconds", "last measured round trip to the peer; absent before the first", "peer"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ClusterReading:
    """What a member says of its cluster at one moment."""

    status: Mapping[str, Any]  # `cluster` of `/v1/status`
    takeovers: Histogram


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberReadiness:
    """Whether a member serves calls, for `/readyz`."""

    serves: bool
    state: str
    role: str
    leader: str  # URL for clients; "" while none is known
    why: str = ""  # it does not serve

    def shown(self) -> dict[str, str]:
        """What goes with the answer."""
        return {"state": self.state, "role": self.role, **({"leader": self.leader} if self.leader else {})}


class MemberLook(Protocol):
    """What a member says of itself and its cluster; any thread."""

    def reading(self) -> ClusterReading: ...
    def readiness(self) -> MemberReadiness: ...


def cluster_samples(reading: ClusterReading) -> dict[str, Samples]:
    """Of every metric above."""
    told = reading.status
    groups = {group_label(group): of for group, of in told["groups"].items() if of}
    return {
        "cmdlog_cluster_state": [((told["state"],), 1)],
        "cmdlog_cluster_leader": [((), told["leader"] or 0)],
        "cmdlog_cluster_takes_calls": [((), int(told["standing"] == "leading"))],
        "cmdlog_cluster_role": [((group, of["role"]), 1) for group, of in groups.items()],
        "cmdlog_cluster_term": [((group,), of["term"]) for group, of in groups.items()],
        "cmdlog_cluster_commit_index": [((group,), of["commit"]) for group, of in groups.items()],
        "cmdlog_cluster_lag_entries": [((group,), of["lag_entries"]) for group, of in groups.items()],
        "cmdlog_cluster_lag_seconds": [((group,), seconds) for group, of in groups.items() for seconds in _seconds(of)],
        "cmdlog_cluster_elections_total": [((reason,), n) for reason, n in {FIRST_REASON: 0, **told["elections"]}.items()],
        "cmdlog_cluster_leader_changes_total": [((), told["leader_changes"])],
        "cmdlog_cluster_takeover_seconds": [((), reading.takeovers)],
        "cmdlog_cluster_diverged": [((partition,), 1) for partition in told["diverged"]],
        "cmdlog_cluster_went_back": [((str(peer),), 1) for peer in told["went_back"]],
        "cmdlog_cluster_too_far_back": [((group_label(group),), 1) for group in told["too_far_back"]],
        "cmdlog_cluster_unfit": [((reason,), 1) for reason in told["unfit"]],
        "cmdlog_cluster_forwarded_calls_total": [((way,), told["forwarding"][of]) for way, of in FORWARDED.items()],
        "cmdlog_cluster_forwarded_calls_waiting": [((way,), told["forwarding"][of]) for way, of in FORWARDED_NOW.items()],
        "cmdlog_cluster_read_rounds_total": [((), told["read_rounds"])],
        "cmdlog_cluster_reads_waiting": [((), sum(of["reads_waiting"] for of in groups.values()))],
        **_of_members(told),
        **_of_copies(told["copying"]["copies"]),
        "cmdlog_cluster_whole_copies": _of_whole_copies(told["members"], groups),
        **_of_followers(groups),
        **_of_peers({str(peer["node"]): peer for peer in told["peers"]}),
    }


def group_label(group: str | int) -> str:
    """A partition's number, or `cluster`."""
    return "cluster" if int(group) == CLUSTER_GROUP else str(group)


def _seconds(lag: Mapping[str, Any]) -> Iterator[float]:
    """None that lags has no age; one whose age is not known has no sample."""
    if not lag["lag_entries"]:
        yield 0.0
    elif lag["lag_s"] is not None:
        yield lag["lag_s"]


def _of_members(told: Mapping[str, Any]) -> dict[str, Samples]:
    """Who belongs to the cluster, and who has failed."""
    present = [member for member in told["members"] if member["state"] != REMOVED]
    states = Counter(member["state"] for member in present)
    operation, failures = told["operation"], told["failure_set"]
    return {
        "cmdlog_cluster_members": [((state,), count) for state, count in {SETTLED: 0, **states}.items()],
        "cmdlog_cluster_member": [((str(of["node"]), of["state"], of["seat"] or "none"), 1) for of in present],
        "cmdlog_cluster_version": [((), told["version"])],
        "cmdlog_cluster_change_under_way": [] if operation is None else [((str(operation["node"]),), 1)],
        "cmdlog_cluster_failure_set_sequence": [((), failures["sequence"])],
        "cmdlog_cluster_failed": [((str(node),), 1) for node in failures["nodes"]],
    }


def _of_whole_copies(members: Sequence[Mapping[str, Any]], groups: Mapping[str, Mapping[str, Any]]) -> Samples:
    """A cluster of one node has one copy, which is no news."""
    if sum(member["state"] != REMOVED for member in members) < 2:
        return []
    return [((group,), len(of["whole"])) for group, of in groups.items() if of["role"] == "leader"]


def _of_copies(copies: Sequence[Mapping[str, Any]]) -> dict[str, Samples]:
    """Those that this node gives; there is one to a node at a time."""
    by_node = {str(copy["node"]): copy for copy in copies}
    return {
        "cmdlog_cluster_copies": [((), len(copies))],
        "cmdlog_cluster_copy_ratio": [((node,), copy["percent"] / 100) for node, copy in by_node.items()],
        "cmdlog_cluster_copy_bytes_per_second": [((node,), copy["rate"]) for node, copy in by_node.items()],
        "cmdlog_cluster_copy_left_seconds": [
            ((node,), copy["left_s"]) for node, copy in by_node.items() if copy["left_s"] is not None
        ],
    }


def _of_followers(groups: Mapping[str, Mapping[str, Any]]) -> dict[str, Samples]:
    """As the leader of each group knows them."""
    known = [(str(peer["node"]), group, peer) for group, of in groups.items() for peer in of["peers"]]
    silent: dict[str, float] = {}
    for node, _, peer in known:
        if peer["silent_s"] is not None:
            silent[node] = min(peer["silent_s"], silent.get(node, peer["silent_s"]))
    return {
        "cmdlog_cluster_peer_lag_entries": [((node, group), peer["lag_entries"]) for node, group, peer in known],
        "cmdlog_cluster_peer_lag_seconds": [((node, group), s) for node, group, peer in known for s in _seconds(peer)],
        "cmdlog_cluster_peer_silent_seconds": [((node,), seconds) for node, seconds in silent.items()],
    }


def _of_peers(peers: Mapping[str, Mapping[str, Any]]) -> dict[str, Samples]:
    """The connections."""
    trips = {node: peer["round_trip_s"] for node, peer in peers.items() if peer["round_trip_s"] is not None}
    return {
        "cmdlog_cluster_peer_connected": [((node,), int(of["connected_since_s"] is not None)) for node, of in peers.items()],
        "cmdlog_cluster_peer_connections_total": [((node,), of["connections"]) for node, of in peers.items()],
        "cmdlog_cluster_peer_messages_total": _both_ways(peers, "messages"),
        "cmdlog_cluster_peer_bytes_total": _both_ways(peers, "bytes"),
        "cmdlog_cluster_peer_dropped_messages_total": [((node,), of["dropped_messages"]) for node, of in peers.items()],
        "cmdlog_cluster_peer_queue_bytes": [((node,), of["queue_bytes"]) for node, of in peers.items()],
        "cmdlog_cluster_peer_round_trip_seconds": [((node,), seconds) for node, seconds in trips.items()],
    }


def _both_ways(peers: Mapping[str, Mapping[str, Any]], what: str) -> Samples:
    return [((node, way), of[f"{way}_{what}"]) for node, of in peers.items() for way in ("in", "out")]
