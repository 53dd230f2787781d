"""What an operator should know about members, failure sets and copies of a cluster.

One rule: a change that makes progress is no finding; one that waits, if only for the start of a node, a node that is declared
failed, and data of which one copy is left are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cmdlog.cli.cluster.members_view import Rows, expected_nodes, failed_nodes, newest_view
from cmdlog.wal.ids import CLUSTER_GROUP

LAST_HISTORY: Final = "last_history"
GOING: Final = frozenset({"remove", "retire", "replace"})


@dataclass(frozen=True, slots=True)
class ClusterFinding:
    """One thing that is not as it should be; `node` is None where it is the whole cluster's."""

    code: str
    text: str
    node: int | None = None


def member_findings(rows: Rows, leader: Mapping[str, Any] | None) -> Iterator[ClusterFinding]:
    """`leader`: what the leading node says; it alone knows who holds what."""
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
        text = f"node {node} alone is known to hold all of {_named(groups)}: nothing may happen to it"
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
