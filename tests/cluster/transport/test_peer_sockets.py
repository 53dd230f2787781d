"""Sockets of the peers' port: a caller is led to the end of its handshake, a stranger costs a socket for a while."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from cmdlog.cluster.transport import peer_sockets
from cmdlog.cluster.transport.framed_connection import FramedConnection
from cmdlog.cluster.transport.peer_sockets import IncomingSockets, accept_sockets, connect_peer
from cmdlog.cluster.transport.peer_transport import Address, TransportSettings
from cmdlog.cluster.transport.quiet_log import QuietLog
from tests.cluster.transport.linkkit import turn_until, turns
from tests.cluster.transport.netkit import QUICK
from tests.waiting import PATIENCE_S

Greet = Callable[[FramedConnection], Awaitable[None]]
FEW = replace(QUICK, strangers_max=3)


class FullServer(socket.socket):
    """A listening socket for which there is no descriptor left, `refusals` times."""

    refusals = 0

    def accept(self) -> tuple[socket.socket, object]:
        if self.refusals:
            self.refusals -= 1
            raise OSError(errno.EMFILE, "too many open files")
        return super().accept()


async def silence(connection: FramedConnection) -> None:
    """A greeting that waits for a frame that never comes."""
    await connection.receive()


async def welcome(connection: FramedConnection) -> None:
    """A greeting that is content at once."""
    connection.deliver_to(lambda _: None, on_writable=lambda: None, on_closed=lambda: None)


class Port:
    """A port whose connections are greeted."""

    def __init__(self, greet: Greet, settings: TransportSettings) -> None:
        self.refused: list[str] = []
        self.incoming = IncomingSockets(
            greet, tls=None, settings=settings, refused=lambda why, _: self.refused.append(why), quiet=QuietLog()
        )  # fmt: skip
        self.listener = FullServer(socket.AF_INET)
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen()
        self.address: Address = self.listener.getsockname()
        self.callers: list[socket.socket] = []
        self.accepting = asyncio.create_task(accept_sockets(self.listener, self.incoming.take_stranger, QuietLog()))

    async def call(self, says: bytes = b"") -> socket.socket:
        """A connection that has come in."""
        before = self.incoming.connections
        self.callers.append(socket.create_connection(self.address, timeout=PATIENCE_S))
        self.callers[-1].sendall(says)
        await turn_until(lambda: self.incoming.connections is not before)
        return self.callers[-1]

    async def close(self) -> None:
        self.accepting.cancel()
        await asyncio.gather(self.accepting, *self.incoming.cancel_all(), return_exceptions=True)
        for sock in self.callers:
            sock.close()
        for connection in self.incoming.connections:
            connection.end()
        await turns()


def at_port(body: Callable[[Port], Awaitable[None]], greet: Greet = silence, settings: TransportSettings = FEW) -> None:
    """Runs a test beside the port."""

    async def run() -> None:
        port = Port(greet, settings)
        try:
            await body(port)
        finally:
            await port.close()

    asyncio.run(run())


async def is_hung_up_on(sock: socket.socket) -> bool:
    """Whether the other end closed it."""
    sock.setblocking(False)
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await asyncio.get_running_loop().sock_recv(sock, 1) == b""
    except ConnectionResetError:
        return True


def test_the_oldest_stranger_makes_room() -> None:
    """So their number is bounded, and a newcomer is heard; one that leaves gives its place back."""

    async def body(port: Port) -> None:
        callers = [await port.call() for _ in range(7)]
        assert (port.incoming.strangers, port.incoming.evicted) == (3, 4)
        assert [await is_hung_up_on(sock) for sock in callers[:4]] == [True] * 4
        callers[4].close()
        await turn_until(lambda: port.incoming.strangers == 2)
        await port.call()
        assert (port.incoming.strangers, port.incoming.evicted) == (3, 4)

    at_port(body)


def test_who_is_evicted_before_its_first_step_keeps_no_socket() -> None:
    """Its task never ran, so nothing else closes it."""

    async def body(port: Port) -> None:
        ours, theirs = socket.socketpair()
        port.incoming.take_stranger(ours)
        next(iter(port.incoming._strangers)).cancel()
        await turn_until(lambda: port.incoming.strangers == 0)
        assert ours.fileno() == -1
        theirs.close()

    at_port(body)


@pytest.mark.slow
def test_garbage_and_silence_are_closed_in_time() -> None:
    """With the reason of each."""

    async def body(port: Port) -> None:
        socks = [await port.call(), await port.call(b"\xff" * 200)]
        assert [await is_hung_up_on(sock) for sock in socks] == [True] * 2
        await turn_until(lambda: len(port.refused) == 2)
        assert "no answer in time" in port.refused

    at_port(body, settings=replace(FEW, hello_s=1.0))


def test_another_channel_gets_its_sockets() -> None:
    """From the byte after its preface on; all others are greeted here."""
    given: list[socket.socket] = []

    async def body(port: Port) -> None:
        port.incoming.give_away(b"\x43", given.append)
        caller = await port.call(b"\x43rest")
        await port.call(b"\x44")
        await turn_until(lambda: given)
        with given[0] as sock:
            assert sock.recv(4) == b"rest"
            sock.sendall(b"!")
            assert caller.recv(1) == b"!"
        await turn_until(lambda: port.incoming.strangers == 1)

    at_port(body)


def test_no_descriptor_left_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop does not spin, and accepts again when there is one."""
    monkeypatch.setattr(peer_sockets, "PAUSE_S", 0.001)

    async def body(port: Port) -> None:
        port.listener.refusals = 3
        await port.call()
        await port.call()
        assert port.listener.refusals == 0

    at_port(body)


