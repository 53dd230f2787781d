"""The orderly stop of a node whose work another one takes over: leadership first, then clients, then the sockets."""

from __future__ import annotations

import asyncio
import socket
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from cmdlog.api.connections import http_server
from cmdlog.api.connections.connection_registry import ConnectionRegistry
from cmdlog.api.connections.http_server import Acceptor
from cmdlog.api.server import Events, _Runner
from cmdlog.node.settings import Settings
from tests.api.echo import Application, echoes, post
from tests.api.served import Served
from tests.waiting import PATIENCE_S, eventually


def test_a_connection_that_is_to_end_says_so_with_its_answer(server: Served) -> None:
    """A client that goes on with it would send a request into a socket that is being closed."""
    with server.connect() as client:
        echoes(client, b"x")
        server.inside(lambda: setattr(server.registry, "leaving", True))
        try:
            client.sendall(post("/echo", b"y"))
            told = b""
            while part := client.recv(4096):
                told += part
        finally:
            server.inside(lambda: setattr(server.registry, "leaving", False))
    assert told.endswith(b"connection: close\r\n\r\ny")


async def test_connections_that_wait_are_taken_before_the_socket_is_closed() -> None:
    """They are connected for their clients: lost with the socket, a request would have no answer."""
    made: list[asyncio.Protocol] = []

    def make() -> asyncio.Protocol:
        made.append(asyncio.Protocol())
        return made[-1]

    listener = socket.create_server(("127.0.0.1", 0))
    acceptor = Acceptor(listener, make)
    clients = [socket.create_connection(listener.getsockname()) for _ in range(3)]
    acceptor.close()
    acceptor.close()
    await acceptor.wait_closed()
    for client in clients:
        client.close()
    assert len(made) == 3


async def test_connections_that_are_taken_last_end_with_their_answer() -> None:
    """Else a client keeps using one of them, and is cut off when the time to drain is over."""
    told: list[bytes] = []
    registry = ConnectionRegistry(Application(), Settings(), connections_max=10)
    server = http_server.HttpServer(http_server.make_config(registry))
    listener = socket.create_server(("127.0.0.1", 0))
    registry.start()
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    assert await asyncio.to_thread(eventually, lambda: server.started)
    asyncio.get_running_loop().remove_reader(listener)  # it is slow: the client waits in the queue
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(post("/echo", b"x"))
    server.end()
    told.append(await reader.read())  # to its end, which is the server's doing
    writer.close()
    await serving
    registry.stop()
    assert told[0].startswith(b"HTTP/1.1 200 OK")
    assert told[0].endswith(b"\r\n\r\nx")


class Stop:
    """A server that gets its first signal, with a node that hands over when it is let."""

    def __init__(self, *, handed_over: bool) -> None:
        self.steps: list[str] = []
        self.let = threading.Event()
        self.server = SimpleNamespace(servers=[SimpleNamespace(close=lambda: self.steps.append("socket"))])
        self.server.end = lambda: self.steps.append("end")
        self.server.stop = lambda: self.steps.append("at once")
        self.registry = SimpleNamespace(settings=SimpleNamespace(drain_timeout_s=1.0), open=set("connections"))
        self.registry.begin_leaving = lambda: self.steps.append("leave")
        self.handed_over = handed_over

    def hand_over(self) -> bool:
        assert self.let.wait(PATIENCE_S)
        self.steps.append("handed over")
        return self.handed_over

    def run(self, *, signals: int = 1) -> list[str]:
        """The steps of the stop."""

        async def scenario() -> None:
            runner: Any = _Runner.__new__(_Runner)
            runner._service = service = SimpleNamespace(stopping=False, maybe_node=self)
            service.begin_stop = lambda: setattr(service, "stopping", True)
            runner._server, runner._roster, runner._loop = self.server, self.registry, asyncio.get_running_loop()
            runner._processes = None
            runner._events = Events(stopping=lambda: self.steps.append("said"))
            for _ in range(signals):
                runner._stop()
            assert service.stopping
            self.let.set()
            await runner._handing_over

        asyncio.run(scenario())
        return self.steps


@pytest.mark.parametrize(
    ("handed_over", "steps"),
    [(True, ["said", "handed over", "leave", "socket", "end"]), (False, ["said", "handed over", "end"])],
)
def test_leadership_is_given_away_before_requests_are_refused(
    monkeypatch: pytest.MonkeyPatch, handed_over: bool, steps: list[str]
) -> None:
    """Where another node takes the calls, clients are told to leave, and those in the queue are answered."""
    monkeypatch.setattr(http_server, "LEAVE_S", 0.001)
    assert Stop(handed_over=handed_over).run() == steps


def test_a_second_signal_does_not_wait_for_a_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends what is under way, as ever."""
    monkeypatch.setattr(http_server, "LEAVE_S", 0.001)
    assert Stop(handed_over=False).run(signals=2)[:3] == ["said", "end", "at once"]
