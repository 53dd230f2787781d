"""`cmdlog cluster add | remove | replace | retire | transfer | cancel-copy | move-replica`: changes of members, one at a time.

One rule: the leader decides and does the work. A command asks, shows what the leader has computed, and may be given again.
`move-replica` is `add` and then `retire`, and waits in between, so there is never a voter fewer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final

import typer

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.cluster.change_progress import await_change
from cmdlog.cli.cluster.cluster_health import warn_of_history
from cmdlog.cli.cluster.members_view import copy_to, state_text
from cmdlog.cli.cluster.status_reader import (
    LOOK_S,
    BaseOption,
    ClientOption,
    ClusterAccess,
    ForceFlag,
    NodeArgument,
    PeerOption,
    PlanFlag,
    WaitFlag,
    YesFlag,
    ask_first,
    with_access,
)
from cmdlog.cli.output import JsonFlag, out

ADDRESSED: Final = ("add", "replace")  # changes that give a node its place
HELP: Final = {
    "add": """Add a node. It copies the data while the cluster works, and votes once it is level.

[bold]Examples[/bold]

  cmdlog cluster add 4 --peer 10.0.0.4:7642 --client http://10.0.0.4:8642 --plan
  cmdlog cluster add 4 --peer 10.0.0.4:7642 --client http://10.0.0.4:8642 --wait

Then start it: `cmdlog cluster join` on the new machine shows how.
From 3 to 5 voters: add two nodes, one after the other.
""",
    "replace": """Replace a node that lost its disk or its machine. The old disk can never rejoin.

[bold]Examples[/bold]

  cmdlog cluster replace 3 --plan
  cmdlog cluster replace 3 --wait
  cmdlog cluster replace 3 --peer 10.0.0.9:7642 --client http://10.0.0.9:8642

Start node 3 with an empty data directory: it copies, and votes once it is level.
""",
    "remove": """Remove a node for good, also one that is gone. Its number can be added again later.

[bold]Examples[/bold]

  cmdlog cluster remove 3 --plan
  cmdlog cluster remove 3 --wait

Refused where the voters that remain would be no quorum, or where no other node holds all data.
""",
    "retire": """Remove a running node: it hands over leadership first, and learns that it left.

[bold]Examples[/bold]

  cmdlog cluster retire 2 --plan
  cmdlog cluster retire 2 --wait

From 5 to 3 voters: retire two nodes, one after the other. To move a node's part to another machine:
add the new node with --wait, then retire the old one.
""",
    "transfer": """Make a node the leader. No call is lost; calls in progress wait for a moment.

[bold]Examples[/bold]

  cmdlog cluster transfer 2
  cmdlog cluster transfer 2 --wait
""",
    "cancel-copy": """Cancel the copy of the cluster's data to a node. The node begins another one when it asks again.

[bold]Example[/bold]

  cmdlog cluster cancel-copy 4
