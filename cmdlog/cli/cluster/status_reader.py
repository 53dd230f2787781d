"""Asks every node of a cluster for its status, all at once, each for itself.

One rule: a node that does not answer is a row, not an error; only when no node answers are their errors raised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.cluster.cluster_health import BOOTSTRAPPING, UNREACHABLE
from cmdlog.cli.server.server_options import DEFAULT_URL, check_certificates, failure_of, local_token, understood

ASKED_AT_ONCE: Final = 16
KEPT: Final = ("ready", "partitions", "stalled", "cluster_id", "bundle", "uptime_s", "error")  # of a status, beside its `cluster`
OF_LOG: Final = ("fill", "held_by", "error")
OF_ARCHIVE: Final = ("window_s", "oldest_txn", "oldest_time")


class StatusReader:
    """Where the nodes are, and how they are asked."""

    def __init__(
        self,
        urls: Sequence[str],
        cluster: Path | None,
        token_file: Path | None,
        ca_file: Path | None,
        timeout_s: float,
        *,
        patience_s: float = 0.0,
    ) -> None:
        """`patience_s`: where no node has answered within `timeout_s`, each is given so long.

        Raises: BadClusterFile; CommandFailed for certificates that cannot be read.
        """
        self._members: dict[int, str] = {}  # of the cluster file
        if cluster is not None:
            from cmdlog.cluster.cluster_file import ClusterFile

            self._members = {member.node: member.client for member in ClusterFile.load(cluster).members}
        self._urls = list(dict.fromkeys(urls)) or ([] if self._members else [DEFAULT_URL])
        check_certificates(ca_file)
        self._token_file, self._verify, self._timeout_s = token_file, str(ca_file) if ca_file else True, timeout_s
        self._patience_s = patience_s

    def ask_all(self) -> list[dict[str, Any]]:
        """Of every node that was named, or that one of these names: `node`, `url`, `state`, and what it reported. Ascending.

        Raises: CommandFailed, when none is a member of a cluster that answers and something else than silence is the reason.
        """
        with understood("a node"), ThreadPoolExecutor(ASKED_AT_ONCE, thread_name_prefix="cmdlog-ask") as pool:

            def ask_each(urls: Sequence[str], timeout_s: float) -> dict[str, dict[str, Any]]:
                return dict(zip(urls, pool.map(lambda url: self._ask(url, timeout_s), urls), strict=True))

            first = self._urls or list(self._members.values())
            rows = ask_each(first, self._timeout_s)
            if self._patience_s and all(row["state"] == UNREACHABLE for row in rows.values()):
                rows = ask_each(first, self._patience_s)
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
            token = local_token(self._token_file)
            client = Client(url, token=token, token_file=self._token_file, timeout_s=timeout_s, verify=self._verify, retry=retry)
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
