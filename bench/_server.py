"""A real server with the bank sample, and applications that are compared with it, as processes for benchmarks."""

from __future__ import annotations

import http.client
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from bench._common import ROOT
from bench._load import Target, request, run_load
from bench._nodes import ACCOUNTS, Accounts
from cmdlog.cli.demo.server import LaunchedServer
from procedures.samples import bank

FETCH_TIMEOUT_S = 30.0


class ServerProcess(LaunchedServer):
    """A node alone, which is ready when it is constructed."""

    def __init__(self, data: Path, *options: str, partitions: int, log: Path, **given: str) -> None:
        super().__init__(data, "--port", "0", "--partitions", str(partitions), *options, log=log, **given)
        self.wait_ready()


@contextmanager
def bank_server(
    folder: Path, *options: str, partitions: int = 1, accounts: Accounts = ACCOUNTS
) -> Iterator[tuple[ServerProcess, int]]:
    """`cmdlog serve` with these options and loaded accounts, and its port.

    It leads a session of its own, as every server that is compared must: Linux shares a busy CPU out by sessions (autogroup).
    """
    folder.mkdir(parents=True, exist_ok=True)
    server = ServerProcess(folder / "data", *options, partitions=partitions, log=folder / "server.log")
    try:
        port = int(server.url.rpartition(":")[2])
        load_accounts(port, accounts)
        yield server, port
        server.stop()
    finally:
        server.kill([])


@contextmanager
def module_server(module: str, *arguments: str) -> Iterator[tuple[int, int]]:
    """A module that serves HTTP and prints its port; its process id and port."""
    command = [sys.executable, "-m", module, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, start_new_session=True)  # see `bank_server`
    try:
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def load_accounts(port: int, accounts: Accounts = ACCOUNTS) -> None:
    """Opens every account, in one batch."""
    loading = list(bank.loader(**accounts._asdict()))
    answered(run_load(Target(port, [batch_request(loading)]), connections=1, count=1))


def fetch(port: int, path: str) -> bytes:
    """A page of the server. Raises: RuntimeError."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=FETCH_TIMEOUT_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"GET {path} was answered with {response.status}")
        return response.read()
    finally:
        connection.close()


def server_pids(server: LaunchedServer, port: int) -> dict[str, int]:
    """The server's processes: `node`, and its sites by number."""
    told = orjson.loads(fetch(port, "/v1/status"))
    return {"node": server.pid, **{f"site {number}": pid for number, pid in enumerate(told["sites"])}}


def answered(found: dict[str, Any]) -> dict[str, Any]:
    """The figures, if every request was answered with 200. Raises: RuntimeError."""
    if set(found["statuses"]) != {"200"}:
        raise RuntimeError(f"not all requests succeeded: {found['statuses']}")
    return found


def call_requests(calls: Sequence[bank.Call]) -> list[bytes]:
    """One request per call."""
    json = "Content-Type: application/json\r\n"
    return [request("POST", f"/v1/procedures/{name}", orjson.dumps(params), headers=json) for name, params in calls]


def batch_request(calls: Sequence[bank.Call]) -> bytes:
    """All calls in one request."""
    lines = [orjson.dumps({"procedure": name, "params": params}) for name, params in calls]
    return request("POST", "/v1/batch", b"\n".join(lines), headers="Content-Type: application/x-ndjson\r\n")
