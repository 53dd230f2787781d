"""The load generator of `bench._load`, with the moment of each answer: `python -m bench._stamped`, order and figures as there."""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from typing import Any

import orjson
import uvloop

from bench._load import Client, decode_targets
from cmdlog.whole_line_stdout import answer


class Stamped(list[Any]):
    """Latencies, each after the moment on the machine's monotonic clock at which it was complete."""

    def append(self, latency: Any) -> None:
        super().append((time.monotonic(), latency))


async def load_for(port: int, requests: list[bytes], connections: int, seconds: float) -> dict[str, Any]:
    """All connections at work for so long."""
    loop, latencies, statuses = asyncio.get_running_loop(), Stamped(), dict[str, int]()
    end = time.monotonic() + seconds
    work = itertools.takewhile(lambda _: time.monotonic() < end, itertools.cycle(requests))
    clients = []
    for _ in range(connections):
        _, client = await loop.create_connection(lambda: Client(work, latencies, statuses), "127.0.0.1", port)
        clients.append(client)
    for client in clients:
        client.begin()
    for client in clients:
        await client.finished
    return {"answers": latencies, "statuses": statuses}


def main() -> None:
    order = orjson.loads(sys.stdin.buffer.read())
    (target,) = decode_targets(order["targets"])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        answer(orjson.dumps(runner.run(load_for(target.port, list(target.requests), order["connections"], order["seconds"]))))


if __name__ == "__main__":
    main()
