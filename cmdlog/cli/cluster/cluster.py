"""`cmdlog cluster`: making a cluster of several nodes, and what they report about it.

One rule: every node is asked for itself; what one of them believes of the others is shown as its belief.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from cmdlog.cli.cli_errors import USAGE, CommandFailed
from cmdlog.cli.cluster.cluster_health import judge_cluster
from cmdlog.cli.cluster.cluster_table import cluster_table
from cmdlog.cli.cluster.join import HELP as JOIN_HELP
from cmdlog.cli.cluster.join import join
from cmdlog.cli.cluster.member_commands import register_changes
from cmdlog.cli.cluster.status_reader import ClusterAccess, YesFlag, ask_first, with_access
from cmdlog.cli.cluster.unsafe_recover import HELP as RECOVER_HELP
from cmdlog.cli.cluster.unsafe_recover import unsafe_recover
from cmdlog.cli.demo.demo import cluster_demo
from cmdlog.cli.directory.owner import act_as_owner
from cmdlog.cli.load_app import AppArgument, load_application
from cmdlog.cli.output import JsonFlag, out
from cmdlog.cli.server.server_options import understood
from cmdlog.cli.server.status import EveryOption, WatchOption, watch_values
from cmdlog.wal.files import RealFiles

ASK_S: Final = 2.0  # for one node: an operator waits, and a stopped process still accepts connections
MEMBER_FORM: Final = "NODE=HOST:PEERPORT,URL"

MembersOption = Annotated[
    list[str],
    typer.Option(
        "--member",
        metavar=MEMBER_FORM,
        help="A node: its number, its address for peers, and its URL for clients. Once per node.",
    ),
]
FileOption = Annotated[Path, typer.Option("--to", metavar="FILE", help="The cluster file to write. Every node gets a copy.")]
SecretOption = Annotated[
    Path,
    typer.Option(
        "--cluster-secret-file", metavar="FILE", help="The secret to write, unless the file exists. Every node gets a copy."
    ),
]
PartitionsOption = Annotated[int, typer.Option("--partitions", min=1, help="Partitions of the cluster; fixed.")]
RecoveredOption = Annotated[
    Path | None,
    typer.Option("--from", metavar="OUT", help="A directory that a recovery made: the first node of the new cluster."),
]


def register(program: typer.Typer) -> None:
    """Adds the commands."""
    about = "Make a cluster of several nodes, show its state, and change its members."
    group = typer.Typer(no_args_is_help=True, help=about, rich_markup_mode="rich")
    group.command("init")(cluster_init)
    group.command("status")(with_access(cluster_status, timeout_s=ASK_S))
    group.command("join", help=JOIN_HELP)(join)
    register_changes(group)
    group.command("unsafe-recover", help=RECOVER_HELP)(with_access(unsafe_recover))
    register_quarantine(group)
    group.command("demo")(cluster_demo)
    program.add_typer(group, name="cluster")


def cluster_init(
    app: AppArgument,
    member: MembersOption,
    to: FileOption = Path("cluster.json"),
    cluster_secret_file: SecretOption = Path("cluster.secret"),
    *,
    partitions: PartitionsOption = 4,
    recovered: RecoveredOption = None,
    json: JsonFlag = False,
) -> None:
    """Write the cluster file and the secret of a new cluster. No node needs to run.

    With --from, a directory that `cmdlog recover … --to OUT` made is the first
    node; the others join it once it runs (`cmdlog cluster join`).

    [bold]Example[/bold]

      cmdlog cluster init shop:db --member 1=10.0.0.1:7642,http://10.0.0.1:8642 \\
          --member 2=10.0.0.2:7642,http://10.0.0.2:8642 --member 3=10.0.0.3:7642,http://10.0.0.3:8642
      cmdlog serve shop:db --data ./n1 --join cluster.json --node 1 --cluster-secret-file cluster.secret
    """
    from cmdlog.cluster.cluster_file import check_new_members, new_secret_text

    members = tuple(sorted(map(_member, member), key=lambda of: of.node))
    try:
        check_new_members(members)
    except ValueError as error:
        raise CommandFailed(
            str(error), hint="one --member per node, with addresses that the others and clients can reach", exit_code=2
        ) from None
    numbers = [of.node for of in members]
    cluster = _new_cluster(app, members, partitions) if recovered is None else _recovered(app, members, recovered)
    partitions = cluster.shape["partitions"]
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
        nodes = "1 node" if len(members) == 1 else f"{len(members)} nodes"
        out.text(f"{to}: {nodes}, {partitions} partitions; {cluster_secret_file}: the secret that they share")
        out.text("copy both to every node, then start each with its number:")
        data = f" --data {recovered}" if recovered is not None else ""
        out.text(f"  cmdlog serve {app}{data} --join {to} --node {numbers[0]} --cluster-secret-file {cluster_secret_file}")

    out.result(told, show)


def _new_cluster(app: str, members: tuple[Any, ...], partitions: int) -> Any:
    """All nodes begin with the same entries. Raises: NotReplayable, when no log could load the program."""
    from cmdlog.cluster.cluster_file import ClusterFile
    from cmdlog.member.member_start import make_genesis
    from cmdlog.node.deploying.load_check import check_loads
    from cmdlog.node.settings import Settings
    from procedures.code.bundle import capture_bundle

    db = load_application(app)
    bundle, settings = capture_bundle(db, app), Settings(partitions=partitions)
    check_loads(bundle, settings.start_timeout_s)
    genesis = make_genesis(db, bundle, settings, tuple(of.node for of in members))
    return ClusterFile(os.urandom(16), db.name, members, genesis.shape, genesis.digest())


def _recovered(app: str, members: tuple[Any, ...], directory: Path) -> Any:
    """One node begins with what a recovery made. Raises: NotRecovered, NotSoleVoter, WalError, CommandFailed."""
    from cmdlog.cluster.membership.recovered_cluster import recovered_cluster

    if len(members) > 1:
        raise CommandFailed(
            "a recovered directory is one node, and several are given",
            hint="--member once; the others join it once it runs: `cmdlog cluster join`",
            exit_code=USAGE,
        )
    cluster = recovered_cluster(RealFiles(), str(directory), members[0])
    if (name := load_application(app).name) != cluster.database:
        raise CommandFailed(f"{directory} is of database {cluster.database!r}, and {app} is {name!r}", exit_code=USAGE)
    return cluster


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
    access: ClusterAccess, *, watch: WatchOption = False, every: EveryOption = 2.0, json: JsonFlag = False
) -> None:
    """Show the nodes of a cluster: state, role, term, leader, lag of each partition, and what is wrong.

    Exit code 0: healthy; 18: calls are taken, but something is wrong; 19: no node that was reached takes calls.

    [bold]Examples[/bold]

      cmdlog cluster status --url http://10.0.0.1:8642
      cmdlog cluster status --cluster cluster.json --watch
    """
    reader = access.reader(access.timeout_s)

    def judge_again() -> dict[str, Any]:
        nodes = reader.ask_all()
        with understood("a node"):
            return {"health": judge_cluster(nodes).to_json(), "nodes": nodes}

    told = judge_again()
    if watch:
        watch_values(told, judge_again, lambda told: cluster_table(judge_cluster(told["nodes"]), told["nodes"]), every)
        return
    health = judge_cluster(told["nodes"])
    with understood("a node"):
        out.result(told, lambda: out.renderable(cluster_table(health, told["nodes"])))
    if health.verdict.exit_code:
        raise typer.Exit(health.verdict.exit_code)


# -- what a directory held before a copy took its place: a node never deletes it, an operator does

DirectoryArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="Node directory; its node may run.", callback=act_as_owner)
]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the entry, from `list`.")]
QUARANTINE_COLUMNS: Final = ("name", "taken", "reason", "bytes")
QUARANTINE_HELP: Final = """List and remove what a node set aside when it was rebuilt by a copy.

