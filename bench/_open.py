"""An open-loop load generator in a process of its own: requests go out when they are due, whether or not others were answered.

One rule: a latency counts from the moment a request was *due*. A client that waits for its answer before it sends the next one
stops asking exactly while the server is slow, and so never sees most of the waiting (coordinated omission).

Requests are due at the moments of a Poisson process, as those of many clients that know nothing of each other. They use a pool of
kept connections; one that is due while all are taken waits for the first that becomes free, and the wait counts.
`select` is used for its time-out in microseconds: that of epoll, and so of every event loop here, counts in milliseconds.
"""

from __future__ import annotations

import itertools
import random
import select
import socket
import sys
import time
from collections import deque
from typing import Any

import orjson

from bench._load import RECEIVE_BYTES, Sample, Target, complete, decode_targets, encode_targets, run_module, sample_of
from cmdlog.whole_line_stdout import answer

CONNECTIONS = 128


def run_open(target: Target, *, per_second: float, seconds: float, seed: int) -> Sample:
    """Latencies at a rate that the clients choose. Raises: RuntimeError when a request is not answered with 200."""
    order = {"targets": encode_targets([target]), "per_second": per_second, "seconds": seconds, "seed": seed}
    return sample_of(run_module("bench._open", orjson.dumps(order)))


class _Pool:
    """Connections that are free, those that wait for an answer, and requests that wait for a connection."""

    def __init__(self, target: Target) -> None:
        self._requests = itertools.cycle(target.requests)
        self._free = [socket.create_connection(("127.0.0.1", target.port)) for _ in range(CONNECTIONS)]
        self._all = tuple(self._free)
        for sock in self._all:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._due: dict[socket.socket, float] = {}  # connections under way, and when their requests were due
        self._held: dict[socket.socket, bytes] = {}
        self._waiting: deque[float] = deque()
        self.latencies: list[float] = []
        self.statuses: dict[str, int] = {}

    def send(self, due: float) -> None:
        if not self._free:
            self._waiting.append(due)
            return
        sock = self._free.pop()
        self._due[sock] = due
        self._held[sock] = b""
        sock.sendall(next(self._requests))

    def receive(self, timeout_s: float) -> None:
        """Takes what has been answered, waiting for it until the time-out at most."""
        for sock in select.select(self._due, (), (), timeout_s)[0]:
            data = sock.recv(RECEIVE_BYTES)
            if not data:
                raise ConnectionError("the server closed the connection")
            self._held[sock] = held = self._held[sock] + data
            if complete(held):
                self._finish(sock, held)

    def _finish(self, sock: socket.socket, held: bytes) -> None:
        self.latencies.append(time.perf_counter() - self._due.pop(sock))
        status = held[9:12].decode()
        self.statuses[status] = self.statuses.get(status, 0) + 1
        self._free.append(sock)
        if self._waiting:
            self.send(self._waiting.popleft())

    def close(self) -> None:
        for sock in self._all:
            sock.close()

    @property
    def under_way(self) -> bool:
        return bool(self._due)


def drive(target: Target, per_second: float, seconds: float, seed: int) -> dict[str, Any]:
    """Sends what comes due within the time, and waits for all answers."""
    pool, chance, clock = _Pool(target), random.Random(seed), time.perf_counter
    cpu, began = time.process_time(), clock()
    due, end = began + chance.expovariate(per_second), began + seconds
    while due < end or pool.under_way:
        while due < end and due <= clock():
            pool.send(due)
            due += chance.expovariate(per_second)
        pool.receive(max(0.0, min(due, end) - clock()) if due < end else 1.0)
    pool.close()
    taken = pool.latencies
    return {
        "per_second": len(taken) / (clock() - began),
        "latencies": taken,
        "statuses": pool.statuses,
        "cpu_s": time.process_time() - cpu,
    }


def main() -> None:
    order = orjson.loads(sys.stdin.buffer.read())
    target = decode_targets(order["targets"])[0]
    found = drive(target, order["per_second"], order["seconds"], order["seed"])
    answer(orjson.dumps(found))


if __name__ == "__main__":
    main()
