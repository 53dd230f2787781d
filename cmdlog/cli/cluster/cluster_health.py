"""What the nodes of a cluster report, taken together: whether it is healthy, and what is wrong.

One rule: nothing is asked here and nothing is shown; what each node reported of itself comes in, findings and a verdict go out. A
node that did not answer is judged by what the leader knows of it.

A change of the members that makes progress is no finding. One that waits, if only for the start of a node, a node that is
declared failed, and data of which one copy is left are findings.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from cmdlog.cli.cluster.members_view import Rows, expected_nodes, failed_nodes, newest_view, unsettled_nodes
from cmdlog.wal.ids import CLUSTER_GROUP

LAG_S_MAX: Final = 10.0  # a node that lags by more is no good successor: it runs all that before it takes calls
FILL_MAX: Final = 0.9
UNREACHABLE: Final = "unreachable"
BOOTSTRAPPING: Final = "bootstrapping"
RUNNING: Final = "running"
DIVERGED: Final = "diverged"
LEADING: Final = "leading"


class Verdict(enum.Enum):
    """The verdict on the whole cluster, with its exit code."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"  # calls are taken, and something needs an operator
    UNAVAILABLE = "unavailable"  # no node that was reached takes calls

    @property
    def exit_code(self) -> int:
        return {Verdict.HEALTHY: 0, Verdict.DEGRADED: 18, Verdict.UNAVAILABLE: 19}[self]


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """What one node has not applied of one partition. `seconds` None: the age is not known; `seen` names the source."""

    entries: int
    seconds: float | None
    seen: str = "node"  # "leader": of a node that was not reached, what it has not on disk


@dataclass(frozen=True, slots=True)
class ClusterHealth:
    """All nodes at about one moment."""

    verdict: Verdict
    leader: int | None
    term: int | None
    findings: Sequence[ClusterFinding]
    lags: Mapping[int, Mapping[str, PartitionLag]] = field(default_factory=dict)  # node -> partition

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "verdict": self.verdict.value,
            "leader": self.leader,
            "term": self.term,
            "findings": [asdict(finding) for finding in self.findings],
            "lag": {str(node): {of: asdict(lag) for of, lag in lags.items()} for node, lags in self.lags.items()},
        }


def judge_cluster(nodes: Sequence[Mapping[str, Any]]) -> ClusterHealth:
    """`nodes`: of each its `node`, `url` and `state`, and when it was reached the `cluster` part of its status with `partitions`,
    `ready` and `log`."""
    reached = [node for node in nodes if "groups" in node]
    leading = [node for node in reached if node.get("standing") == LEADING]
    leader = max(leading, key=_term_of, default=None)
    lags = _lags(nodes, leader, reached)
    silent, coming = {node["node"] for node in nodes if "groups" not in node}, unsettled_nodes(nodes)
    settled = [node for node in nodes if node["node"] not in coming]
    findings = [*_of_leaders(leading, reached), *(found for node in settled for found in _of_node(node, leader, silent | coming))]
    findings += [found for node, of in lags.items() if node not in coming for found in _of_lag(node, of)]
    findings += member_findings(nodes, leader)
    verdict = Verdict.UNAVAILABLE if leader is None else Verdict.DEGRADED if findings else Verdict.HEALTHY
    return ClusterHealth(
        verdict,
        None if leader is None else leader["node"],
        max(map(_term_of, reached), default=None),
        findings,
        lags,
    )


def _term_of(node: Mapping[str, Any]) -> int:
    return max((of["term"] for of in node["groups"].values()), default=0)


def _of_leaders(leading: Sequence[Mapping[str, Any]], reached: Sequence[Mapping[str, Any]]) -> Iterator[ClusterFinding]:
    if not leading:
        taking_over = [node["node"] for node in reached if node.get("standing") == "taking_over"]
        followed = next((node for node in reached if node["state"] in (RUNNING, DIVERGED) and node["leader"] is not None), None)
        why = f"; node {taking_over[0]} is taking over" if taking_over else ""
        if followed is not None and not taking_over:  # it may take calls still: only this machine may not reach it
            why = f", as far as can be seen: node {followed['leader']}, which leads for node {followed['node']}, gave no status"
        yield ClusterFinding("no_leader", f"no node takes calls{why}")
    if len(leading) > 1:
        names = " and ".join(str(node["node"]) for node in leading)
        yield ClusterFinding(
            "two_leaders", f"nodes {names} both report that they lead; the one in the lower term commits nothing"
        )
    if len({node.get("cluster_id") for node in reached}) > 1:
        yield ClusterFinding("other_cluster", "the nodes belong to different clusters")


