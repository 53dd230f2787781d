"""Hostile clients in a process of their own: `python -m bench._siege`, order as JSON on standard input, until that ends.

One rule: they never rest. What the server closes is opened again at once; what it lets live drips on.

Order, in one line: {"port", "idle", "heads", "bodies"}: connections that say nothing; that send a header line now and then and
never the last one; that send a whole head and then a byte of the body now and then. When all are open once, {"open": N} is
printed; at the end the number of connections that were opened, and of those that got an answer before they were closed.
"""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

import orjson
import uvloop

FILES_SPARE: Final = 200
DRIP_S: Final = 2.0
HEAD: Final = b"POST /v1/procedures/transfer HTTP/1.1\r\nHost: 127.0.0.1\r\n"
DRIPS: Final[dict[str, tuple[bytes, bytes]]] = {
    "idle": (b"", b""),
    "heads": (HEAD, b"X-Drip: 1\r\n"),
    "bodies": (HEAD + b"Content-Length: 100000\r\n\r\n{", b" "),
}


class Siege:
    """What a siege tells at its end."""

    def __init__(self) -> None:
        self.opened = 0
        self.answered = 0


@contextmanager
def siege(port: int, **kinds: int) -> Iterator[Siege]:
    """Holds so many connections of each kind (`idle`, `heads`, `bodies`); the figures are known afterwards."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench._siege"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1]
    )
    found = Siege()
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(orjson.dumps({"port": port, **kinds}) + b"\n")
        process.stdin.flush()
        if not process.stdout.readline():
            raise RuntimeError("the siege could not be laid")
        yield found
        process.stdin.close()
        told = orjson.loads(process.stdout.readline())
        found.opened, found.answered = told["opened"], told["answered"]
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            pipe.close()


class _Besieger(asyncio.Protocol):
    """One connection, and its successor when the server closes it."""

    def __init__(self, camp: _Camp, kind: str) -> None:
        self._camp, self._kind = camp, kind

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._camp.note_open()
        first, self._drop = DRIPS[self._kind]
        self._transport.write(first)
        self._drip()

    def _drip(self) -> None:
        if self._drop and not self._transport.is_closing():
            self._transport.write(self._drop)
            self._camp.loop.call_later(DRIP_S, self._drip)

    def data_received(self, _data: bytes) -> None:
        self._camp.answered += 1

    def connection_lost(self, _error: Exception | None) -> None:
        self._camp.open_one(self._kind)


class _Camp:
    """All of them."""

    def __init__(self, port: int, kinds: dict[str, int]) -> None:
        self.loop = asyncio.get_running_loop()
        self._port, self._kinds = port, kinds
        self._wanted = sum(kinds.values())
        self._tasks: set[asyncio.Task[Any]] = set()
        self.opened = self.answered = 0
        self.all_open = asyncio.Event()

    def start(self) -> None:
        for kind, count in self._kinds.items():
            for _ in range(count):
                self.open_one(kind)

    def open_one(self, kind: str) -> None:
        task = self.loop.create_task(self._open(kind))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open(self, kind: str) -> None:
        try:
            await self.loop.create_connection(lambda: _Besieger(self, kind), "127.0.0.1", self._port)
        except OSError:
            await asyncio.sleep(DRIP_S)
            self.open_one(kind)

    def note_open(self) -> None:
        self.opened += 1
        if self.opened >= self._wanted:
            self.all_open.set()


async def _run(order: dict[str, int]) -> None:
    camp = _Camp(order.pop("port"), order)
    camp.start()
    await camp.all_open.wait()
    print(orjson.dumps({"open": camp.opened}).decode(), flush=True)
    await camp.loop.run_in_executor(None, sys.stdin.buffer.read)
    print(orjson.dumps({"opened": camp.opened, "answered": camp.answered}).decode(), flush=True)


def main() -> None:
    order = orjson.loads(sys.stdin.buffer.readline())
    wanted = sum(order.values()) + FILES_SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(order))


if __name__ == "__main__":
    main()
