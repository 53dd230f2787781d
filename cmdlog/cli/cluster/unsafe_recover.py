"""`cmdlog cluster unsafe-recover`: one survivor of a lost majority continues alone.

One rule: the survivors are compared first, by the ends of their logs. The one that continues is asked itself, and refuses where
another one holds more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import typer

from cmdlog.cli.cli_errors import USAGE, CommandFailed
from cmdlog.cli.cluster.status_reader import LOOK_S, ClusterAccess, NodeArgument, PlanFlag, YesFlag, ask_first
from cmdlog.cli.output import JsonFlag, out
from cmdlog.wal.ids import CLUSTER_GROUP

COLUMNS: Final = ("node", "url", "state", "ends of its logs: term/index by group")
HELP: Final = """Continue from one node when a majority is lost for good. Calls that only the lost nodes had are lost.

[bold]Before[/bold]

  Start the lost nodes again if that is possible at all: then nothing is lost.
  Stop those that must not come back. They are refused from then on.

[bold]Examples[/bold]

  cmdlog cluster unsafe-recover 1 --url http://10.0.0.1:8642 --plan
  cmdlog cluster unsafe-recover 1 --url http://10.0.0.1:8642,http://10.0.0.2:8642

NODE becomes the only voter, and the cluster gets another name. Every other node then comes back by
copy: `cmdlog cluster replace`, and a start with an empty data directory. This is recorded permanently.
"""
LOSS: Final = (
    "node {node} becomes the only voter of every group. What only the lost nodes had on disk is lost, and they never come back "
    "as they are. Continue?"
)
ForceLesserFlag = Annotated[
    bool,
    typer.Option("--force", help="Do it even if another survivor holds more, or a majority is connected; more calls are lost."),
]


def unsafe_recover(
    access: ClusterAccess,
    node: NodeArgument,
    *,
    force: ForceLesserFlag = False,
    yes: YesFlag = False,
    plan: PlanFlag = False,
    json: JsonFlag = False,
) -> None:
    """Asks the survivors, shows them, confirms, and asks the node."""
    rows = access.reader(LOOK_S).ask_all()
    survivors = [row for row in rows if "groups" in row]
    chosen = next((row for row in survivors if row["node"] == node), None)
    if chosen is None:
        hint = "it has to run: --url gives its address if no other node names it"
        raise CommandFailed(f"node {node} does not answer", hint=hint, exit_code=USAGE)
    problems = recovery_problems(chosen, rows)
    told = {"node": node, "survivors": [survivor_of(row) for row in survivors], "problems": problems}
    if plan:
        out.result(told, lambda: _show_survivors(rows, problems))
        raise typer.Exit(1 if problems and not force else 0)
    ask_first(LOSS.format(node=node), yes=yes, show=lambda: _show_survivors(rows, problems))
    others = [survivor_of(row) for row in survivors if row["node"] != node]
    with access.client([chosen]) as client:
        done = client.recover_unsafely(yes_lose=True, survivors=others, force=force)
    out.result(done, lambda: _show_done(done))


def survivor_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Where the logs of a node end, as the one that continues is asked with."""
    return {"node": row["node"], "ends": {group: list(of["end"]) for group, of in row["groups"].items() if "end" in of}}


def recovery_problems(chosen: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why it would be refused without --force, as far as the nodes that answer show it."""
    mine = survivor_of(chosen)["ends"]
    problems = []
    groups = {group: of.get("leader") for group, of in chosen.get("groups", {}).items() if of.get("leader") is not None}
    if chosen.get("leader") is not None:
        problems.append(f"node {chosen['leader']} leads: a majority is alive")
    elif groups:  # also for an election time-out after the others are gone
        led = "; ".join(f"node {leader} leads group {group}" for group, leader in sorted(groups.items()))
        problems.append(f"{led}: a majority is alive, or was a moment ago")
    for row in rows:
        if "groups" not in row or row is chosen:
            continue
        ahead = [group for group, end in survivor_of(row)["ends"].items() if tuple(end) > tuple(mine.get(group, (0, 0)))]
        if ahead:
            problems.append(f"node {row['node']} holds more of {', '.join(map(_group_name, sorted(ahead, key=int)))}")
    return problems


def _group_name(group: str) -> str:
    return "the cluster's own group" if int(group) == CLUSTER_GROUP else f"partition {group}"


def _show_survivors(rows: Sequence[Mapping[str, Any]], problems: Sequence[str]) -> None:
    shown = []
    for row in rows:
        ends = sorted(survivor_of(row)["ends"].items(), key=lambda of: int(of[0])) if "groups" in row else []
        text = ", ".join(f"{_group_name(group)} {term}/{index}" for group, (term, index) in ends)
        shown.append((row["node"] or "?", row["url"], row["state"], text))
    out.table("Nodes", COLUMNS, shown)
    for problem in problems:
        out.text(f"warning: {problem}")


def _show_done(done: Mapping[str, Any]) -> None:
    if done["already"]:
        out.text(f"node {done['node']} is the only voter already")
        return
    lost = ", ".join(map(str, done.get("lost", ()))) or "none"
    out.text(f"node {done['node']} is the only voter now; given up: node {lost}")
    out.text("bring each of them back with `cmdlog cluster replace NODE`, and start it with an empty data directory")
