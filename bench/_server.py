"""A real server with the bank sample, and the empty application, as processes for benchmarks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from bench._common import ROOT
from bench._load import Target, request, run_load
from bench._nodes import BRANCHES, CUSTOMERS
from cmdlog.cli.demo_server import ServerProcess
from procedures.samples import bank


@contextmanager
def bank_server(folder: Path, *, partitions: int = 1) -> Iterator[tuple[ServerProcess, int]]:
    """`cmdlog serve` with loaded accounts, and its port."""
    folder.mkdir(parents=True, exist_ok=True)
    server = ServerProcess(folder / "data", partitions=partitions, log=folder / "server.log")
    try:
        port = int(server.url.rpartition(":")[2])
        loading = list(bank.loader(branches=BRANCHES, customers=CUSTOMERS, checking=1_000_000))
        answered(run_load(Target(port, [batch_request(loading)]), connections=1, count=1))
        yield server, port
        server.stop()
    finally:
        server.kill([])


@contextmanager
def empty_server() -> Iterator[int]:
    """The application that does nothing; its port."""
    process = subprocess.Popen([sys.executable, "-m", "bench._empty"], stdout=subprocess.PIPE, cwd=ROOT)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


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
