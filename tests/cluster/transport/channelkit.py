"""Both ends of a handshake in memory, whatever the channel, and what its WIRE.md says."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Coroutine
from typing import Any

from cmdlog.cluster.transport.framed_connection import FramedConnection
from tests.cluster.transport.fake_transport import FakeTransport

Shaken = tuple[object, object, list[bytes]]
Part = Callable[[FramedConnection], Coroutine[Any, Any, object]]


def shake(caller: Part, called: Part, *, replay: list[bytes] | None = None) -> Shaken:
    """What both ends got, or their errors, and what the caller sent. `replay` is said in the caller's place."""

    async def run() -> Shaken:
        ends = FramedConnection(silence_s=1.0), FramedConnection(silence_s=1.0)
        wires = FakeTransport(ends[0]), FakeTransport(ends[1])
        tasks = [asyncio.create_task(caller(ends[0])), asyncio.create_task(called(ends[1]))]
        sent: list[bytes] = []
        for _ in range(20):
            await asyncio.sleep(0)
            sent += (frames := wires[0].frames())
            if replay is not None:
                frames, replay[:1] = replay[:1], []
            for frame in frames:
                ends[1].data_received(frame)
            for frame in wires[1].frames():
                ends[0].data_received(frame)
            for task, other in zip(tasks, (ends[1], ends[0]), strict=True):
                if replay is None and task.done() and task.exception() is not None:
                    with contextlib.suppress(Exception):
                        other.connection_lost(None)
        results = await asyncio.gather(*[asyncio.wait_for(task, 0.1) for task in tasks], return_exceptions=True)
        return results[0], results[1], sent

    return asyncio.run(run())


def table_of(wire: str, title: str) -> list[tuple[int, int, str]]:
    """Offset, size and name of each field below a headline of a WIRE.md."""
    text = re.split(rf"^## {title}$", wire, flags=re.MULTILINE)[1].split("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\w+) \|$", text, flags=re.MULTILINE)
    return [(int(offset), int(size), name) for offset, size, name in rows]


def kinds_of(wire: str) -> dict[str, int]:
    """Number of each kind of frame by its name, as a WIRE.md has them."""
    return {name: int(number) for number, name in re.findall(r"^\| (\d+) \| ([A-Z_]+) \|", wire, flags=re.MULTILINE)}
