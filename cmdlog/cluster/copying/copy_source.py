"""Copies of this node that others take: connections that come by the peers' port, in a thread and an event loop of their own.

One rule: a copy never delays consensus or calls. It has its own loop, which reads files and seals them, a rate that all copies
share, and a limit of copies at once; what it shares with the rest of the node is the processor.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import uvloop

from cmdlog.cluster.channels.channel_session import ChannelCredentials, expect_frame, greet_session
from cmdlog.cluster.channels.channel_sockets import IncomingSockets
from cmdlog.cluster.copying.copy_connection import CopyConnection, CopyService
from cmdlog.cluster.copying.copy_desk import CopyDesk, CopyGround, CopyLimits
from cmdlog.cluster.copying.copy_frames import COPY_CHANNEL, CopyFrameKind
from cmdlog.cluster.copying.copy_rate import SharedRate
from cmdlog.cluster.transport.framed_connection import LINGER_S, FramedConnection
from cmdlog.cluster.transport.peer_network import PeerNetwork
from cmdlog.cluster.transport.peer_tls import PeerTls
from cmdlog.cluster.transport.peer_transport import TransportSettings
from cmdlog.cluster.transport.quiet_log import QuietLog
from cmdlog.raft.wire.layout import BadFrame

LOOK_S: Final = 1.0  # between two looks at copies of which nothing is read any more
THREADS: Final = 2  # for what looks at the node


class CopyServer:
    """Made in any thread; `start` begins, `stop` ends, and it is not started twice."""

    def __init__(
        self,
        ours: ChannelCredentials,
        ground: CopyGround,
        limits: CopyLimits,
        *,
        tls: PeerTls | None = None,
        settings: TransportSettings | None = None,
    ) -> None:
        self.desk = CopyDesk(ground, limits, later=_run_aside)
        self._ours, self._settings, self._quiet = ours, settings or TransportSettings(), QuietLog()
        self._asking = ThreadPoolExecutor(THREADS, "cmdlog-copy-asks")
        self._service = CopyService(self.desk, SharedRate(limits.rate), self._asking)
        self._incoming = IncomingSockets(self._welcome, tls=tls, settings=self._settings, refused=self._refuse)
        self._connections: dict[asyncio.Task[None], CopyConnection] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopped = False

    # -- any thread --------------------------------------------------------------------------------------------------------

    def start(self, network: PeerNetwork) -> None:
        """Connections for copies come by the peers' port. Before the network starts."""
        self.serve()
        network.give_sockets(COPY_CHANNEL.preface, self.take_socket)

    def serve(self) -> None:
        """Begins to answer."""
        loop = self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="cmdlog-copies", daemon=True)
        self._thread.start()
        loop.call_soon_threadsafe(self._expire_copies)

    def stop(self) -> None:
        """Ends all connections and copies, and lets go of what they held. Idempotent."""
        loop, thread, self._stopped = self._loop, self._thread, True
        self.desk.close()
        if loop is None or thread is None or loop.is_closed():
            return
        closing = asyncio.run_coroutine_threadsafe(self._close(), loop)
        with contextlib.suppress(TimeoutError):
            closing.result(2 * LINGER_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        self._asking.shutdown(wait=False, cancel_futures=True)

    def take_socket(self, sock: socket.socket) -> None:
        """A connection that came in, from its preface on."""
        self._incoming.take_socket(None if self._stopped else self._loop, sock)

    def status(self) -> dict[str, Any]:
        """Plain data: every copy under way, and the limits."""
        return self.desk.status()

    def cancel(self, node: int, why: str = "an operator has cancelled the copy") -> int:
        """Ends the copies to a node; their number."""
        return self.desk.cancel(node, why)

    # -- the loop's thread -------------------------------------------------------------------------------------------------

    async def _welcome(self, connection: FramedConnection) -> None:
        session = await greet_session(COPY_CHANNEL, connection, self._ours)
        await expect_frame(connection, session, CopyFrameKind.OPEN)
        connection.write(session.sealer.seal(CopyFrameKind.READY))
        recipient = CopyConnection(connection, session, self._service)
        recipient.open()
        task = asyncio.get_running_loop().create_task(recipient.run())
        self._connections[task] = recipient
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        recipient = self._connections.pop(task)
        if isinstance(error := recipient.connection.error, BadFrame):
            self._refuse(str(error), error)

    def _refuse(self, why: str, error: Exception) -> None:
        self._quiet.log("copy_connection_refused", type(error), why=why)

    def _expire_copies(self) -> None:
        if not self._stopped:
            self._asking.submit(self.desk.expire)
            asyncio.get_running_loop().call_later(LOOK_S, self._expire_copies)

    async def _close(self) -> None:
        """Hangs up everywhere."""
        for recipient in self._connections.values():
            recipient.connection.hang_up()
        strangers = self._incoming.cancel_all()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                await asyncio.gather(*strangers, *self._connections, return_exceptions=True)
        left = [recipient.connection for recipient in self._connections.values()]
        for connection in left:  # that take not even the last frame
            connection.end()
        await asyncio.gather(*(connection.closed.wait() for connection in left))


def _run_aside(work: Callable[[], None]) -> None:
    """In a thread that the end of the process does not wait for: the next start does what is left."""
    threading.Thread(target=work, name="cmdlog-copy-release", daemon=True).start()
