"""`cmdlog cluster`: making a cluster of several nodes, and what they say about it.

One rule: every node is asked for itself; what one of them believes of the others is shown as its belief.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.demo.cluster_demo import cluster_demo
from cmdlog.cli.load_app import AppArgument, load_application
from cmdlog.cli.output import JsonFlag, out
from cmdlog.cli.server.server_options import CaOption, TimeoutOption, TokenOption, server

STATUS_S: Final = 5.0
MEMBER_FORM: Final = "NODE=HOST:PEERPORT,URL"

MembersOption = Annotated[
    list[str],
    typer.Option(
        "--member",
        metavar=MEMBER_FORM,
        help="A node: its number, where the other nodes reach it, and its URL for clients. Once per node.",
    ),
]
FileOption = Annotated[Path, typer.Option("--to", metavar="FILE", help="The cluster file to write. Every node gets a copy.")]
SecretOption = Annotated[
    Path,
    typer.Option(
        "--cluster-secret-file", metavar="FILE", help="The secret to write, unless the file is there. Every node gets a copy."
    ),
]
PartitionsOption = Annotated[int, typer.Option("--partitions", min=1, help="Partitions of the cluster; fixed.")]
UrlsOption = Annotated[list[str], typer.Option("--url", help="A node's URL. Once per node; or one, whose node names the others.")]
WatchOption = Annotated[bool, typer.Option("--watch", "-w", help="Refresh until Ctrl-C.")]
EveryOption = Annotated[float, typer.Option("--every", metavar="SECONDS", min=0.1, help="With --watch: refresh interval.")]


def register(program: typer.Typer) -> None:
    """Adds the commands."""
    group = typer.Typer(
        no_args_is_help=True, help="Make a cluster of several nodes, and see who leads it.", rich_markup_mode="rich"
    )
    group.command("init")(cluster_init)
    group.command("status")(cluster_status)
    group.command("demo")(cluster_demo)
    program.add_typer(group, name="cluster")


def cluster_init(
    app: AppArgument,
    member: MembersOption,
    to: FileOption = Path("cluster.json"),
    cluster_secret_file: SecretOption = Path("cluster.secret"),
    *,
    partitions: PartitionsOption = 4,
    json: JsonFlag = False,
) -> None:
    """Write the cluster file and the secret of a new cluster. No node needs to run.

    [bold]Example[/bold]

      cmdlog cluster init shop:db --member 1=10.0.0.1:7642,http://10.0.0.1:8642 \\
          --member 2=10.0.0.2:7642,http://10.0.0.2:8642 --member 3=10.0.0.3:7642,http://10.0.0.3:8642
      cmdlog serve shop:db --data ./n1 --join cluster.json --node 1 --cluster-secret-file cluster.secret
    """
    from cmdlog.cluster.cluster_file import ClusterFile, check_members
    from cmdlog.cluster.transport.cluster_secret import new_secret_text
    from cmdlog.node.member.member_start import make_genesis
    from cmdlog.node.settings import Settings
    from procedures.bundle import capture_bundle

    members = tuple(sorted(map(_member, member), key=lambda of: of.node))
    try:
        check_members(members)
    except ValueError as error:
        raise CommandFailed(str(error), hint="one --member per node", exit_code=2) from None
    numbers = [of.node for of in members]
    db = load_application(app)
    genesis = make_genesis(db, capture_bundle(db, app), Settings(partitions=partitions), tuple(numbers))
    cluster = ClusterFile(os.urandom(16), db.name, members, genesis.shape, genesis.digest())
    try:
        cluster.save(to)
    except FileExistsError:
        raise CommandFailed(f"{to} is there already", hint="it may be a running cluster's: --to FILE names another one") from None
    made_secret = not cluster_secret_file.exists()
    if made_secret:
        descriptor = os.open(cluster_secret_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(new_secret_text())
    told = {**cluster.to_json(), "file": str(to), "secret_file": str(cluster_secret_file), "secret_made": made_secret}

    def show() -> None:
        out.text(f"{to}: {len(members)} nodes, {partitions} partitions; {cluster_secret_file}: the secret that they share")
        out.text("copy both to every node, then start each with its number:")
        out.text(f"  cmdlog serve {app} --join {to} --node {numbers[0]} --cluster-secret-file {cluster_secret_file}")

    out.result(told, show)


def _member(text: str) -> Any:
    from cmdlog.cluster.cluster_file import MemberAddress, parse_address

    try:
        node, _, addresses = text.partition("=")
        peer, _, client = addresses.partition(",")
        if not client.startswith(("http://", "https://")) or int(node) < 1:
            raise ValueError(text)
        return MemberAddress(int(node), parse_address(peer), client)
    except ValueError:
        raise CommandFailed(
            f"--member {text}: not {MEMBER_FORM}", hint="such as 1=10.0.0.1:7642,http://10.0.0.1:8642", exit_code=2
        ) from None


def cluster_status(
    url: UrlsOption,
    token_file: TokenOption = None,
    *,
    ca_file: CaOption = None,
    timeout: TimeoutOption = STATUS_S,
    watch: WatchOption = False,
    every: EveryOption = 2.0,
    json: JsonFlag = False,
) -> None:
    """Show the nodes of a cluster: state, who leads, terms, and how far each is.

    [bold]Examples[/bold]

      cmdlog cluster status --url http://10.0.0.1:8642
      cmdlog cluster status --url http://10.0.0.1:8642 --watch
    """
    while True:
        told = [_ask(each, token_file, timeout, ca_file) for each in _urls_of(url, token_file, timeout, ca_file)]
        out.result({"nodes": told}, partial(_show, told))
        if not watch:
            return
        time.sleep(every)


def _urls_of(given: Sequence[str], token_file: Path | None, timeout: float, ca_file: Path | None) -> Sequence[str]:
    """Those given; of a single one, all that its node names."""
    if len(given) > 1:
        return given
    with server(given[0], token_file, timeout, ca_file) as client:
        status = client.status()
    if "cluster" not in status:
        raise CommandFailed(f"{given[0]} is a node alone", hint="`cmdlog status` shows it")
    return [str(member["client"]) for member in status["cluster"]["members"]]


def _ask(url: str, token_file: Path | None, timeout: float, ca_file: Path | None) -> dict[str, Any]:
    try:
        with server(url, token_file, timeout, ca_file) as client:
            status = client.status()
    except CommandFailed as error:
        return {"url": url, "error": str(error)}
    if "cluster" not in status:
        return {"url": url, "error": "a node alone, of no cluster"}
    return {"url": url, **status["cluster"], "partitions": status["partitions"]}


def _show(nodes: Sequence[Mapping[str, Any]]) -> None:
    rows = []
    for node in nodes:
        if "error" in node:
            rows.append(("?", node["url"], "not reached", "", "", node["error"]))
            continue
        committed = sum(of["committed"] for of in node["partitions"].values())
        applied = sum(of["applied"] for of in node["partitions"].values())
        term = max((of["term"] for of in node["groups"].values()), default="")
        rows.append(
            (node["node"], node["url"], node["state"], node["standing"], term, f"{committed:,} committed, {applied:,} run")
        )
    out.table("cluster", ("node", "url", "state", "role", "term", "entries"), rows)
