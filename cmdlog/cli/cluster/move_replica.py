"""`cmdlog cluster move-replica`: a node takes another one's place, which then leaves.

One rule: it is `add` and then `retire`, and waits in between. There is never a voter fewer, and the command may be given again.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from cmdlog.cli.cluster.change_progress import await_change
from cmdlog.cli.cluster.cluster_options import LOOK_S, ClientOption, ClusterAccess, NodeArgument, PeerOption, PlanFlag
from cmdlog.cli.cluster.plan_text import show_plan
from cmdlog.cli.output import JsonFlag, out

HELP: Final = """Move a node's part to another machine: add the new node, wait until it is level, retire the old one.

[bold]Example[/bold]

  cmdlog cluster move-replica 2 --to 4 --peer 10.0.0.4:7642 --client http://10.0.0.4:8642

Start node 4 meanwhile: `cmdlog cluster join` on its machine says how. It is waited for without a
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
    told = {"add": {**added, "progress": level.to_json()}, "retire": {**retired, "progress": gone.to_json()}}
    out.result(told, lambda: out.text(f"node {to} votes, and node {node} is removed: stop it"))


def _show_plans(*answers: dict[str, Any]) -> None:
    for answer in answers:
        show_plan(answer)
