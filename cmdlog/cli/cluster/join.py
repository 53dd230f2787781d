"""`cmdlog cluster join`: what a new machine needs to become a node of a cluster that runs.

One rule: it starts nothing and writes no secret. The cluster is asked whether the number is free, the node is added unless an
operator has done that, and the cluster file of this machine is written; then `serve` does the rest.
"""

from __future__ import annotations

import dataclasses
import enum
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from cmdlog.cli.cli_errors import USAGE, CommandFailed
from cmdlog.cli.cluster.member_commands import show_plan
from cmdlog.cli.cluster.members_view import SETTLED, member_of, newest_view
from cmdlog.cli.cluster.status_reader import LOOK_S, ClusterAccess, NodeArgument, PlanFlag, UrlsOption
from cmdlog.cli.output import JsonFlag, out
from cmdlog.cli.server.server_options import TIMEOUT_S, CaOption, TimeoutOption, TokenOption

HELP: Final = """Prepare this machine for a new node of a running cluster, and show how to start it.

[bold]Example[/bold]

  cmdlog cluster join 4 --cluster cluster.json --peer 10.0.0.4:7642 --client http://10.0.0.4:8642
  cmdlog serve shop:db --data ./n4 --join cluster-4.json --node 4 --cluster-secret-file cluster.secret

Copy cluster.json and the secret from another node first. The node is added if it is not yet, which
needs a token with the role admin. Once started, it copies the data, and votes when it is level.
If the node is already a member at that place, the command reports it.
"""
WAITING: Final = frozenset(("expected", "leaving_old", "joining", "admitted"))
FileOption = Annotated[Path, typer.Option("--cluster", metavar="FILE", help="The cluster file of another node.")]
ToOption = Annotated[
    Path | None, typer.Option("--to", metavar="FILE", help="This machine's cluster file; by default cluster-NODE.json.")
]
AddressOption = Annotated[str, typer.Option("--peer", metavar="HOST:PORT", help="Address of this machine for its peers.")]
OwnUrlOption = Annotated[str, typer.Option("--client", metavar="URL", help="Its URL for clients.")]


class JoinPlace(enum.Enum):
    """What the cluster has under a number, at the place that the operator names."""

    FREE = "free"  # to be added
    EXPECTED = "expected"  # an operator has added it
    MEMBER = "member"  # it has joined: an earlier run of the command was carried out


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
    place = place_of(member_of(view, node), node, peer, client)
    if place is JoinPlace.FREE:
        with access.client(rows) as asked:
            added = asked.change_member("add", node, peer=peer, client=client, **({"plan": True} if plan else {}))
    if plan:
        planned = {"node": node, "added": added, "already": place is JoinPlace.MEMBER, "file": str(path)}
        out.result(planned, lambda: _show_planned(node, place, added))
        return
    wanted = dataclasses.replace(file, members=members)
    if place is not JoinPlace.MEMBER or not _serves(path, wanted, node):
        _write(wanted, path)
    command = f"cmdlog serve APP --data ./n{node} --join {path} --node {node} --cluster-secret-file cluster.secret"
    answer = {"node": node, "added": added, "already": place is JoinPlace.MEMBER, "file": str(path), "command": command}

    def show() -> None:
        if place is JoinPlace.MEMBER:
            out.text(f"node {node} is a member already, at {peer}; {path}: its cluster file")
            out.text(f"if its data is lost: `cmdlog cluster replace {node}`. If it does not run, start it:")
        else:
            out.text(f"node {node} is {'added' if added else 'expected'}; {path}: its cluster file, {len(members)} nodes")
            out.text("start it, with the application and the secret of the other nodes:")
        out.text(f"  {command}")

    out.result(answer, show)


def check_cluster(view: Mapping[str, Any], cluster_id: bytes, path: Path) -> None:
    """Raises: CommandFailed, for the file of another cluster."""
    if str(view.get("cluster_id")) != str(uuid.UUID(bytes=cluster_id)):
        raise CommandFailed(
            f"{path} is of cluster {uuid.UUID(bytes=cluster_id)}, but {view['url']} is a node of {view.get('cluster_id')}",
            hint="copy the cluster file from a node of the cluster that this machine is to join",
        )


def place_of(member: Mapping[str, Any], node: int, peer: str, client: str) -> JoinPlace:
    """What the cluster has under this number and at this place. Raises: CommandFailed, where it is another place's."""
    state = str(member.get("state", ""))
    if state in ("", "removed"):
        return JoinPlace.FREE
    is_here = (member["peer"], member["client"]) == (peer, client)
    if state == SETTLED and is_here:
        return JoinPlace.MEMBER
    if state not in WAITING:
        raise CommandFailed(
            f"node {node} is in the cluster already ({state}), at {member['peer']}, {member['client']}",
            hint=f"choose another number; if this machine is to take its place: "
            f"`cmdlog cluster replace {node} --peer {peer} --client {client}`",
        )
    if not is_here:
        raise CommandFailed(
            f"node {node} is expected at {member['peer']}, {member['client']}",
            hint="give that --peer and --client, or `cmdlog cluster add` it with the new ones",
        )
    return JoinPlace.EXPECTED


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


def _serves(path: Path, wanted: Any, node: int) -> bool:
    """Whether the file there starts this member. What it lists of the others is of the moment when it was written."""
    from cmdlog.cluster.cluster_file import ClusterFile

    if not path.exists():
        return False
    found = ClusterFile.load(path)
    mine = wanted.member(node)
    return dataclasses.replace(found, members=wanted.members) == wanted and mine in found.members


def _write(file: Any, path: Path) -> None:
    """A second run finds what the first one wrote."""
    from cmdlog.cluster.cluster_file import ClusterFile

    if path.exists() and ClusterFile.load(path) == file:
        return
    try:
        file.save(path)
    except FileExistsError:
        raise CommandFailed(f"{path} exists already, with different content", hint="--to FILE names another one") from None


def _show_planned(node: int, place: JoinPlace, added: Mapping[str, Any] | None) -> None:
    if added is not None:
        show_plan(added)
        return
    is_what = "a member already" if place is JoinPlace.MEMBER else "expected here"
    out.text(f"node {node} is {is_what}: nothing is left to ask for")
