"""`cmdlog cluster join`: what a new machine needs to become a node of a cluster that runs.

One rule: it starts nothing and writes no secret. The cluster is asked whether the number is free, the node is added unless an
operator has done that, and the cluster file of this machine is written; then `serve` does the rest.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from cmdlog.cli.cli_errors import USAGE, CommandFailed
from cmdlog.cli.cluster.cluster_options import ClusterAccess, NodeArgument, PlanFlag, UrlsOption
from cmdlog.cli.cluster.member_commands import LOOK_S
from cmdlog.cli.cluster.members_view import member_of, newest_view
from cmdlog.cli.cluster.plan_text import show_plan
from cmdlog.cli.output import JsonFlag, out
from cmdlog.cli.server.server_options import TIMEOUT_S, CaOption, TimeoutOption, TokenOption

HELP: Final = """Prepare this machine for a new node of a cluster that runs, and say how to start it.

[bold]Example[/bold]

  cmdlog cluster join 4 --cluster cluster.json --peer 10.0.0.4:7642 --client http://10.0.0.4:8642
  cmdlog serve shop:db --data ./n4 --join cluster-4.json --node 4 --cluster-secret-file cluster.secret

Copy cluster.json and the secret from another node first. The node is added if it is not yet, which
needs a token with the role admin. Once started, it copies the data, and votes when it is level.
"""
WAITING: Final = frozenset(("expected", "leaving_old", "joining", "admitted"))
FileOption = Annotated[Path, typer.Option("--cluster", metavar="FILE", help="The cluster file of another node.")]
ToOption = Annotated[
    Path | None, typer.Option("--to", metavar="FILE", help="This machine's cluster file; by default cluster-NODE.json.")
]
AddressOption = Annotated[str, typer.Option("--peer", metavar="HOST:PORT", help="Where the other nodes reach this machine.")]
OwnUrlOption = Annotated[str, typer.Option("--client", metavar="URL", help="Its URL for clients.")]


def join(
    node: NodeArgument,
    cluster: FileOption,
    peer: AddressOption,
    client: OwnUrlOption,
    url: UrlsOption = None,
    *,
    to: ToOption = None,
    token_file: TokenOption = None,
    ca_file: CaOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
    plan: PlanFlag = False,
    json: JsonFlag = False,
) -> None:
    """Raises: BadClusterFile, CommandFailed."""
    from cmdlog.cluster.cluster_file import ClusterFile

    file = ClusterFile.load(cluster)
    access = ClusterAccess(url, cluster, token_file, ca_file, timeout)
    rows = access.reader(LOOK_S).ask_all()
    view = newest_view(rows)
    if not view:
        raise CommandFailed(f"no node of {cluster} answers", hint="a new node joins a cluster that runs; --url names a node")
    check_cluster(view, file.cluster_id, cluster)
    path = to or Path(f"cluster-{node}.json")
    members = members_with(view, node, peer, client)
    added: dict[str, Any] | None = None
    if is_free(member_of(view, node), node, peer, client):
        with access.client(rows) as asked:
            added = asked.change_member("add", node, peer=peer, client=client, **({"plan": True} if plan else {}))
    if plan:
        out.result({"node": node, "added": added, "file": str(path)}, lambda: _show_planned(node, added))
        return
    _write(dataclasses.replace(file, members=members), path)
    command = f"cmdlog serve APP --data ./n{node} --join {path} --node {node} --cluster-secret-file cluster.secret"
    told = {"node": node, "added": added, "file": str(path), "command": command}

    def show() -> None:
        out.text(f"node {node} is {'added' if added else 'expected'}; {path}: its cluster file, {len(members)} nodes")
        out.text("start it, with the application and the secret of the other nodes:")
        out.text(f"  {command}")

    out.result(told, show)


def check_cluster(view: Mapping[str, Any], cluster_id: bytes, path: Path) -> None:
    """Raises: CommandFailed, for the file of another cluster."""
    if str(view.get("cluster_id")) != str(uuid.UUID(bytes=cluster_id)):
        raise CommandFailed(
            f"{path} is of cluster {uuid.UUID(bytes=cluster_id)}, but {view['url']} is a node of {view.get('cluster_id')}",
            hint="copy the cluster file from a node of the cluster that this machine is to join",
        )


def is_free(member: Mapping[str, Any], node: int, peer: str, client: str) -> bool:
    """Whether the node is still to be added; False where it is expected here. Raises: CommandFailed, where neither holds."""
    state = str(member.get("state", ""))
    if state in ("", "removed"):
        return True
    if state not in WAITING:
        raise CommandFailed(
            f"node {node} is in the cluster already ({state}), at {member['peer']}",
            hint=f"choose another number; if this machine is to take its place: "
            f"`cmdlog cluster replace {node} --peer {peer} --client {client}`",
        )
    if (member["peer"], member["client"]) != (peer, client):
        raise CommandFailed(
            f"node {node} is expected at {member['peer']}, {member['client']}",
            hint="give that --peer and --client, or `cmdlog cluster add` it with the new ones",
        )
    return False


def members_with(view: Mapping[str, Any], node: int, peer: str, client: str) -> tuple[Any, ...]:
    """The present members and this one, ascending. Raises: CommandFailed."""
    from cmdlog.cluster.cluster_file import MemberAddress, check_members, parse_address

    present = {of["node"]: (of["peer"], of["client"]) for of in view["members"] if of.get("state") != "removed"}
    try:
        found = [
            MemberAddress(number, parse_address(at), url) for number, (at, url) in ({**present, node: (peer, client)}).items()
        ]
        check_members(found)
    except ValueError as error:
        raise CommandFailed(f"--peer {peer}: {error}", exit_code=USAGE) from None
    return tuple(sorted(found, key=lambda member: member.node))


def _write(file: Any, path: Path) -> None:
    """A second run finds what the first one wrote."""
    from cmdlog.cluster.cluster_file import ClusterFile

    if path.exists() and ClusterFile.load(path) == file:
        return
    try:
        file.save(path)
    except FileExistsError:
        raise CommandFailed(f"{path} is there already, and says something else", hint="--to FILE names another one") from None


def _show_planned(node: int, added: Mapping[str, Any] | None) -> None:
    if added is None:
        out.text(f"node {node} is expected here: nothing is left to ask for")
    else:
        show_plan(added)
