"""`cmdlog serve APP`: the HTTP server over one node directory.

One rule: every setting of `cmdlog.node.settings` is an option here, with the help of its table row; none is written twice.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.load_app import AppArgument, load_application
from cmdlog.cli.output import JsonFlag
from cmdlog.cli.server.settings_sources import load_settings, report_service_links
from cmdlog.cli.server.settings_table import describe
from cmdlog.cli.version import version_of
from cmdlog.file_lock import LockHeld, lock
from cmdlog.garbage_collection import loading
from cmdlog.node.settings import TABLE, SettingRow
from cmdlog.signal_handlers import handled, stop_signals
from cmdlog.wal.files import OWNER_BYTES_MAX
from cmdlog.wal.os_errors import locked
from cmdlog.wal.process_limits import check_address_space
from cmdlog.wal.system.line_queue import end_output

if TYPE_CHECKING:
    from cmdlog.cluster.transport.peer_transport import PeerTls
    from cmdlog.member.member_ground import MemberGround
    from cmdlog.node.node import Node

USUAL: Final = frozenset(("host", "port", "partitions", "sites", "durability", "token_file", "tls_cert_file", "tls_key_file"))
"""Settings that the first part of the help shows."""


HELP: Final = """Serve the procedures of APP over HTTP, from the node directory --data.

A missing or empty directory becomes a new node; an existing one is
recovered first; until that is done, /readyz answers 503. The server prints
that it is listening when it serves. SIGTERM or Ctrl-C stops
it cleanly, also while it starts: requests in flight are answered, the log
is sealed, and the exit code is 0.

[bold]Examples[/bold]

  cmdlog serve shop:db
  cmdlog serve procedures.samples.bank:db --data ./bank --port 0
  CMDLOG_DURABILITY=async cmdlog serve shop:db --async-window-ms 20
  cmdlog serve shop:db --host 0.0.0.0 --token-file tokens --tls-cert-file cert.pem --tls-key-file key.pem

