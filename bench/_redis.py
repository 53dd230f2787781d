"""Redis with the bank's transfer as a Lua script, on a socket in a folder of its own; skipped where it is not installed.

Its append-only file is synced before every round of answers (`appendfsync always`): clients that ask together share a sync.
"""

from __future__ import annotations

import csv
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench._nodes import BRANCHES, CUSTOMERS

# Keys are named as redis-benchmark draws them: twelve digits.
ACCOUNTS = BRANCHES * CUSTOMERS
NAME = "account:{:012d}"
DRAWN = "account:__rand_int__"
SCRIPT = """
local held = tonumber(redis.call('GET', KEYS[1]))
local amount = tonumber(ARGV[1])
if held < amount then return redis.error_reply('insufficient funds') end
redis.call('DECRBY', KEYS[1], amount)
redis.call('INCRBY', KEYS[2], amount)
return held - amount
"""
OPTIONS = ("--port", "0", "--appendonly", "yes", "--appendfsync", "always", "--save", "", "--auto-aof-rewrite-percentage", "0")
TOOLS = ("redis-server", "redis-benchmark")
START_TIMEOUT_S = 20.0
TRIAL = 500  # transfers that say how many fill a round

Run = Callable[[int, int, int], float]  # clients, requests that each of them sends at a time, round; transfers per second


@contextmanager
def redis(folder: Path, *, seconds: float) -> Iterator[Run | str]:
    """A server with loaded accounts: a function that gives the transfers per second of one round; or why there is none."""
    missing = [name for name in TOOLS if shutil.which(name) is None]
    if missing:
        yield f"{', '.join(missing)} not installed: apt-get install redis-server"
        return
    home = folder / "redis"
    home.mkdir()
    with _server(home) as path:
        with _connect(path) as client:
            for first in range(0, ACCOUNTS, 1000):
                _ask(client, "MSET", *(word for n in range(first, first + 1000) for word in (NAME.format(n), "1000000")))
            sha = _ask(client, "SCRIPT", "LOAD", SCRIPT)
        rates: dict[tuple[int, int], float] = {}

        def run(clients: int, pipelined: int, _round: int) -> float:
            at_once = clients * pipelined
            count = max(at_once, TRIAL, round(rates.get((clients, pipelined), 0.0) * seconds))
            rates[clients, pipelined] = _measure(path, sha, clients, pipelined, count)
            return rates[clients, pipelined]

        for clients, pipelined in ((1, 1), (32, 1), (32, 16)):
            run(clients, pipelined, 0)
        yield run


def _measure(path: Path, sha: str, clients: int, pipelined: int, count: int) -> float:
    load = ["-c", str(clients), "-P", str(pipelined), "-n", str(count), "-r", str(ACCOUNTS), "--csv"]
    command = ["redis-benchmark", "-s", str(path), *load, "EVALSHA", sha, "2", DRAWN, DRAWN, "5"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return float(next(csv.DictReader(done.stdout.splitlines()))["rps"])


@contextmanager
def _server(home: Path) -> Iterator[Path]:
    path = home / "socket"
    with (home / "log").open("wb") as log:
        command = ["redis-server", *OPTIONS, "--dir", str(home), "--unixsocket", str(path)]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not path.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"redis-server did not start: {(home / 'log').read_text()[-500:]}")
            time.sleep(0.01)
        yield path
    finally:
        process.kill()
        process.wait()


def _connect(path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(path))
    return client


def _ask(client: socket.socket, *words: str) -> str:
    """One command; its answer, which fits into one packet here. Raises: RuntimeError."""
    client.sendall(_encode(words))
    answer = client.recv(1 << 16).decode()
    if answer.startswith("-"):
        raise RuntimeError(f"redis: {answer}")
    return answer.splitlines()[-1].lstrip("+")


def _encode(words: Sequence[str]) -> bytes:
    return "".join([f"*{len(words)}\r\n", *(f"${len(word.encode())}\r\n{word}\r\n" for word in words)]).encode()
