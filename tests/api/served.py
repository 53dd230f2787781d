"""The real server on loopback in a thread of this process, over any ASGI application, with its insides in reach."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import uvloop
from starlette.types import ASGIApp

from cmdlog.api.connections.connection_registry import ConnectionRegistry, Quick
from cmdlog.api.connections.http_parser import Headers
from cmdlog.api.connections.http_server import HttpServer, listen, make_config
from cmdlog.api.connections.tls import Certificate
from cmdlog.node.settings import Settings
from tests.waiting import PATIENCE_S, eventually

T = TypeVar("T")


class ClockLoop(uvloop.Loop):
    """An event loop whose time a test moves on; its timers run in real time all the same."""

    skipped_s = 0.0

    def time(self) -> float:
        return super().time() + self.skipped_s


class Served:
    """One server. `ask` is a client that sends bytes as they are; `pass_time` moves the clock of its deadlines."""

    def __init__(
        self,
        application: ASGIApp,
        settings: Settings,
        *,
        quick: Quick | None,
        connections_max: int,
        name_of: Callable[[Headers], str] | None,
    ) -> None:
        self.settings = settings
        certificate = Certificate(settings) if settings.tls_cert_file is not None else None
        self.registry = ConnectionRegistry(
            application,
            settings,
            connections_max=connections_max,
            certificate=certificate,
            streams=frozenset(("/stream",)),
            quick=quick,
            name_of=name_of,
        )
        listener = listen("127.0.0.1", 0, silence_max_s=settings.write_timeout_s)
        self.port: int = listener.getsockname()[1]
        self._server = HttpServer(make_config(self.registry))
        self._started = threading.Event()
        self.complaints: list[dict[str, Any]] = []  # what the loop was told of: nothing, if all is well
        self._thread = threading.Thread(target=self._run, args=(listener,), name="served")
        self._thread.start()
        assert self._started.wait(PATIENCE_S)

    def _run(self, listener: socket.socket) -> None:
        with asyncio.Runner(loop_factory=ClockLoop) as runner:
            runner.run(self._serve(listener))

    async def _serve(self, listener: socket.socket) -> None:
        running = asyncio.get_running_loop()
        assert isinstance(running, ClockLoop)
        self.loop = running
        self.loop.set_exception_handler(lambda _, context: self.complaints.append(context))
        (
            await self.loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
        ).close()  # with the first socket libuv opens a spare file
        self.registry.start()
        self.loop.call_soon(self._started.set)
        await self._server.serve(sockets=[listener])
        self.registry.stop()

    def stop(self) -> None:
        """Orderly."""
        self._server.should_exit = True
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def inside(self, look: Callable[[], T]) -> T:
        """What a function finds in the server's own thread."""
        found: list[T] = []
        done = threading.Event()

        def run() -> None:
            found.append(look())
            done.set()

        self.loop.call_soon_threadsafe(run)
        assert done.wait(PATIENCE_S)
        return found[0]

    def pass_time(self, seconds: float) -> None:
        """So much later: what was sent before is read, and every deadline was looked at when it returns."""

        def later() -> None:
            self.loop.skipped_s += seconds
            self.registry.stop()
            self.registry.start()

        for _ in range(2):  # what is readable now is read before the loop's next round but one
            self.inside(lambda: None)
        self.inside(later)

    def tasks(self) -> int:
        """Tasks beside that of the server itself."""
        return self.inside(lambda: len(asyncio.all_tasks(self.loop)) - 1)

    def connect(self) -> socket.socket:
        """A client's socket."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)

    def ask(self, data: bytes) -> bytes:
        """Sends and reads until the server closes. Closes only afterwards."""
        with self.connect() as client:
            client.sendall(data)
            return read_all(client)

    def settled(self) -> bool:
        """No connection and no request is left."""
        return eventually(lambda: self.inside(lambda: not self.registry.open and not self.registry.tasks) and self.tasks() == 0)


@contextmanager
def served(
    application: ASGIApp,
    *,
    quick: Quick | None = None,
    connections_max: int = 100,
    name_of: Callable[[Headers], str] | None = None,
    **settings: Any,
) -> Iterator[Served]:
    """A server for the length of a block; afterwards nothing of it is left and nothing went wrong in it."""
    server = Served(application, Settings(**settings), quick=quick, connections_max=connections_max, name_of=name_of)
    try:
        yield server
    finally:
        server.stop()
    assert server.complaints == [], server.complaints


def read_all(client: socket.socket) -> bytes:
    """Until the other side closes, orderly or not."""
    parts = []
    while True:
        try:
            part = client.recv(1 << 16)
        except ConnectionError:
            break
        if not part:
            break
        parts.append(part)
    return b"".join(parts)


def descriptors() -> int:
    """Open files of this process."""
    return len(os.listdir("/proc/self/fd"))


def status_of(answer: bytes) -> int:
    """Of the first answer; 0 when there is none."""
    return int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0
