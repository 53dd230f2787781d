"""Sockets of the peers' port, for consensus and every channel beside it, until both ends know each other: those that are called,
and those that come in.

One rule: a stranger costs a socket for `hello_s`, and nothing else, whatever it waits for. Of too many strangers the one that has
waited longest makes room: a peer is done within moments, so it is never the one that waits.

A hello alone may be a recorded one, so the called end gives a caller nothing before a frame that needs the session.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from cmdlog.cluster.transport.framed_connection import FramedConnection
from cmdlog.cluster.transport.peer_transport import Address, PeerTls, TransportSettings, options_to_call, options_when_called
from cmdlog.cluster.transport.quiet_log import QuietLog
from cmdlog.operator_error import OperatorError, full_text
from cmdlog.raft.wire.layout import BadFrame

PAUSE_S: Final = 0.25  # when no descriptor is left; the callers wait in the kernel's queue
BACKLOG: Final = 128

S = TypeVar("S")
TakeSocket = Callable[[socket.socket], None]


async def connect_peer(
    connection: FramedConnection,
    address: Address,
    greet: Callable[[], Awaitable[S]],
    *,
    preface: bytes = b"",
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
    """The first address of the host that answers."""
    loop = asyncio.get_running_loop()
    failure: OSError | None = None
    for family, kind, proto, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, proto)
        try:
            sock.setblocking(False)
            await loop.sock_connect(sock, address)
            await loop.sock_sendall(sock, preface)
        except OSError as error:
            sock.close()
            failure = failure or error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure or OSError(f"{host} has no address")


async def accept_sockets(listener: socket.socket, take: TakeSocket, quiet: QuietLog) -> None:
    """Takes what comes in, until it is cancelled; then the listener is closed."""
    listener.setblocking(False)
    try:
        while True:
            await _readable(listener)
            try:
                sock, _ = listener.accept()  # in this step: cancelled inside `sock_accept`, a task loses the socket
            except BlockingIOError:  # the caller has gone
                continue
            except OSError as error:
                quiet.log("peer_accept_failed", error.errno, why=str(error))
                await asyncio.sleep(PAUSE_S)
            else:
                sock.setblocking(False)
                take(sock)
    finally:
        listener.close()


async def first_byte(sock: socket.socket) -> bytes:
    """Waits for what the caller sends first, and leaves it to be read; b"" when it hangs up."""
    await _readable(sock)
    return sock.recv(1, socket.MSG_PEEK)


async def _readable(sock: socket.socket) -> None:
    """Until there is something to be read, or a caller to be accepted."""
    loop = asyncio.get_running_loop()
    arrived = asyncio.Event()
    loop.add_reader(sock, arrived.set)
    try:
        await arrived.wait()
    finally:
        loop.remove_reader(sock)


class IncomingSockets:
    """Connections that came in and have not proved who they are. The loop's thread, unless stated."""

    def __init__(
        self,
        greet: Callable[[FramedConnection], Awaitable[None]],
        *,
        tls: PeerTls | None,
        settings: TransportSettings,
        refused: Callable[[str, Exception], None],
        quiet: QuietLog,
    ) -> None:
        """`greet` answers the handshake; at its end the connection delivers. Else `refused` is called with the reason."""
        self._greet, self._tls, self._settings, self._refused, self._quiet = greet, tls, settings, refused, quiet
        self.connections: list[FramedConnection] = []  # that are not closed, whatever is known of them
        self._strangers: dict[asyncio.Task[None], None] = {}  # oldest first
        self._closed = False
        self._others: dict[bytes, TakeSocket] = {}
        self.evicted = 0

    @property
    def strangers(self) -> int:
        """Connections that have not proved who they are."""
        return len(self._strangers)

    def give_away(self, preface: bytes, take: TakeSocket) -> None:
        """Connections that begin with this byte are another channel's, from the next byte on. Before the first one comes."""
        self._others[preface] = take

    def take_socket(self, loop: asyncio.AbstractEventLoop | None, sock: socket.socket) -> None:
        """Any thread: `take_stranger` in the loop's, while it runs. None: the channel does not work."""
        try:
            if loop is None:
                raise RuntimeError
            loop.call_soon_threadsafe(self.take_stranger, sock)
        except RuntimeError:  # the loop has ended
            sock.close()

    def take_stranger(self, sock: socket.socket) -> None:
        """A connection that came in, from its preface on where it had one."""
        if self._closed:
            sock.close()
            return
        limit = self._settings.strangers_max
        while len(self._strangers) >= limit:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.cancel()
            self.evicted += 1
            self._quiet.log("peer_strangers_evicted", limit=limit)
        connection = FramedConnection(silence_s=self._settings.silence_s)
        self.connections = [known for known in self.connections if not known.closed.is_set()] + [connection]
        given = False

        async def lead() -> None:
            nonlocal given
            given = await self._welcome(connection, sock)

        def forget(task: asyncio.Task[None]) -> None:
            self._strangers.pop(task, None)
            if not given and connection.is_ending:  # also one that was evicted before its first step: nothing else closes it
                sock.close()

        task = asyncio.get_running_loop().create_task(lead())
        self._strangers[task] = None
        task.add_done_callback(forget)

    def cancel_all(self) -> list[asyncio.Task[None]]:
        """Hangs up on all of them, and takes no more; the tasks that end with that."""
        self._closed = True
        strangers = list(self._strangers)
        for stranger in strangers:
            stranger.cancel()
        return strangers

    async def _welcome(self, connection: FramedConnection, sock: socket.socket) -> bool:
        """Leads a connection to the end of its handshake, or closes it; True: it is another channel's by now."""
        settings = self._settings
        tls = options_when_called(self._tls, handshake_s=settings.hello_s)
        try:
            async with asyncio.timeout(settings.hello_s):
                if self._others and (take := self._others.get(await first_byte(sock))) is not None:
                    sock.recv(1)
                    take(sock)
                    return True
                await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, sock, **tls)
                await self._greet(connection)
        except (OSError, BadFrame, OperatorError) as error:  # TLS and time-outs are OSErrors
            self._refused(full_text(error) or "no answer in time", error)
        finally:
            if not connection.delivers:
                connection.drop()
        return False