def _of_node(node: Mapping[str, Any], leader: Mapping[str, Any] | None, silent: Collection[int]) -> Iterator[ClusterFinding]:
    number, state = node.get("node"), node["state"]
    name = f"node {number}" if number else node["url"]
    if "groups" not in node:
        yield ClusterFinding(
            state if state == UNREACHABLE else "not_running", f"{name} is {state}: {node.get('error', '')}", number
        )
        return
    if state not in (RUNNING, DIVERGED):
        yield ClusterFinding("not_running", f"{name} is {state}: it knows no leader", number)
    elif leader is not None and node["leader"] != leader["node"] and (state == RUNNING or node["leader"]):
        yield ClusterFinding("disagrees", f"{name} takes node {node['leader']} for the leader, not node {leader['node']}", number)
    for partition, index in node.get("diverged", {}).items():
        yield ClusterFinding(
            "diverged", f"{name} has another history or state than the leader: partition {partition}, entry {index}", number
        )
    for reason in node.get("unfit", ()):
        yield ClusterFinding("unfit", f"{name} should not lead: {reason.replace('_', ' ')}", number)
    for group in node.get("too_far_back", ()):
        yield ClusterFinding("too_far_back", f"{name} lacks entries of group {group} that no log holds: it needs a copy", number)
    for partition, of in node["partitions"].items():
        if of.get("state", "ok") != "ok":
            yield ClusterFinding("partition_refuses", f"partition {partition} of {name}: {of['state']}", number)
    if (fill := (node.get("log") or {}).get("fill", 0.0)) > FILL_MAX:
        yield ClusterFinding("log_nearly_full", f"the log of {name} is {fill:.0%} full", number)
    # of work in the background alone: a call that runs long is its caller's affair
    stalls = [stall["message"] for stall in node.get("stalled") or () if stall["site"] is None]
    yield from (ClusterFinding("stalled", f"{name}: {message}", number) for message in stalls)
    for peer in node.get("peers", ()):
        if peer["connected_since_s"] is None and peer["node"] not in {*silent, *node.get("went_back", ())}:
            yield ClusterFinding("not_connected", f"{name} does not reach node {peer['node']}: {peer['last_error']}", number)
    for peer in node.get("went_back", ()):
        why = f"the directory of {name} is older than what node {peer} has met of it, or a copy of it runs"
        remedy = f"it neither votes nor leads; keep a copy of it, then `cmdlog cluster replace {number}` with an empty directory"
        yield ClusterFinding("diverged", f"{why}: {remedy}", number)


def _of_lag(node: int, lags: Mapping[str, PartitionLag]) -> Iterator[ClusterFinding]:
    far = {partition: lag for partition, lag in lags.items() if (lag.seconds or 0.0) > LAG_S_MAX}
    if far:
        worst = max(far, key=lambda partition: far[partition].seconds or 0.0)
        by = f"{far[worst].entries} entries, {far[worst].seconds:.0f} s"
        text = f"node {node} lags: on partition {worst} by {by}; on {len(far)} in all"
        yield ClusterFinding("lags", text, node)


def _lags(
    nodes: Sequence[Mapping[str, Any]], leader: Mapping[str, Any] | None, reached: Sequence[Mapping[str, Any]]
) -> dict[int, dict[str, PartitionLag]]:
    """Against the leader's last entry, or without a leader the last one that any node has."""
    partitions = sorted({of for node in reached for of in node["partitions"]}, key=int)
    ends = {
        of: max((node["groups"].get(of, {}).get("last", 0) for node in ([leader] if leader else reached)), default=0)
        for of in partitions
    }
    found: dict[int, dict[str, PartitionLag]] = {}
    for node in nodes:
        if node.get("node") is None:
            continue
        lags = {of: _lag(node, of, ends[of], leader) for of in partitions}
        found[node["node"]] = {of: lag for of, lag in lags.items() if lag is not None}
    return found


