"""A load generator in a process of its own: `python -m bench._load`, order as JSON on standard input, figures on standard output.

One rule: it costs little beside what it measures. Requests are bytes that were made before the clock started; an answer is read
only as far as its end must be found. Kept connections, one request under way on each, as clients that wait for their answers.

Order: {"targets": [{"port", "requests": [base64]}], "connections", "count", "mode": "load" | "turns"}. `load` spreads `count`
requests of the first target over the connections; `turns` sends one request to each target in turn, over one connection each.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import orjson
import uvloop

END_OF_HEAD = b"\r\n\r\n"
END_OF_CHUNKS = b"0\r\n\r\n"
LENGTH = b"content-length: "
RECEIVE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Target:
    """A port of this machine and the requests to send there, over and over."""

    port: int
    requests: Sequence[bytes]


def run_load(target: Target, *, connections: int, count: int) -> dict[str, Any]:
    """All connections at work at once; rate, latencies in seconds, statuses."""
    order = _order([target], connections=connections, count=count, mode="load")
    return _run(order)


def run_turns(targets: Sequence[Target], *, count: int) -> list[list[float]]:
    """Latencies of `count` requests to each target, one after the other in turns."""
    latencies: list[list[float]] = _run(_order(targets, connections=1, count=count, mode="turns"))["latencies"]
    return latencies


def request(method: str, path: str, body: bytes = b"", *, headers: str = "") -> bytes:
    """A request as it goes over the wire."""
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return head.encode() + body


def _order(targets: Sequence[Target], *, connections: int, count: int, mode: str) -> bytes:
    told = [
        {"port": target.port, "requests": [base64.b64encode(item).decode() for item in target.requests]} for target in targets
    ]
    return orjson.dumps({"targets": told, "connections": connections, "count": count, "mode": mode})


def _run(order: bytes) -> Any:
    command = [sys.executable, "-m", "bench._load"]
    done = subprocess.run(command, input=order, stdout=subprocess.PIPE, check=True, cwd=Path(__file__).parents[1])
    return orjson.loads(done.stdout)


class _Client(asyncio.Protocol):
    """One connection: sends, waits for the answer's end, notes the time, sends again while there is something."""

    def __init__(self, work: Iterator[bytes], latencies: list[float], statuses: dict[str, int]) -> None:
        self._work, self._latencies, self._statuses = work, latencies, statuses
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._held = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own class

    def begin(self) -> None:
        self._next()

    def _next(self) -> None:
        item = next(self._work, None)
        if item is None:
            self._transport.close()
            if not self.finished.done():
                self.finished.set_result(None)
            return
        self._began = time.perf_counter()
        self._transport.write(item)

    def data_received(self, data: bytes) -> None:
        self._held = held = self._held + data if self._held else data
        if not complete(held):
            return
        self._latencies.append(time.perf_counter() - self._began)
        status = held[9:12].decode()
        self._statuses[status] = self._statuses.get(status, 0) + 1
        self._held = b""
        self._next()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.finished.done():
            self.finished.set_exception(error or ConnectionError("the server closed the connection"))


def complete(held: bytes) -> bool:
    """Whether the bytes are a whole answer."""
    head = held.find(END_OF_HEAD)
    if head < 0:
        return False
    at = held.find(LENGTH, 0, head)  # uvicorn writes header names in lower case
    if at < 0:
        return held.endswith(END_OF_CHUNKS)
    length = int(held[at + len(LENGTH) : held.index(b"\r", at)])
    return len(held) >= head + 4 + length


async def _load(target: Target, connections: int, count: int) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    work = itertools.islice(itertools.cycle(target.requests), count)
    latencies: list[float] = []
    statuses: dict[str, int] = {}
    clients: list[_Client] = []
    for _ in range(connections):
        _, client = await loop.create_connection(lambda: _Client(work, latencies, statuses), "127.0.0.1", target.port)
        clients.append(client)
    began = time.perf_counter()
    for client in clients:
        client.begin()
    for client in clients:
        await client.finished
    elapsed = time.perf_counter() - began
    return {"per_second": len(latencies) / elapsed, "latencies": latencies, "statuses": statuses}


def _turns(targets: Sequence[Target], count: int) -> dict[str, Any]:
    sockets = [socket.create_connection(("127.0.0.1", target.port)) for target in targets]
    works = [itertools.cycle(target.requests) for target in targets]
    latencies: list[list[float]] = [[] for _ in targets]
    for sock in sockets:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(count):
        for sock, work, taken in zip(sockets, works, latencies, strict=True):
            item = next(work)
            began = time.perf_counter()
            sock.sendall(item)
            held = sock.recv(RECEIVE_BYTES)
            while not complete(held):
                held += sock.recv(RECEIVE_BYTES)
            taken.append(time.perf_counter() - began)
    return {"latencies": latencies}


def main() -> None:
    order = orjson.loads(sys.stdin.buffer.read())
    targets = [Target(item["port"], [base64.b64decode(text) for text in item["requests"]]) for item in order["targets"]]
    if order["mode"] == "turns":
        found = _turns(targets, order["count"])
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            found = runner.run(_load(targets[0], order["connections"], order["count"]))
    sys.stdout.buffer.write(orjson.dumps(found))


if __name__ == "__main__":
    main()
