"""etcd with three members on loopback, where it is installed: puts of values of a transfer's length, over gRPC's HTTP gateway.

Its data is in the folder under test, and a put is answered when a majority has synced it (etcd's default). The gateway is what a
client without gRPC uses.
"""

from __future__ import annotations

import base64
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import orjson

from bench._cluster import NODES, free_ports
from bench._load import Target, request, run_closed
from bench._server import fetch

SECONDS: Final = 1.0
KEYS: Final = 2000
VALUE: Final = b"x" * 64  # a transfer's parameters
READY_S: Final = 30.0

Run = Callable[[int, int], float]  # clients, round; puts per second


@contextmanager
def etcd(folder: Path) -> Iterator[Run | str]:
    """A function that gives the puts per second of one round; or why there is none."""
    program = shutil.which("etcd")
    if program is None:
        yield "etcd is not installed: apt-get install etcd-server"
        return
    ports = free_ports(2 * len(NODES))
    peers = ",".join(f"n{node}=http://127.0.0.1:{ports[2 + node]}" for node in NODES)
    processes = [_start([program, *_options(folder, node, ports), f"--initial-cluster={peers}"]) for node in NODES]
    try:
        _wait_for_health(ports[0])
        target = Target(ports[0], [_put(number) for number in range(KEYS)])
        yield lambda clients, _round: run_closed(target, clients, SECONDS).per_second
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _options(folder: Path, node: int, ports: Sequence[int]) -> list[str]:
    calls, others = (f"http://127.0.0.1:{ports[at]}" for at in (node - 1, 2 + node))
    values = {
        "name": f"n{node}", "data-dir": str(folder / f"etcd{node}"), "log-level": "error",
        "listen-client-urls": calls, "advertise-client-urls": calls,
        "listen-peer-urls": others, "initial-advertise-peer-urls": others,
    }  # fmt: skip
    return [f"--{name}={value}" for name, value in values.items()]


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def _wait_for_health(port: int) -> None:
    deadline = time.monotonic() + READY_S
    while True:
        try:
            if b'"true"' in fetch(port, "/health"):
                return
        except (OSError, RuntimeError):
            if time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def _put(number: int) -> bytes:
    body = {"key": base64.b64encode(b"account/%d" % number).decode(), "value": base64.b64encode(VALUE).decode()}
    return request("POST", "/v3/kv/put", orjson.dumps(body), headers="Content-Type: application/json\r\n")