def test_the_end_hangs_up_on_strangers() -> None:
    """And nobody else is taken."""

    async def body(port: Port) -> None:
        caller = await port.call()
        port.accepting.cancel()
        await asyncio.gather(port.accepting, *port.incoming.cancel_all(), return_exceptions=True)
        assert await is_hung_up_on(caller)
        ours, theirs = socket.socketpair()
        port.incoming.take_stranger(ours)
        assert ours.fileno() == -1
        theirs.close()
        with pytest.raises(OSError):
            socket.create_connection(port.address)

    at_port(body)


def test_caller_says_its_preface_and_greets() -> None:
    """What the greeting gives is the answer; the connection stays."""

    async def body(port: Port) -> None:
        connection = FramedConnection(silence_s=1.0)
        given: list[socket.socket] = []
        port.incoming.give_away(b"\x43", given.append)

        async def greet() -> str:
            return "known"

        found = await connect_peer(connection, port.address, greet, preface=b"\x43", tls=None, settings=QUICK)
        assert found == "known"
        assert not connection.is_ending
        await turn_until(lambda: given)
        connection.end()
        given[0].close()

    at_port(body)


def test_greeting_that_fails_closes_the_connection() -> None:
    """Its error is the caller's."""

    async def body(port: Port) -> None:
        async def greet() -> None:
            raise ValueError("another node")

        with pytest.raises(ValueError, match="another node"):
            await connect_peer(FramedConnection(silence_s=1.0), port.address, greet, tls=None, settings=QUICK)
        await turn_until(lambda: port.refused)

    at_port(body)


def test_nobody_there_is_an_error_of_the_system() -> None:
    """As time-outs are."""

    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as gone:
            address = gone.getsockname()[:2]
        with pytest.raises(OSError):
            await connect_peer(FramedConnection(silence_s=1.0), address, lambda: asyncio.sleep(0), tls=None, settings=QUICK)

    asyncio.run(run())


def test_a_host_with_several_addresses_is_called_at_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until one answers: `localhost` may be an address of IPv6 first."""

    async def body(port: Port) -> None:
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as gone:
            nobody = gone.getsockname()

        async def addresses(*_: object, **__: object) -> list[tuple[int, int, int, str, Address]]:
            return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", address) for address in (nobody, port.address)]

        monkeypatch.setattr(loop, "getaddrinfo", addresses)
        connection = FramedConnection(silence_s=1.0)
        await connect_peer(connection, ("a.name", 1), lambda: asyncio.sleep(0), tls=None, settings=QUICK)
        connection.end()

    at_port(body, welcome)
