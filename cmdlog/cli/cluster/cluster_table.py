"""The nodes of a cluster as a terminal shows them: the verdict, what is wrong, a row per node, a row per partition.

One rule: it shows what was judged; what a node does not report is left empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from cmdlog.cli.cluster.cluster_health import LAG_S_MAX, LEADING, ClusterHealth, PartitionLag, Verdict
from cmdlog.cli.cluster.members_view import Rows, copy_text, copy_to, member_text, newest_view, state_text
from cmdlog.cli.output import visible, visible_values
from cmdlog.wal.ids import CLUSTER_GROUP

if TYPE_CHECKING:
    from rich.console import RenderableType

PARTITIONS_SHOWN: Final = 64  # those that lag most
SETS_SHOWN: Final = 5  # failure sets, the newest
COLOURS: Final = {Verdict.HEALTHY: "green", Verdict.DEGRADED: "yellow", Verdict.UNAVAILABLE: "red"}
NODE_COLUMNS: Final = ("node", "url", "state", "member", "role", "leader", "term", "log", "lag / s")
UNKNOWN: Final = "-"


def cluster_table(health: ClusterHealth, nodes: Sequence[Mapping[str, Any]]) -> RenderableType:
    """The whole picture."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    nodes = visible_values(nodes)
    shown: list[RenderableType] = [Text(visible(headline(health)), style=f"bold {COLOURS[health.verdict]}")]
    shown += [Text(visible(f"  {finding.text}"), style="red") for finding in health.findings]
    table = Table(title="Nodes", title_justify="left", box=box.SIMPLE_HEAD, padding=0)
    for column in NODE_COLUMNS:
        table.add_column(column, overflow="fold", no_wrap=column != "url")
    for node in nodes:
        leads = node.get("node") is not None and node.get("node") == health.leader
        table.add_row(*map(Text, node_row(node, health, member_text(nodes, node.get("node")))), style="bold" if leads else None)
    shown.append(table)
    shown += map(Text, member_lines(nodes))
    columns, rows = lag_rows(health)
    if rows:
        lags = Table(title="Lag by partition: entries / s", title_justify="left", box=box.SIMPLE_HEAD, padding=0)
        for column in columns:
            lags.add_column(visible(column), justify="right")
        for row in rows:
            lags.add_row(*(Text(visible(cell)) for cell in row))
        shown.append(lags)
    return Group(*shown)


def headline(health: ClusterHealth) -> str:
    """Verdict, leader, term."""
    if health.leader is None:
        return f"{health.verdict.value}: no leader"
    return f"{health.verdict.value}: node {health.leader} leads, term {health.term}"


def member_lines(rows: Rows) -> list[str]:
    """The change in progress, copies, removed nodes, and failure sets, as far as there are any."""
    view = newest_view(rows)
    lines = [f"in progress: node {of['node']}, {state_text(of['state'])}" for of in [view.get("operation")] if of]
    present = [member["node"] for member in view.get("members", ())]
    copies = [(node, copy_to(rows, node)) for node in present]
    lines += [f"copy to node {node}: {copy_text(copy)}" for node, copy in copies if copy is not None]
    removed = [str(member["node"]) for member in view.get("members", ()) if member.get("state") == "removed"]
    lines += [f"removed: node {', '.join(removed)}"] if removed else []
    failures = view.get("failure_set") or {}
    for of in list(failures.get("history", ()))[-SETS_SHOWN:]:
        failed = ", ".join(map(str, of["failed"])) or "none"
        lines.append(f"failure set {of['sequence']}: {failed}" + (f" ({of['reason']})" if of.get("reason") else ""))
    return lines


def node_row(node: Mapping[str, Any], health: ClusterHealth, member: str = "") -> list[str]:
    """For each of NODE_COLUMNS; `member`: its state as a member."""
    number = node.get("node")
    row = ["?" if number is None else str(number), node["url"], node["state"], member]
    lag = _lag_of_node(list(health.lags.get(number, {}).values()) if number is not None else [])
    if "groups" not in node:
        return [*row, "", "", "", "", lag]
    fill = (node.get("log") or {}).get("fill")
    term = max((of["term"] for of in node["groups"].values()), default=0)
    leader = UNKNOWN if node["leader"] is None else str(node["leader"])
    return [*row, _role_of(node), leader, str(term), "" if fill is None else f"{fill:.0%}", lag]


def _role_of(node: Mapping[str, Any]) -> str:
    """What the node is for clients, or its role in the cluster's own group."""
    if node["standing"] != "following":
        return "leader" if node["standing"] == LEADING else "taking over"
    role = node["groups"].get(str(CLUSTER_GROUP), {}).get("role", "follower")
    return "follower" if role == "leader" else str(role).replace("_", " ")


def _lag_of_node(lags: Sequence[PartitionLag]) -> str:
    """The entries of all partitions, and the oldest call's age."""
    if not lags:
        return ""
    oldest = max((lag.seconds for lag in lags if lag.seconds is not None), default=None)
    return _lag_cell(PartitionLag(sum(lag.entries for lag in lags), oldest))


def lag_rows(health: ClusterHealth) -> tuple[list[str], list[list[str]]]:
    """Columns and rows; the partitions that lag most come first when there are many."""
    nodes = sorted(health.lags)
    partitions = sorted({of for lags in health.lags.values() for of in lags}, key=int)
    if len(partitions) > PARTITIONS_SHOWN:
        worst = {of: max(lags[of].entries for lags in health.lags.values() if of in lags) for of in partitions}
        partitions = sorted(partitions, key=lambda of: (-worst[of], int(of)))[:PARTITIONS_SHOWN]
    rows = [[of, *(_lag_cell(health.lags[node].get(of)) for node in nodes)] for of in partitions]
    return ["partition", *(f"node {node}" for node in nodes)], rows


def _lag_cell(lag: PartitionLag | None) -> str:
    if lag is None:
        return UNKNOWN
    if not lag.entries:
        return "0"
    seconds = UNKNOWN if lag.seconds is None else f"{lag.seconds:.1f}"
    marked = "!" if (lag.seconds or 0.0) > LAG_S_MAX else ""
    return f"{lag.entries} / {seconds}{marked}"