[bold]Examples[/bold]

  cmdlog cluster quarantine list ./n3
  cmdlog log inspect ./n3/quarantine/20260131T120000Z-damaged
  cmdlog cluster quarantine remove ./n3 20260131T120000Z-damaged

Keep an entry until the node is level again, and is not needed to find a cause.
"""


def register_quarantine(group: typer.Typer) -> None:
    """Adds the commands."""
    commands = typer.Typer(no_args_is_help=True, help=QUARANTINE_HELP, rich_markup_mode="rich")
    commands.command("list", help="Show the entries, oldest first.")(list_entries)
    commands.command("remove", help="Delete one entry for good. Asks first.")(remove_entry)
    group.add_typer(commands, name="quarantine")


def list_entries(directory: DirectoryArgument, json: JsonFlag = False) -> None:
    """Reads names and sizes."""
    from cmdlog.member.rejoin.quarantine_folder import list_quarantine

    rows = [entry.to_json() for entry in list_quarantine(RealFiles(), _existing(directory))]
    shown = [[row[column] for column in QUARANTINE_COLUMNS] for row in rows]
    out.result(
        {"entries": rows},
        lambda: out.table("Quarantine", QUARANTINE_COLUMNS, shown) if rows else out.text("the quarantine is empty"),
    )


def remove_entry(directory: DirectoryArgument, name: NameArgument, *, yes: YesFlag = False, json: JsonFlag = False) -> None:
    """Raises: NotInQuarantine, CommandFailed."""
    from cmdlog.member.rejoin.quarantine_folder import remove_quarantined

    path = _existing(directory)
    ask_first(f"delete {os.path.join(path, 'quarantine', name)} for good?", yes=yes)
    gone = remove_quarantined(RealFiles(), path, name).to_json()
    out.result({"removed": gone}, lambda: out.text(f"removed {name}: {gone['bytes']:,} bytes"))


def _existing(directory: Path) -> str:
    if not directory.is_dir():
        raise CommandFailed(f"{directory} is not a directory", exit_code=USAGE)
    return os.path.abspath(directory)
