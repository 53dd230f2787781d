"""Sockets of a channel: a caller is led to the end of its handshake, a stranger costs a socket for a while and nothing else."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from cmdlog.cluster.channels.channel_sockets import (
    ChannelCredentials,
    ChannelSession,
    IncomingSockets,
    call_session,
    connect_channel,
    expect_frame,
    greet_session,
)
from cmdlog.cluster.forwarding.call_rows import CALL_CHANNEL, CallFrameKind
from cmdlog.cluster.transport.framed_connection import ConnectionEnded, FramedConnection
from cmdlog.cluster.transport.peer_transport import Address, TransportSettings
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.wire.layout import BadFrame
from cmdlog.raft.wire.secure_frames import Secret
from tests.cluster.channels.channelkit import Shaken, shake
from tests.cluster.forwarding.callkit import credentials
from tests.cluster.transport.linkkit import turn_until, turns
from tests.cluster.transport.netkit import QUICK

Greet = Callable[[FramedConnection], Awaitable[None]]


class Door:
    """A port whose connections are greeted; the first byte of each is kept."""

    def __init__(self, greet: Greet, settings: TransportSettings = QUICK) -> None:
        self.refused: list[str] = []
        self.prefaces: list[bytes] = []
        self.incoming = IncomingSockets(greet, tls=None, settings=settings, refused=lambda why, _error: self.refused.append(why))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.address: Address = self._listener.getsockname()[:2]
        self._task = asyncio.create_task(self._accept())

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            sock, _ = await loop.sock_accept(self._listener)
            self.prefaces.append(await loop.sock_recv(sock, 1))
            self.incoming.take_stranger(sock)

    async def close(self) -> None:
        """Ends the port; what is closing is closed then."""
        self._task.cancel()
        self._listener.close()
        await turns()


async def nothing(connection: FramedConnection) -> None:
    """A greeting that waits for a frame that never comes."""
    await connection.receive()


async def welcome(connection: FramedConnection) -> None:
    """A greeting that is content at once."""
    connection.deliver_to(lambda _: None, on_writable=lambda: None, on_closed=lambda: None)


async def is_hung_up_on(sock: socket.socket) -> bool:
    """Whether the other end closed it."""
    sock.setblocking(False)
    try:
        async with asyncio.timeout(120):
            return await asyncio.get_running_loop().sock_recv(sock, 1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.slow
def test_caller_says_its_preface_and_greets() -> None:
    """What the greeting gives is the answer; the connection stays."""

    async def run() -> None:
        door, connection = Door(welcome), FramedConnection(silence_s=1.0)

        async def greet() -> str:
            return "known"

        found = await connect_channel(b"\x43", connection, door.address, greet, tls=None, settings=QUICK)
        assert found == "known"
        assert not connection.is_ending
        await turn_until(lambda: door.prefaces)
        assert door.prefaces == [b"\x43"]
        connection.end()
        await door.close()

    asyncio.run(run())


@pytest.mark.slow
def test_greeting_that_fails_closes_the_connection() -> None:
    """Its error is the caller's."""

    async def run() -> None:
        door, connection = Door(nothing), FramedConnection(silence_s=1.0)

        async def greet() -> None:
            raise ValueError("another node")

        with pytest.raises(ValueError, match="another node"):
            await connect_channel(b"\x43", connection, door.address, greet, tls=None, settings=QUICK)
        await turn_until(lambda: door.refused)
        await door.close()

    asyncio.run(run())


@pytest.mark.slow
def test_nobody_there_is_an_error_of_the_system() -> None:
    """As time-outs are."""

    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as gone:
            address = gone.getsockname()[:2]
        connection = FramedConnection(silence_s=1.0)
        with pytest.raises(OSError):
            await connect_channel(b"\x43", connection, address, lambda: asyncio.sleep(0), tls=None, settings=QUICK)

    asyncio.run(run())


@pytest.mark.slow
def test_strangers_make_room_and_are_closed_in_time() -> None:
    """The oldest of too many, garbage, and those that say nothing; none is left over."""

    async def run() -> None:
        door = Door(nothing, replace(QUICK, strangers_max=2, hello_s=1.0))
        socks = [socket.create_connection(door.address) for _ in range(3)]
        for number, sock in enumerate(socks):
            sock.sendall(b"\x43" + (b"\xff" * 200 if number == 2 else b""))
            await turn_until(lambda number=number: len(door.prefaces) > number)  # type: ignore[misc]
        assert [await is_hung_up_on(sock) for sock in socks] == [True] * 3
        await turn_until(lambda: len(door.refused) >= 2)
        assert any("no answer in time" in why for why in door.refused)
        assert door.incoming.cancel_all() == []
        late = socket.create_connection(door.address)
        late.sendall(b"\x43")
        assert await is_hung_up_on(late), "nobody is taken after the end"
        late.close()
        for sock in socks:
            sock.close()
        await door.close()

    asyncio.run(run())


def call(caller: ChannelCredentials, called: ChannelCredentials, *, node: int = 2, kind: int = CallFrameKind.OPEN) -> Shaken:
    """The hellos, and a first frame of the caller, where the called end expects OPEN."""

    async def begin(connection: FramedConnection) -> ChannelSession:
        session = await call_session(CALL_CHANNEL, connection, caller, NodeId(node))
        connection.write(session.sealer.seal(kind, b"first", 5))
        return session

    async def answer(connection: FramedConnection) -> tuple[ChannelSession, int, bytes]:
        session = await greet_session(CALL_CHANNEL, connection, called)
        frame = await expect_frame(connection, session, CallFrameKind.OPEN)
        return session, frame.count, frame.body

    return shake(begin, answer)


def test_ends_that_know_each_other_share_a_session() -> None:
    """Each knows who the other is, and opens what the other seals."""
    caller, called, _ = call(credentials(1), credentials(2))
    assert isinstance(caller, ChannelSession)
    assert isinstance(called, tuple)
    session, *first = called
    assert (caller.peer.node, session.peer.node, first) == (2, 1, [5, b"first"])
    assert caller.opener.open(session.sealer.seal(9)).kind == 9


def test_first_frame_of_another_kind_is_refused() -> None:
    """The session is right, but not the step."""
    _, called, _ = call(credentials(1), credentials(2), kind=CallFrameKind.PROBE)
    assert isinstance(called, BadFrame)
    assert called.fault.value == "malformed"


@pytest.mark.parametrize(
    ("caller", "fault"),
    [
        (credentials(1, secret=CALL_CHANNEL.secret(Secret(b"another secret of 32 bytes......"))), "mac"),
        (credentials(1, secret=Secret(b"0123456789abcdef0123456789abcdef")), "mac"),
        (credentials(1, cluster=bytes(16)), "cluster"),
        (credentials(2), "receiver"),
    ],
)
def test_stranger_gets_no_session(caller: ChannelCredentials, fault: str) -> None:
    """Another secret, the one of consensus, another cluster, our own number."""
    theirs, ours, _ = call(caller, credentials(2))
    assert isinstance(ours, BadFrame)
    assert ours.fault.value == fault
    assert isinstance(theirs, ConnectionEnded)


def test_node_at_another_one_s_address_is_refused() -> None:
    """Calls for node 3 never reach node 2."""
    theirs, ours, _ = call(credentials(1), credentials(2), node=3)
    assert isinstance(ours, BadFrame)
    assert isinstance(theirs, ConnectionEnded)
