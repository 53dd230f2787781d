"""A load generator in a process of its own: `python -m bench._load`, order as JSON on standard input, figures on standard output.

One rule: it costs little beside what it measures. Requests are bytes that were made before the clock started; an answer is read
only as far as its end must be found. Kept connections, one request under way on each, as clients that wait for their answers.

Order: {"targets": [{"port", "requests": [base64]}], "connections", "count", "seconds", "mode": "load" | "turns"}. `load` spreads
`count` requests of the first target over the connections, or as many as `seconds` allow; `turns` sends one request to each target
in turn, over one connection each.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import math
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import orjson
import uvloop

from bench._common import percentile
from cmdlog.whole_line_stdout import answer

END_OF_HEAD = b"\r\n\r\n"
END_OF_CHUNKS = b"0\r\n\r\n"
LENGTHS = (b"content-length: ", b"Content-Length: ")  # as uvicorn writes header names, and as Go does
RECEIVE_BYTES = 1 << 20
ENDLESS = 1 << 40


@dataclass(frozen=True, slots=True)
class Target:
    """A port of this machine and the requests to send there, over and over."""

    port: int
    requests: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Sample:
    """What a client saw in one round."""

    count: int
    per_second: float
    mean_s: float
    p50_s: float
    p99_s: float
    p999_s: float
    client_cpu_s: float


def run_load(target: Target, *, connections: int, count: int) -> dict[str, Any]:
    """All connections at work at once; rate, latencies in seconds, statuses."""
    return _run(_order([target], connections=connections, count=count))  # type: ignore[no-any-return]


def run_closed(target: Target, connections: int, seconds: float) -> Sample:
    """As many requests as go through in the time. Raises: RuntimeError when one is not answered with 200."""
    return sample_of(_run(_order([target], connections=connections, seconds=seconds)))


def run_turns(targets: Sequence[Target], *, count: int) -> list[list[float]]:
    """Latencies of `count` requests to each target, one after the other in turns."""
    latencies: list[list[float]] = _run(_order(targets, count=count, mode="turns"))["latencies"]
    return latencies


def sample_of(found: dict[str, Any]) -> Sample:
    """The figures in short. Raises: RuntimeError when a request was not answered with 200."""
    if set(found["statuses"]) != {"200"}:
        raise RuntimeError(f"not all requests succeeded: {found['statuses']}")
    latencies = found["latencies"]
    p50, p99, p999 = (percentile(latencies, share) for share in (0.5, 0.99, 0.999))
    mean = statistics.fmean(latencies)
    return Sample(len(latencies), found["per_second"], mean, p50, p99, p999, found["cpu_s"])


def request(method: str, path: str, body: bytes = b"", *, headers: str = "") -> bytes:
    """A request as it goes over the wire."""
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return head.encode() + body


def encode_targets(targets: Sequence[Target]) -> list[dict[str, Any]]:
    """Targets as JSON can carry them."""
    return [
        {"port": target.port, "requests": [base64.b64encode(item).decode() for item in target.requests]} for target in targets
    ]


def decode_targets(told: Sequence[dict[str, Any]]) -> list[Target]:
    return [Target(item["port"], [base64.b64decode(text) for text in item["requests"]]) for item in told]


def run_module(name: str, order: bytes) -> Any:
    """Runs a load generator; what it found."""
    command = [sys.executable, "-m", name]
    done = subprocess.run(command, input=order, stdout=subprocess.PIPE, check=True, cwd=Path(__file__).parents[1])
    return orjson.loads(done.stdout)


def _order(
    targets: Sequence[Target],
    *,
    connections: int = 1,
    count: int | None = None,
    seconds: float | None = None,
    mode: str = "load",
) -> bytes:
    order = {"connections": connections, "count": count, "seconds": seconds, "mode": mode}
    return orjson.dumps(order | {"targets": encode_targets(targets)})


def _run(order: bytes) -> Any:
    return run_module("bench._load", order)


class Client(asyncio.Protocol):
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
    at = max(held.find(name, 0, head) for name in LENGTHS)
    if at < 0:
        return held.endswith(END_OF_CHUNKS)
    length = int(held[at + len(LENGTHS[0]) : held.index(b"\r", at)])
    return len(held) >= head + 4 + length


def _work(target: Target, count: int | None, seconds: float | None) -> Iterator[bytes]:
    """Requests until enough were sent, or the time is over."""
    end = math.inf if seconds is None else time.perf_counter() + seconds
    for item in itertools.islice(itertools.cycle(target.requests), ENDLESS if count is None else count):
        if time.perf_counter() >= end:
            return
        yield item


async def _load(target: Target, connections: int, count: int | None, seconds: float | None) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    work = _work(target, count, seconds)
    latencies: list[float] = []
    statuses: dict[str, int] = {}
    clients: list[Client] = []
    for _ in range(connections):
        _, client = await loop.create_connection(lambda: Client(work, latencies, statuses), "127.0.0.1", target.port)
        clients.append(client)
    began, cpu = time.perf_counter(), time.process_time()
    for client in clients:
        client.begin()
    for client in clients:
        await client.finished
    elapsed, cpu = time.perf_counter() - began, time.process_time() - cpu
    return {"per_second": len(latencies) / elapsed, "latencies": latencies, "statuses": statuses, "cpu_s": cpu}


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
    targets = decode_targets(order["targets"])
    if order["mode"] == "turns":
        found = _turns(targets, order["count"])
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            found = runner.run(_load(targets[0], order["connections"], order["count"], order["seconds"]))
    answer(orjson.dumps(found))


if __name__ == "__main__":
    main()
