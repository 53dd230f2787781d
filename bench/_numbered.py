"""Load of clients that name their calls: `python -m bench._numbered`, order as JSON on standard input, figures on output.

One rule: the names cost the client next to nothing beside what is measured. All but the header of a shared session is made before
the clock starts. `session` is one client that has all connections, `sessions` a client with a session of its own for each.

Order: {"port", "names", "connections", "each": requests of a connection, "lines": calls of a request (0: single calls), "seed"}.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Literal

import orjson
import uvloop

from bench._load import Client, request, run_module
from bench._nodes import transfers
from cmdlog.client.session import uuid7
from cmdlog.whole_line_stdout import answer
from procedures.samples import bank

Names = Literal["none", "session", "sessions", "key"]
CALLS = 2000  # that differ
FLOOR_EVERY = 16  # calls of a shared session
JSON = "Content-Type: application/json\r\n"
MARK = "X-Mark: \r\n"  # where the session goes
NDJSON = "Content-Type: application/x-ndjson\r\n"


def run_numbered(port: int, names: Names, *, connections: int, each: int, lines: int, seed: int) -> dict[str, Any]:
    """Calls per second of one round, its statuses and the CPU time of the client."""
    order = {"port": port, "names": names, "connections": connections, "each": each, "lines": lines, "seed": seed}
    found: dict[str, Any] = run_module("bench._numbered", orjson.dumps(order))
    if set(found["statuses"]) != {"200"}:
        raise RuntimeError(f"not all requests succeeded: {found['statuses']}")
    return found


def new_uuid() -> str:
    return uuid7(time.time_ns() // 1_000_000, os.urandom(10))


class SharedSession:
    """The session of a client that has all connections; on each, one call is under way. Costs less than `ClientSessions`."""

    def __init__(self) -> None:
        self.uuid = new_uuid().encode()
        self._last = self._floor = 0
        self._under_way: list[int] = []  # number of the call on each connection that has begun

    def name_calls(self, parts: Sequence[tuple[bytes, bytes]]) -> Iterator[bytes]:
        """The requests of one connection."""
        lane = 0
        for at, (head, tail) in enumerate(parts):
            self._last = number = self._last + 1
            if at:
                self._under_way[lane] = number
            else:
                lane = len(self._under_way)
                self._under_way.append(number)
            if not number % FLOOR_EVERY:
                self._floor = min(self._under_way) - 1
            yield b"%bCmdlog-Session: %b; number=%d; floor=%d\r\n%b" % (head, self.uuid, number, self._floor, tail)


def single_requests(calls: Sequence[bank.Call], names: Names, each: int, shared: SharedSession) -> Iterator[bytes]:
    """The requests of one connection, whose next one is sent when the former is answered."""
    parts, uuid = [], new_uuid()
    for number, (name, params) in enumerate(itertools.islice(itertools.cycle(calls), each), 1):
        headers = JSON + MARK
        if names == "key":
            headers = f"{JSON}Idempotency-Key: {new_uuid()}\r\n"
        elif names == "sessions":
            headers = f"{JSON}Cmdlog-Session: {uuid}; number={number}; floor={number - 1}\r\n"
        head, _, tail = request("POST", f"/v1/procedures/{name}", orjson.dumps(params), headers=headers).partition(MARK.encode())
        parts.append((head, tail))
    return shared.name_calls(parts) if names == "session" else map(b"".join, parts)


def batch_requests(calls: Sequence[bank.Call], names: Names, each: int, lines: int) -> Iterator[bytes]:
    """The same, of one that sends `lines` calls at a time."""
    session, endless, number = new_uuid(), itertools.cycle(calls), itertools.count(1)
    for at in range(each):
        headers = NDJSON + (f"Cmdlog-Session: {session}; floor={at * lines}\r\n" if names == "sessions" else "")
        entries: list[dict[str, Any]] = [
            {"procedure": name, "params": params} for name, params in itertools.islice(endless, lines)
        ]
        if names == "sessions":
            entries = [{**entry, "number": next(number)} for entry in entries]
        elif names == "key":
            entries = [{**entry, "key": new_uuid()} for entry in entries]
        yield request("POST", "/v1/batch", b"\n".join(map(orjson.dumps, entries)), headers=headers)


async def load(order: dict[str, Any]) -> dict[str, Any]:
    """One round, from its first request to its last answer."""
    calls = transfers(order["seed"], CALLS)
    lines, each, names = order["lines"], order["each"], order["names"]
    latencies: list[float] = []
    statuses: dict[str, int] = {}
    clients, shared = [], SharedSession()
    for _ in range(order["connections"]):
        work = iter(list(batch_requests(calls, names, each, lines))) if lines else single_requests(calls, names, each, shared)
        make = partial(Client, work, latencies, statuses)
        _, client = await asyncio.get_running_loop().create_connection(make, "127.0.0.1", order["port"])
        clients.append(client)
    began, cpu = time.perf_counter(), time.process_time()
    for client in clients:
        client.begin()
    for client in clients:
        await client.finished
    elapsed, cpu = time.perf_counter() - began, time.process_time() - cpu
    return {"per_second": len(latencies) * (lines or 1) / elapsed, "statuses": statuses, "cpu_s": cpu}


def main() -> None:
    order = orjson.loads(sys.stdin.buffer.read())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        answer(orjson.dumps(runner.run(load(order))))


if __name__ == "__main__":
    main()
