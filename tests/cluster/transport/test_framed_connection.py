"""A connection as frames: few and small before the handshake is done, any after it, and none after its end."""

from __future__ import annotations

import asyncio
import socket

import pytest

from cmdlog.cluster.transport.framed_connection import (
    EARLY_FRAMES_MAX,
    UNSENT_BYTES,
    WRITE_BYTES,
    ConnectionEnded,
    FramedConnection,
    set_options,
)
from cmdlog.raft.wire.layout import BadFrame, FrameFault
from cmdlog.raft.wire.secure_frames import FRAME_BYTES_MIN, HELLO_BYTES_MAX, LENGTH
from tests.cluster.transport.fake_transport import FakeTransport


def frame(size: int = FRAME_BYTES_MIN, fill: bytes = b"x") -> bytes:
    """A frame of this size; what is in it does not matter here."""
    return LENGTH.pack(size) + fill * (size - LENGTH.size)


async def made() -> tuple[FramedConnection, FakeTransport]:
    """A connection that has just begun."""
    connection = FramedConnection(silence_s=1.0)
    return connection, FakeTransport(connection)


def test_frames_wait_for_the_handshake() -> None:
    """However the bytes are cut; then they go to the callback, those that waited first."""

    async def body() -> None:
        connection, transport = await made()
        assert transport.limits[0] == WRITE_BYTES
        first, second, third = (frame(fill=fill) for fill in (b"1", b"2", b"3"))
        for byte in first + second:
            connection.data_received(bytes([byte]))
        assert await connection.receive() == first
        taken: list[bytes] = []
        connection.deliver_to(taken.append, on_writable=lambda: None, on_closed=lambda: None)
        connection.data_received(third)
        assert taken == [second, third]
        assert connection.in_bytes == 3 * FRAME_BYTES_MIN

    asyncio.run(body())


def test_a_stranger_may_not_talk_on() -> None:
    """More frames than a handshake has, or a larger one, end the connection."""

    async def body() -> None:
        connection, transport = await made()
        connection.data_received(frame() * (EARLY_FRAMES_MAX + 1))
        assert transport.aborted
        connection, transport = await made()
        connection.data_received(LENGTH.pack(HELLO_BYTES_MAX + 1))
        assert transport.aborted
        assert connection.faults == {FrameFault.LENGTH: 1}
        with pytest.raises(BadFrame):
            await connection.receive()

    asyncio.run(body())


def test_frames_may_be_large_after_the_handshake() -> None:
    """Up to the limit of frames."""

    async def body() -> None:
        connection, _ = await made()
        taken: list[bytes] = []
        connection.deliver_to(taken.append, on_writable=lambda: None, on_closed=lambda: None)
        connection.data_received(frame(1 << 20))
        assert [len(one) for one in taken] == [1 << 20]

    asyncio.run(body())


def test_a_frame_that_is_refused_is_the_last() -> None:
    """Nothing after it is taken, also of the same piece; waiting for one ends with an error."""

    async def body() -> None:
        connection, transport = await made()
        taken: list[bytes] = []

        def take(found: bytes) -> None:
            taken.append(found)
            raise BadFrame(FrameFault.MAC, "forged")

        connection.deliver_to(take, on_writable=lambda: None, on_closed=lambda: None)
        connection.data_received(frame() + frame())
        assert len(taken) == 1
        assert transport.aborted
        assert isinstance(connection.error, BadFrame)

    asyncio.run(body())


def test_nothing_is_taken_after_the_end() -> None:
    """Also of the piece in which the reason came."""

    async def body() -> None:
        connection, _ = await made()
        taken: list[bytes] = []

        def take(found: bytes) -> None:
            taken.append(found)
            connection.end(ConnectionEnded("refused"))

        connection.deliver_to(take, on_writable=lambda: None, on_closed=lambda: None)
        connection.data_received(frame() + frame())
        assert len(taken) == 1

    asyncio.run(body())


def test_waiting_ends_with_the_connection() -> None:
    """The peer hung up, or it was ended here; nothing is written any more."""

    async def body() -> None:
        connection, transport = await made()
        waiting = asyncio.ensure_future(connection.receive())
        await asyncio.sleep(0)
        transport.lose()
        with pytest.raises(ConnectionEnded, match="hung up"):
            await waiting
        assert connection.closed.is_set()
        connection.write(frame())
        assert transport.written == b""
        assert connection.out_bytes == 0
        early = FramedConnection(silence_s=1.0)
        early.end(ConnectionEnded("ended before it began"))
        assert FakeTransport(early).aborted

    asyncio.run(body())


def test_hanging_up_lets_the_last_frame_leave() -> None:
    """`drop` leaves that alone, and closes at once what does not hang up."""

    async def body() -> None:
        connection, transport = await made()
        connection.write(frame())
        connection.hang_up()
        connection.drop()
        assert transport.is_closing()
        assert not transport.aborted
        other, transport = await made()
        other.drop()
        assert transport.aborted

    asyncio.run(body())


def test_sender_knows_when_to_stop() -> None:
    """The socket is full, and has room again; an ending connection never has."""

    async def body() -> None:
        connection, transport = await made()
        called: list[str] = []
        connection.deliver_to(
            lambda _: None, on_writable=lambda: called.append("writable"), on_closed=lambda: called.append("closed")
        )
        connection.pause_writing()
        assert not connection.writable
        connection.resume_writing()
        assert connection.writable
        connection.pause_writing()
        connection.end()
        connection.resume_writing()
        assert not connection.writable
        transport.lose()
        assert called == ["writable", "closed"]

    asyncio.run(body())


def test_sockets_are_told_to_send_at_once_and_to_notice_silence() -> None:
    """Small frames leave at once, little waits in the kernel, and a dead machine is noticed."""
    with socket.socket() as sock:
        set_options(sock, silence_s=3.0)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 3000
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == UNSENT_BYTES
