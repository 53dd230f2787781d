"""What the commands on a cluster share: their options, the status of every node, and the way to the leader.

One rule: one URL is enough. Its node names the others; all are asked at once, each for itself, and a request goes to the leader.
A node that does not answer is a row, not an error; only when no node answers are their errors raised.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cmdlog.cli.cli_errors import USAGE, CommandFailed
from cmdlog.cli.cluster.cluster_health import BOOTSTRAPPING, UNREACHABLE
from cmdlog.cli.output import out, visible
from cmdlog.cli.server.server_options import (
    DEFAULT_URL,
    TIMEOUT_S,
    CaOption,
    TimeoutOption,
    TokenOption,
    check_certificates,
    failure_of,
    listed_urls,
    local_token,
    server,
    understood,
)

if TYPE_CHECKING:
    from cmdlog.client import Client

LOOK_S: Final = 5.0  # for one node: a change matters more than a moment of waiting
ASKED_AT_ONCE: Final = 16
KEPT: Final = ("ready", "partitions", "stalled", "cluster_id", "bundle", "uptime_s", "error")  # of a status, beside its `cluster`
OF_LOG: Final = ("fill", "held_by", "error")
OF_ARCHIVE: Final = ("window_s", "oldest_txn", "oldest_time")
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
        return StatusReader(self, timeout_s)

    @contextlib.contextmanager
    def client(self, rows: Sequence[Mapping[str, Any]]) -> Iterator[Client]:
        """A client of the nodes in these rows, the leader first. Its errors leave as CommandFailed."""
        with server(",".join(urls_of(rows)), self.token_file, self.timeout_s, self.ca_file) as client:
            yield client


class StatusReader:
    """Where the nodes are, and how they are asked."""

    def __init__(self, access: ClusterAccess, timeout_s: float) -> None:
        """Where no node has answered within `timeout_s`, each is given the time of `access`, if any.

        Raises: BadClusterFile; CommandFailed for certificates that cannot be read.
        """
        self._members: dict[int, str] = {}  # of the cluster file
        if access.cluster is not None:
            from cmdlog.cluster.cluster_file import ClusterFile

            self._members = {member.node: member.client for member in ClusterFile.load(access.cluster).members}
        urls = dict.fromkeys(each for given in access.url or () for each in listed_urls(given))
        self._urls = list(urls) or ([] if self._members else [DEFAULT_URL])
        check_certificates(access.ca_file)
        self._access, self._timeout_s = access, timeout_s

    def ask_all(self) -> list[dict[str, Any]]:
        """Of every node that was named, or that one of these names: `node`, `url`, `state`, and what it reported. Ascending.

        Raises: CommandFailed, when none is a member of a cluster that answers and something else than silence is the reason.
        """
        with understood("a node"), ThreadPoolExecutor(ASKED_AT_ONCE, thread_name_prefix="cmdlog-ask") as pool:

            def ask_each(urls: Sequence[str], timeout_s: float) -> dict[str, dict[str, Any]]:
                return dict(zip(urls, pool.map(lambda url: self._ask(url, timeout_s), urls), strict=True))

            first = self._urls or list(self._members.values())
            rows = ask_each(first, self._timeout_s)
            if self._access.timeout_s and all(row["state"] == UNREACHABLE for row in rows.values()):
                rows = ask_each(first, self._access.timeout_s)
            members = {**self._members, **_members_of(rows.values())}
            if not self._urls:  # the file may be older than the cluster is: what has moved or left by now is no row
                listed = {url for node, url in members.items() if node not in _removed_of(rows.values())}
                rows = {url: row for url, row in rows.items() if url in listed or "groups" in row}
            met = {row["node"] for row in rows.values()} | _removed_of(rows.values())
            others = [url for node, url in members.items() if node not in met and url not in rows]
            rows |= ask_each(others, self._timeout_s)
        self._check_some(rows.values())
        numbers = {url: node for node, url in members.items()}
        for url, row in rows.items():
            if row["node"] is None:
                row["node"] = numbers.get(url)
        return sorted(rows.values(), key=lambda row: (row["node"] is None, row["node"] or 0, row["url"]))

    def _ask(self, url: str, timeout_s: float) -> dict[str, Any]:
        from cmdlog.client import Client, RetryPolicy
        from cmdlog.errors import CmdlogError, Unreachable

        retry = RetryPolicy(connect_s=timeout_s, attempt_s=timeout_s, attempts_max=1)
        row: dict[str, Any] = {"node": None, "url": url, "state": UNREACHABLE}
        try:
            token, file, ca = local_token(self._access.token_file), self._access.token_file, self._access.ca_file
            client = Client(url, token=token, token_file=file, timeout_s=timeout_s, verify=str(ca) if ca else True, retry=retry)
        except ValueError as error:
            raise CommandFailed(str(error), hint="such as http://127.0.0.1:8642", exit_code=2) from None
        with client:
            try:
                status = client.status()
            except CmdlogError as error:
                state = BOOTSTRAPPING if error.code == "not_ready" else UNREACHABLE
                code = "unreachable" if isinstance(error, Unreachable) else error.code
                return {**row, "state": state, "error": str(failure_of(error, url)), "code": code}
        if "cluster" not in status:
            return {**row, "error": "a node alone, of no cluster", "code": "alone"}
        log = {name: status["log"].get(name) for name in OF_LOG} if "log" in status else {}
        history = {name: status["archive"].get(name) for name in OF_ARCHIVE} if status.get("archive") else {}
        return {**row, **{name: status.get(name) for name in KEPT}, "log": log, "history": history, **status["cluster"]}

    def _check_some(self, rows: Sequence[Mapping[str, Any]] | Any) -> None:
        """Raises: CommandFailed."""
        if any("groups" in row for row in rows):
            return
        for row in rows:
            if row["code"] == "alone":
                raise CommandFailed(f"{row['url']} is a node alone", hint="`cmdlog status` shows it")
            if row["code"] not in ("unreachable", "not_ready"):
                raise CommandFailed(row["error"], hint="give the token by --token-file or CMDLOG_TOKEN")


def _members_of(rows: Any) -> dict[int, str]:
    """A node that has moved is at the address of the newest version."""
    views = sorted(rows, key=lambda row: row.get("version", 0))
    return {member["node"]: str(member["client"]) for row in views for member in row.get("members", ())}


def _removed_of(rows: Any) -> set[int]:
    """Nodes that are stated for ever, and are not asked."""
    newest: Mapping[str, Any] = max(rows, key=lambda row: row.get("version", 0), default={})
    return {member["node"] for member in newest.get("members", ()) if member.get("state") == "removed"}


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
