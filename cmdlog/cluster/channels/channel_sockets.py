"""Sockets of a channel beside consensus, until both ends know each other: those that are called, and those that come in.

One rule: a connection that does not end its handshake in time is closed, whatever it waits for. Of too many strangers the one
that has waited longest makes room.

A hello alone may be a recorded one, so the called end gives a caller nothing before its first frame, which needs the session.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from cmdlog.cluster.channels.sealed_frames import ChannelFrame, ChannelName, ChannelOpener, ChannelSealer
from cmdlog.cluster.transport.framed_connection import FramedConnection
from cmdlog.cluster.transport.handshake import ClusterName, answer_hello, exchange_hellos
from cmdlog.cluster.transport.peer_transport import Address, PeerTls, TransportSettings, options_to_call, options_when_called
from cmdlog.operator_error import full_text
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.wire.layout import BadFrame, FrameFault
from cmdlog.raft.wire.secure_frames import Link, Peer, Seal, Secret


@dataclass(frozen=True, slots=True)
class ChannelCredentials:
    """What an end proves itself with. `secret` is the channel's: see `ChannelName.secret`."""

    name: ClusterName
    me: Peer
    secret: Secret

    @property
    def cluster(self) -> bytes:
        return self.name.current


@dataclass(frozen=True, slots=True)
class ChannelSession:
    """Both directions of a connection whose ends know each other."""

    peer: Peer
    sealer: ChannelSealer
    opener: ChannelOpener


async def call_session(
    channel: ChannelName, connection: FramedConnection, ours: ChannelCredentials, node: NodeId
) -> ChannelSession:
    """The caller's hello and the answer to it. Raises: BadFrame, ConnectionEnded."""
    answer, outgoing, incoming = await exchange_hellos(connection, ours, node, Seal.WHOLE)
    return _session(channel, ours, answer.sender, outgoing=outgoing, incoming=incoming)


async def greet_session(channel: ChannelName, connection: FramedConnection, ours: ChannelCredentials) -> ChannelSession:
    """The called end's part; the caller is alive only when its first frame opens. Raises: BadFrame, ConnectionEnded."""
    call, outgoing, incoming = await answer_hello(connection, ours, Seal.WHOLE)
    return _session(channel, ours, call.sender, outgoing=outgoing, incoming=incoming)


def _session(channel: ChannelName, ours: ChannelCredentials, peer: Peer, *, outgoing: Link, incoming: Link) -> ChannelSession:
    opener = ChannelOpener(channel, incoming, ours.secret, is_current=lambda: incoming.cluster == ours.name.current)
    return ChannelSession(peer, ChannelSealer(channel, outgoing, ours.secret), opener)


async def expect_frame(connection: FramedConnection, session: ChannelSession, kind: int) -> ChannelFrame:
    """The next frame of the handshake, which must be of this kind. Raises: BadFrame, ConnectionEnded."""
    frame = session.opener.open(await connection.receive())
    if frame.kind != kind:
        raise BadFrame(FrameFault.MALFORMED, f"frame of kind {frame.kind} instead of {kind}")
    return frame


S = TypeVar("S")


async def connect_channel(
    preface: bytes,
    connection: FramedConnection,
    address: Address,
    greet: Callable[[], Awaitable[S]],
    *,
    tls: PeerTls | None,
    settings: TransportSettings,
) -> S:
    """Calls the peers' port of a node, says the preface, and leads the handshake to its end: what `greet` returns.
    The connection is closed where that fails.

    Raises: OSError, also for TLS and time-outs; UnicodeError for a host that is no name; what `greet` raises.
    """
    host, port = address
    async with asyncio.timeout(settings.connect_s):
        sock = await _call_address(host, port, preface)
    secured = options_to_call(tls, host, handshake_s=settings.hello_s)
    try:
        async with asyncio.timeout(settings.hello_s):
            await asyncio.get_running_loop().create_connection(lambda: connection, sock=sock, **secured)
            return await greet()
    except BaseException:
        connection.drop()
        sock.close()
        raise


async def _call_address(host: str, port: int, preface: bytes) -> socket.socket:
    loop = asyncio.get_running_loop()
    family, kind, proto, _, address = (await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))[0]
    sock = socket.socket(family, kind, proto)
    try:
        sock.setblocking(False)
        await loop.sock_connect(sock, address)
        await loop.sock_sendall(sock, preface)
    except BaseException:
        sock.close()
        raise
    return sock


class IncomingSockets:
    """Connections that came in and have not proved who they are. The loop's thread, unless stated."""

    def __init__(
        self,
        greet: Callable[[FramedConnection], Awaitable[None]],
        *,
        tls: PeerTls | None,
        settings: TransportSettings,
        refused: Callable[[str, Exception], None],
    ) -> None:
        """`greet` answers the handshake; at its end the connection delivers. Else `refused` is called with the reason."""
        self._greet, self._tls, self._settings, self._refused = greet, tls, settings, refused
        self._strangers: dict[asyncio.Task[None], None] = {}  # oldest first
        self._closed = False

    def take_socket(self, loop: asyncio.AbstractEventLoop | None, sock: socket.socket) -> None:
        """Any thread: `take_stranger` in the loop's, while it runs. None: nobody serves it."""
        try:
            if loop is None:
                raise RuntimeError
            loop.call_soon_threadsafe(self.take_stranger, sock)
        except RuntimeError:  # the loop has ended
            sock.close()

    def take_stranger(self, sock: socket.socket) -> None:
        """A connection that came in, from its preface on."""
        if self._closed:
            sock.close()
            return
        while len(self._strangers) >= self._settings.strangers_max:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.cancel()
        connection = FramedConnection(silence_s=self._settings.silence_s)

        def forget(task: asyncio.Task[None]) -> None:
            self._strangers.pop(task, None)
            if connection.is_ending:  # also one that was evicted before its first step: nobody else closes the socket
                sock.close()

        task = asyncio.get_running_loop().create_task(self._welcome(connection, sock))
        self._strangers[task] = None
        task.add_done_callback(forget)

    def cancel_all(self) -> list[asyncio.Task[None]]:
        """Hangs up on all of them, and takes no more; the tasks that end with that."""
        self._closed = True
        strangers = list(self._strangers)
        for stranger in strangers:
            stranger.cancel()
        return strangers

    async def _welcome(self, connection: FramedConnection, sock: socket.socket) -> None:
        """Leads a connection to the end of its handshake, or closes it."""
        settings = self._settings
        tls = options_when_called(self._tls, handshake_s=settings.hello_s)
        try:
            async with asyncio.timeout(settings.hello_s):
                await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, sock, **tls)
                await self._greet(connection)
        except (OSError, BadFrame) as error:
            self._refused(full_text(error) or "no answer in time", error)
        finally:
            if not connection.delivers:
                connection.drop()