A setting comes from its option, else from the environment (CMDLOG_ and its
name in capitals), else from cmdlog.toml (--config, the data directory's, or
the current directory's), else from its default. Bytes may be written as
64MiB.
"""

DataOption = Annotated[Path, typer.Option("--data", metavar="DIR", help="The node directory.", envvar="CMDLOG_DATA")]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="The cmdlog.toml to read.", envvar="CMDLOG_CONFIG")
]

JoinOption = Annotated[
    Path | None,
    typer.Option("--join", metavar="FILE", help="Cluster file; makes this node a cluster member.", rich_help_panel="Cluster"),
]
NodeOption = Annotated[
    int | None,
    typer.Option("--node", metavar="NUMBER", help="Number of this node in the cluster file.", rich_help_panel="Cluster"),
]
SecretOption = Annotated[
    Path | None,
    typer.Option(
        "--cluster-secret-file", metavar="FILE", help="File with the secret that the nodes share.", rich_help_panel="Cluster"
    ),
]
PeerHostOption = Annotated[
    str | None,
    typer.Option(
        "--peer-host",
        metavar="HOST",
        help="Address to listen on for peers, instead of the cluster file's.",
        rich_help_panel="Cluster",
    ),
]
ReloadOption = Annotated[
    bool, typer.Option("--reload", help="Restart when a Python file of the application changes; for development.")
]
MigrateFlag = Annotated[bool, typer.Option("--migrate", help="Run the application's migrations that the tables lack.")]
PeerPortOption = Annotated[
    int | None, typer.Option("--peer-port", metavar="PORT", help="Port for peers; 0 picks a free one.", rich_help_panel="Cluster")
]
PeerCertOption = Annotated[
    Path | None,
    typer.Option(
        "--peer-cert-file",
        metavar="FILE",
        help="TLS between the nodes: this node's certificate in PEM. Read at start.",
        rich_help_panel="Cluster",
    ),
]
PeerKeyOption = Annotated[
    Path | None,
    typer.Option(
        "--peer-key-file",
        metavar="FILE",
        help="This node's private key, unencrypted; by default in --peer-cert-file.",
        rich_help_panel="Cluster",
    ),
]
PeerCaOption = Annotated[
    Path | None,
    typer.Option(
        "--peer-ca-file",
        metavar="FILE",
        help="CA certificates in PEM; those of all nodes must be signed by one of them.",
        rich_help_panel="Cluster",
    ),
]


def register(program: typer.Typer) -> None:
    """Adds the command."""
    program.command("serve", help=HELP)(with_settings(serve))


def serve(
    app: AppArgument,
    data: DataOption = Path("cmdlog-data"),
    config: ConfigOption = None,
    join: JoinOption = None,
    *,
    node: NodeOption = None,
    cluster_secret_file: SecretOption = None,
    peer_host: PeerHostOption = None,
    peer_port: PeerPortOption = None,
    peer_cert_file: PeerCertOption = None,
    peer_key_file: PeerKeyOption = None,
    peer_ca_file: PeerCaOption = None,
    reload: ReloadOption = False,
    migrate: MigrateFlag = False,
    json: JsonFlag = False,
    **flags: Any,
) -> None:
    """Loads everything that can fail cheaply first, then listens, then opens the node, and then reports the address."""
    with stopped_in_order(), naming(data):
        member, peer_files = None, (peer_cert_file, peer_key_file, peer_ca_file)
        if reload:
            _serve_reloading(app, data, config, flags, migrate=migrate, is_member=join is not None)
        if migrate:
            flags["migrate"] = "true"
        if join is not None:
            member = _member_ground(join, node, cluster_secret_file, peer_host, peer_port, tls=_peer_tls(*peer_files))
            flags["partitions"] = str(member.cluster.shape["partitions"])
        elif any(given is not None for given in (node, cluster_secret_file, peer_host, peer_port, *peer_files)):
            raise CommandFailed(
                "--node, --cluster-secret-file and --peer-… are for a node of a cluster", hint="--join FILE names it", exit_code=2
            )
        _serve(app, data, config, flags, member)


def _serve_reloading(
    app: str, data: Path, config: Path | None, flags: dict[str, Any], *, migrate: bool, is_member: bool
) -> NoReturn:
    from cmdlog.cli.server.reload import reserve_port, serve_reloading

    if is_member:
        hint = "start the nodes of a cluster again with the new code, one after the other"
        raise CommandFailed("--reload is for a node of its own", hint=hint, exit_code=2)
    settings = load_settings(flags, environ=os.environ, config=config, data_dir=data)
    refuse_locked(data)
    given = [*(["--config", str(config)] if config is not None else []), *(["--migrate"] if migrate else [])]
    chosen = {**flags, "port": reserve_port(settings.host, settings.port)}
    raise SystemExit(serve_reloading(app, data, chosen, given))


def _peer_tls(cert: Path | None, key: Path | None, authority: Path | None) -> PeerTls | None:
    """None where nodes speak without it. Raises: CommandFailed, BadPeerCertificate."""
    from cmdlog.cluster.transport.peer_transport import make_peer_tls

    if cert is None and key is None and authority is None:
        return None
    if cert is None or authority is None:
        hint = "give both at every node, or neither"
        raise CommandFailed("TLS between the nodes needs --peer-cert-file and --peer-ca-file", hint=hint, exit_code=2)
    return make_peer_tls(cert, key or cert, authority)


def _member_ground(
    join: Path, node: int | None, secret: Path | None, host: str | None, port: int | None, *, tls: PeerTls | None
) -> MemberGround:
    """Identity of a member: cluster and node number."""
    from cmdlog.cluster.cluster_file import ClusterFile, read_secret
    from cmdlog.member.member_ground import MemberGround

    cluster = ClusterFile.load(join)
    if node is None or secret is None:
        raise CommandFailed(
            "--join needs --node and --cluster-secret-file",
            hint=f"{join} lists nodes {', '.join(map(str, cluster.nodes))}",
            exit_code=2,
        )
    peer = cluster.member(node).peer
    listen = (host or peer[0], peer[1] if port is None else port)
    return MemberGround(cluster, node, read_secret(secret), listen, tls=tls)


def _serve(app: str, data: Path, config: Path | None, flags: Mapping[str, Any], member: MemberGround | None) -> None:
    with loading():
        from cmdlog.api.server import Events, threads_of
        from cmdlog.api.server import serve as serve_http
        from cmdlog.cli.logging_setup import configure_logs
        from cmdlog.cli.server.start_report import StartReport
        from cmdlog.node.node import Node
        from replay.machine_errors import naming_faults

        settings = load_settings(
            flags, environ=os.environ, config=config, data_dir=data, defaults=member.listening() if member else {}
        )
        configure_logs(settings.log_format)
        report_service_links(os.environ)
        db = load_application(app)
    refuse_locked(data)
    check_address_space(threads_of(settings))
    report = StartReport(data)

    def open_node(progress: Callable[[Any], None]) -> Node:
        report.announce_creation()
        if member is not None:
            from cmdlog.member.member_start import join

            return join(str(data), db, settings, member, target=app, progress=progress)
        return Node.open(str(data), db, settings, target=app, progress=progress)

    events = Events(listening=report.say_listening, ready=report.say_ready, stopping=report.say_stopping)
    with naming_faults(str(data.absolute())), restarted_for_copy():
        serve_http(open_node, settings, str(data), events=events, version=version_of("cmdlog"))


@contextlib.contextmanager
def restarted_for_copy() -> Iterator[None]:
    """A node that has to be copied has stopped and recorded that on disk: the same command is run again in this process."""
    try:
        yield
    except Exception as needed:
        from cmdlog.member.rejoin.life_end import CopyNeeded  # a node alone loads none of it

        if not isinstance(needed, CopyNeeded):
            raise
        import structlog

        structlog.get_logger("cmdlog.cli").warning("restarts_for_copy", why=str(needed))
        end_output()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - this very program


@contextlib.contextmanager
def naming(data: Path) -> Iterator[None]:
    """An error of the system that names no path, such as that of a write to an open file, gets the directory's."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(data.absolute())
        raise


@contextlib.contextmanager
def stopped_in_order() -> Iterator[None]:
    """A stop signal that arrives before the server has handlers of its own also ends the process cleanly: nothing was begun."""

    def stop() -> None:
        raise SystemExit(0)

    with handled(stop, *stop_signals()):
        yield


def refuse_locked(data: Path) -> None:
    """Says at once that another process has the directory, before an address is printed. Raises: Locked.

    The log decides it again when it is opened. A shared lock is asked for: of two servers that look at the same time, neither is
    in the other's way for good.
    """
    from cmdlog.wal.directory.instance import LOCK_NAME

    path = data / LOCK_NAME
    with contextlib.suppress(OSError), path.open("rb") as file:  # opening the log will report what is wrong with it
        try:
            lock(file, "shared")
        except LockHeld:
            raise locked(str(path.absolute()), file.read(OWNER_BYTES_MAX)) from None


def with_settings(command: Any) -> Any:
    """The command with one option per setting; typer reads them from the signature."""
    own = inspect.signature(command, eval_str=True)
    kept = [parameter for parameter in own.parameters.values() if parameter.kind is not inspect.Parameter.VAR_KEYWORD]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_option(setting))
        for name, setting in TABLE.items()
        if name not in own.parameters
    ]

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        command(**arguments)

    run.__dict__["__signature__"] = own.replace(parameters=[*kept, *added])
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in (*kept, *added)}
    return run


def _option(setting: SettingRow) -> Any:
    metavar = "|".join(setting.choices) or ("true|false" if setting.kind == "bool" else (setting.unit or setting.kind).upper())
    return Annotated[
        str | None,
        typer.Option(
            "--" + setting.name.replace("_", "-"),
            metavar=metavar,
            help=describe(setting).replace("[", r"\["),
            show_default=False,
            rich_help_panel="Options" if setting.name in USUAL else "Settings",
        ),
    ]