def _lag(node: Mapping[str, Any], partition: str, end: int, leader: Mapping[str, Any] | None) -> PartitionLag | None:
    peers = {} if leader is None else {of["node"]: of for of in leader["groups"].get(partition, {}).get("peers", ())}
    as_peer = peers.get(node["node"])
    own = node.get("groups", {}).get(partition)
    if own is None or "applied" not in own:
        return None if as_peer is None else PartitionLag(as_peer["lag_entries"], as_peer["lag_s"], "leader")
    entries = max(0, end - own["applied"])
    if not entries:
        return PartitionLag(0, 0.0)
    seconds = own["lag_s"] if own["lag_entries"] else None
    if seconds is None and as_peer is not None:  # what it lacks is not there yet: the leader knows its age
        seconds = as_peer["lag_s"]
    return PartitionLag(entries, seconds)


LAST_HISTORY: Final = "last_history"
GOING: Final = frozenset({"remove", "retire", "replace"})


@dataclass(frozen=True, slots=True)
class ClusterFinding:
    """One thing that is not as it should be; `node` is None where it is the whole cluster's."""

    code: str
    text: str
    node: int | None = None


def member_findings(rows: Rows, leader: Mapping[str, Any] | None) -> Iterator[ClusterFinding]:
    """`leader`: the report of the leading node, which alone knows who holds what."""
    view = newest_view(rows)
    failures = view.get("failure_set") or {}
    for node in failed_nodes(view):
        text = f"node {node} is declared failed (failure set {failures.get('sequence')}): it has no vote until it is level again"
        yield ClusterFinding("declared_failed", text, node)
    if failures.get("problem"):
        yield ClusterFinding("fault_log", f"the fault log cannot be read: {failures['problem']}", view.get("node"))
    for node in expected_nodes(view):
        text = f"node {node} is expected: it has no vote until it has been started and is level"
        yield ClusterFinding("not_started", text, node)
    if leader is None:
        return
    if leader.get("waits") and leader.get("operation"):
        node = leader["operation"]["node"]
        yield ClusterFinding("change_waits", f"the change of node {node} waits: {leader['waits']}", node)
    yield from _last_copies(leader)


def _last_copies(leader: Mapping[str, Any]) -> Iterator[ClusterFinding]:
    """Of a cluster of one node there never is a second copy, which is no news."""
    if len(leader.get("members", ())) < 2:
        return
    alone: dict[int, list[str]] = {}
    for group, of in leader["groups"].items():
        holders: Sequence[int] = of.get("whole") or []
        if len(holders) == 1:
            alone.setdefault(holders[0], []).append(group)
    for node, groups in sorted(alone.items()):
        text = f"node {node} alone is known to hold all of {_named(groups)}: if it is lost, data is lost"
        yield ClusterFinding("last_copy", text, node)


def _named(groups: Sequence[str]) -> str:
    partitions = [group for group in groups if int(group) != CLUSTER_GROUP]
    return f"partitions {', '.join(sorted(partitions, key=int))}" if partitions else "the cluster's own group"


def warn_of_history(kind: str, node: int, rows: Sequence[Mapping[str, Any]], *, now_millis: int) -> list[str]:
    """Of a node that goes and alone holds history that was promised: a copy for another node holds none. Pure.

    Of a node that did not answer nothing is known.
    """
    from snapshot.retention import window_begin

    reaches = {int(row["node"]): row["history"] for row in rows if row.get("history") and row.get("node") is not None}
    own = reaches.pop(node, None)
    if kind not in GOING or own is None or own["oldest_txn"] is None or not own["window_s"]:
        return []
    wanted = max(int(own["oldest_txn"]), window_begin(now_millis=now_millis, window_s=own["window_s"]) or 0)
    others = [int(reach["oldest_txn"]) for reach in reaches.values() if reach["oldest_txn"] is not None]
    if any(oldest <= wanted for oldest in others):
        return []
    since = f"from {own['oldest_time']} on" if own["oldest_time"] else "since the beginning"
    why = (
        f"{LAST_HISTORY}: no other node that answers reaches back as far as node {node}, which can restore every moment {since}; "
        f"retention_window_s={own['window_s']:g} promises that: keep its directory, or wait until another node has as much"
    )
    return [why]
