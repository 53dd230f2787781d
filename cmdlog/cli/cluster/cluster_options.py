"""What the commands that change a cluster share: their options, and the way to its leader.

One rule: one URL is enough. Its node names the others, and a request goes to whichever leads.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cmdlog.cli.cli_errors import USAGE, CommandFailed
from cmdlog.cli.cluster.status_reader import StatusReader
from cmdlog.cli.output import out, visible
from cmdlog.cli.server.server_options import TIMEOUT_S, CaOption, TimeoutOption, TokenOption, listed_urls, server

if TYPE_CHECKING:
    from cmdlog.client import Client

LOOK_S: Final = 5.0  # for one node: a change matters more than a moment of waiting
NodeArgument = Annotated[int, typer.Argument(metavar="NODE", min=1, help="Number of the node.")]
UrlsOption = Annotated[
    list[str] | None,
    typer.Option("--url", envvar="CMDLOG_URL", help="Nodes' URLs, with commas. One is enough: its node names the others."),
]
ClusterOption = Annotated[Path | None, typer.Option("--cluster", metavar="FILE", help="The cluster file, which lists the nodes.")]
PeerOption = Annotated[str | None, typer.Option("--peer", metavar="HOST:PORT", help="Address of the node for its peers.")]
ClientOption = Annotated[str | None, typer.Option("--client", metavar="URL", help="Its URL for clients.")]
BaseOption = Annotated[
    int | None,
    typer.Option("--base", metavar="VERSION", min=0, help="Refuse if the cluster is not at this version, which --plan shows."),
]
ForceFlag = Annotated[bool, typer.Option("--force", help="Do it even if calls may be lost; recorded permanently. Asks first.")]
YesFlag = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
PlanFlag = Annotated[bool, typer.Option("--plan", help="Show the effect on the quorum, and change nothing.")]
WaitFlag = Annotated[bool, typer.Option("--wait", help="Wait until it is done, and show progress. Ctrl-C leaves it running.")]


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """Where the nodes are, and how they are asked."""

    url: Sequence[str] | None
    cluster: Path | None
    token_file: Path | None
    ca_file: Path | None
    timeout_s: float

    def reader(self, timeout_s: float) -> StatusReader:
        """Asks every node for itself, and all again for longer where none answers. Raises: BadClusterFile, CommandFailed."""
        urls = [each for given in self.url or () for each in listed_urls(given)]
        return StatusReader(urls, self.cluster, self.token_file, self.ca_file, timeout_s, patience_s=self.timeout_s)

    @contextlib.contextmanager
    def client(self, rows: Sequence[Mapping[str, Any]]) -> Iterator[Client]:
        """A client of the nodes in these rows, the leader first. Its errors leave as CommandFailed."""
        with server(",".join(urls_of(rows)), self.token_file, self.timeout_s, self.ca_file) as client:
            yield client


def with_access(
    command: Callable[..., None], *, timeout_s: float = TIMEOUT_S, without: Collection[str] = ()
) -> Callable[..., None]:
    """The command for typer: with the options of how nodes are reached, from which it gets its `access`, and less `without`."""

    def access(
        *,
        url: UrlsOption = None,
        cluster: ClusterOption = None,
        token_file: TokenOption = None,
        ca_file: CaOption = None,
        timeout: TimeoutOption = timeout_s,
    ) -> ClusterAccess:
        return ClusterAccess(url, cluster, token_file, ca_file, timeout)

    shared = list(inspect.signature(access, eval_str=True).parameters.values())
    names = [one.name for one in shared]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        command(access=access(**{name: given.pop(name) for name in names}), **given)

    own = [
        one.replace(kind=one.KEYWORD_ONLY)
        for one in inspect.signature(command, eval_str=True).parameters.values()
        if one.name not in ("access", *without)
    ]
    arguments = [one for one in own if one.default is one.empty]
    parameters = [*arguments, *shared, *(one for one in own if one.default is not one.empty)]
    run.__dict__["__signature__"] = inspect.Signature(parameters)
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def ask_first(question: str, *, yes: bool, show: Callable[[], None] = lambda: None) -> None:
    """Shows the details, and asks. Raises: CommandFailed where there is no terminal; typer.Abort."""
    if yes:
        return
    if out.json or not sys.stdin.isatty():
        raise CommandFailed("without a terminal this needs --yes", hint="look first: --plan or `list`", exit_code=USAGE)
    show()
    typer.confirm(visible(question), abort=True, err=True)


def urls_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The leader's first, then those that answered."""
    return [str(row["url"]) for row in sorted(rows, key=lambda row: (row.get("standing") != "leading", "groups" not in row))]