""",
}
EMPTY: Final = "start node {node} with an empty data directory: it copies the data, and votes once it is level"
AWAITED: Final = ("expected", "leaving_old")  # states of a node that has to be started
NEXT: Final = {
    "expected": "start node {node}: `cmdlog cluster join` on its machine shows how",
    "joining": "it copies the data, and votes once it is level; --wait shows how far it is",
    "admitted": "it copies the data, and votes once it is level; --wait shows how far it is",
    "leaving": "it leaves every group; `cmdlog cluster status` shows when it has",
    "removed": "it is removed; its process may be stopped, and its directory deleted",
}


def register_changes(group: typer.Typer) -> None:
    """Adds the commands."""
    for kind in ("add", "remove", "replace", "retire", "transfer"):
        group.command(kind, help=HELP[kind])(_change(kind))
    group.command("cancel-copy", help=HELP["cancel-copy"])(with_access(cancel_copy))
    group.command("move-replica", help=MOVE_HELP)(with_access(move_replica))


def _change(kind: str) -> Callable[..., None]:
    def change(
        access: ClusterAccess,
        node: NodeArgument,
        *,
        peer: PeerOption = None,
        client: ClientOption = None,
        base: BaseOption = None,
        force: ForceFlag = False,
        yes: YesFlag = False,
        plan: PlanFlag = False,
        wait: WaitFlag = False,
        json: JsonFlag = False,
    ) -> None:
        asked = {"peer": peer, "client": client, "base": base, "force": force}
        carry_out_change(access, kind, node, asked, yes=yes, plan=plan, wait=wait)

    return with_access(change, without=() if kind in ADDRESSED else ("peer", "client"))


def carry_out_change(
    access: ClusterAccess, kind: str, node: int, asked: Mapping[str, Any], *, yes: bool, plan: bool, wait: bool
) -> None:
    """Asks for the change. Raises: CommandFailed, typer.Exit."""
    reader = access.reader(LOOK_S)
    options = {name: value for name, value in asked.items() if value not in (None, False)}
    rows = reader.ask_all()
    history = warn_of_history(kind, node, rows, now_millis=time.time_ns() // 1_000_000)

    def ask(*, plan: bool) -> dict[str, Any]:
        reply = client.change_member(kind, node, **options, **({"plan": True} if plan else {}))
        reply["plan"]["warnings"] = [*reply["plan"]["warnings"], *history]
        return reply

    with access.client(rows) as client:
        if plan:
            reply = ask(plan=True)
            out.result(reply, lambda: show_plan(reply))
            raise typer.Exit(1 if reply["plan"].get("refusal") else 0)
        if options.get("force"):
            planned = ask(plan=True)
            question = f"{kind} node {node} anyway? This is recorded permanently"
            ask_first(question, yes=yes, show=lambda: show_plan(planned))
        reply = ask(plan=False)
    if wait:
        reply = {**reply, "progress": await_change(kind, node, reader).to_json()}
    out.result(reply, lambda: show_change(reply))


def show_change(reply: Mapping[str, Any]) -> None:
    """What was begun, and what comes next."""
    if (progress := reply.get("progress")) is not None:
        out.text(progress["text"])
        return
    node, already = reply["node"], "already " if reply["already"] else ""
    if reply["kind"] == "transfer":
        out.text(f"node {node} leads already" if already else f"leadership is handed over to node {node}")
        return
    state = str(reply["state"])
    out.text(f"node {node} is {already}{state_text(state) or 'unknown'}, version {reply['version']}")
    if (following := EMPTY if reply["kind"] == "replace" and state in AWAITED else NEXT.get(state)) is not None:
        out.text(following.format(node=node))
    for warning in reply["plan"]["warnings"]:
        out.text(f"warning: {warning}")


def cancel_copy(access: ClusterAccess, node: NodeArgument, *, json: JsonFlag = False) -> None:
    """At the node that gives it."""
    sources = [row for row in access.reader(LOOK_S).ask_all() if copy_to([row], node) is not None]
    if not sources:
        raise CommandFailed(f"no copy to node {node} is running", hint="`cmdlog cluster status` shows the copies in progress")
    for source in sources:
        with access.client([source]) as client:
            client.cancel_copy(node)
    numbers = [source["node"] for source in sources]
    at = ", ".join(map(str, numbers))
    out.result({"node": node, "sources": numbers}, lambda: out.text(f"cancelled the copy to node {node} at node {at}"))


PLAN_COLUMNS: Final = ("stage", "voters", "learners", "quorum", "live", "may be lost")
NONE: Final = "-"


def show_plan(answer: Mapping[str, Any]) -> None:
    """The stages as a table, then what to know before."""
    plan = answer["plan"]
    if answer["already"]:
        out.text(
            f"{answer['kind']} of node {answer['node']}: already done, or in progress (node is {answer['state'] or 'unknown'})"
        )
    title = f"{answer['kind']} node {answer['node']}, at version {answer['version']}"
    out.table(title, PLAN_COLUMNS, [stage_row(stage) for stage in plan["stages"]])
    for warning in plan["warnings"]:
        out.text(f"warning: {warning}")
    if plan.get("refusal") is not None:
        out.text(f"refused as {plan['refusal']['code']}: {plan['refusal']['why']}")


def stage_row(stage: Mapping[str, Any]) -> list[str]:
    """For each of PLAN_COLUMNS."""
    spare = stage["survives"]
    lost = f"{spare} of {len(stage['live'])}" if spare >= 0 else "no quorum"
    return [
        stage["what"],
        _listed(stage["voters"]),
        _listed(stage["learners"]),
        str(stage["quorum"]),
        _listed(stage["live"]),
        lost,
    ]


def _listed(nodes: Sequence[int]) -> str:
    return ", ".join(map(str, nodes)) or NONE


MOVE_HELP: Final = """Move a node's part to another machine: add the new node, wait until it is level, retire the old one.

[bold]Example[/bold]

  cmdlog cluster move-replica 2 --to 4 --peer 10.0.0.4:7642 --client http://10.0.0.4:8642

Start node 4 meanwhile: `cmdlog cluster join` on its machine shows how. It is waited for without a
limit; --timeout is that of a request. Ctrl-C leaves the cluster as it is then; give the command
again to continue.
"""
ToOption = Annotated[int, typer.Option("--to", metavar="NODE", min=1, help="Number of the node that takes the place.")]


def move_replica(
    access: ClusterAccess,
    node: NodeArgument,
    to: ToOption,
    *,
    peer: PeerOption = None,
    client: ClientOption = None,
    plan: PlanFlag = False,
    json: JsonFlag = False,
) -> None:
    """Raises: CommandFailed, typer.Exit."""
    reader = access.reader(LOOK_S)
    address = {name: value for name, value in (("peer", peer), ("client", client)) if value is not None}
    with access.client(reader.ask_all()) as asked:
        added = asked.change_member("add", to, **address, **({"plan": True} if plan else {}))
        if plan:
            retired = asked.change_member("retire", node, plan=True)
            out.result({"add": added, "retire": retired}, lambda: _show_plans(added, retired))
            raise typer.Exit(1 if any(answer["plan"].get("refusal") for answer in (added, retired)) else 0)
    level = await_change("add", to, reader)
    with access.client(reader.ask_all()) as asked:  # others may lead by now
        retired = asked.change_member("retire", node)
    gone = await_change("retire", node, reader)
    reply = {"add": {**added, "progress": level.to_json()}, "retire": {**retired, "progress": gone.to_json()}}
    out.result(reply, lambda: out.text(f"node {to} votes, and node {node} is removed: stop it"))


def _show_plans(*answers: dict[str, Any]) -> None:
    for answer in answers:
        show_plan(answer)
