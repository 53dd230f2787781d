"""Copies of this node that others take: connections that come by the peers' port, in a thread and an event loop of their own.

One rule: a copy never delays consensus or calls. It has its own loop, which reads files and seals them, a rate that all copies
share, and a limit of copies at once; what it shares with the rest of the node is the processor.

A connection's requests are answered one after the other, in their order: what one wants is waited for, looked up, read and
sealed, and only then is the next one looked at. So a recipient that asks ahead costs no memory but its requests. Files are read
in the loop; what looks at the node may wait for its locks, and has threads. All copies share one rate.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import structlog
import uvloop

from cmdlog.cluster.copying.copy_desk import CopyDesk, CopyLimits, SourceNode
from cmdlog.cluster.copying.copy_frames import COPY_CHANNEL, ChunkData, ChunkPlace, CopyFrameKind
from cmdlog.cluster.copying.copy_values import (
    CopyEnd,
    CopyRefusal,
    CopyRefused,
    CopyRequest,
    CopyWait,
    RefusalCode,
    decode_value,
    encode_value,
)
from cmdlog.cluster.copying.held_files import FileLost, OpenFile
from cmdlog.cluster.copying.log_sums import SumsRequest
from cmdlog.cluster.copying.wishes import CopyWish
from cmdlog.cluster.transport.channel_session import ChannelSession, answer_session
from cmdlog.cluster.transport.framed_connection import LINGER_S, ConnectionEnded, FramedConnection
from cmdlog.cluster.transport.handshake import HelloCredentials
from cmdlog.cluster.transport.peer_network import PeerNetwork
from cmdlog.cluster.transport.peer_sockets import IncomingSockets
from cmdlog.cluster.transport.peer_transport import PeerTls, TransportSettings
from cmdlog.cluster.transport.quiet_log import QuietLog
from cmdlog.cluster.transport.sealed_frames import BODY_BYTES_MAX, ChannelFrame
from cmdlog.operator_error import full_text
from cmdlog.raft.wire.layout import BadFrame, FrameFault

BURST_S: Final = 0.05  # that may be caught up after a pause: a timer that is late costs no speed


class SharedRate:
    """One thread."""

    def __init__(self, rate: int) -> None:
        """`rate`: bytes per second; 0: no limit."""
        self.rate = rate
        self._free_s = 0.0  # when all that was taken is over

    def take_bytes(self, size: int, now_s: float) -> float:
        """Takes so many bytes; how many seconds from now they may be given."""
        if not self.rate:
            return 0.0
        begin_s = max(self._free_s, now_s - BURST_S)
        self._free_s = begin_s + size / self.rate
        return max(0.0, begin_s - now_s)


REQUESTS_MAX: Final = 64  # that wait for their answers
REQUEST_BYTES_MAX: Final = 256 << 10  # the largest names a place of each group

T = TypeVar("T")

log = structlog.get_logger("cmdlog.cluster")


@dataclass(frozen=True, slots=True)
class CopyService:
    """What all connections of a source share."""

    desk: CopyDesk
    rate: SharedRate
    asking: Executor  # for what looks at the node


class CopyConnection:
    """Used in the loop's thread alone."""

    def __init__(self, connection: FramedConnection, session: ChannelSession, service: CopyService) -> None:
        self.connection, self.session, self._service = connection, session, service
        self._requests: asyncio.Queue[ChannelFrame] = asyncio.Queue()
        self._writable, self._file = asyncio.Event(), OpenFile()

    def open(self) -> None:
        """From now on frames are taken as they come, and answered while `run` runs."""
        self.connection.deliver_to(self._take_frame, on_writable=self._writable.set, on_closed=self._writable.set)

    async def run(self) -> None:
        """Until the connection is over, or what it says cannot be read."""
        ended = asyncio.create_task(self.connection.closed.wait())
        serving = asyncio.create_task(self._serve())
        try:
            await asyncio.wait((ended, serving), return_when=asyncio.FIRST_COMPLETED)
            if serving.done() and isinstance(error := serving.exception(), Exception):
                self.connection.end(error)
        finally:
            for task in (ended, serving):
                task.cancel()
            await asyncio.gather(ended, serving, return_exceptions=True)
            self._file.close()
            self._service.desk.leave(self)

    def _take_frame(self, frame: bytes) -> None:
        said = self.session.opener.open(frame)
        if len(said.body) > REQUEST_BYTES_MAX:
            raise BadFrame(FrameFault.MALFORMED, f"a request of {len(said.body)} bytes")
        if self._requests.qsize() >= REQUESTS_MAX:
            raise BadFrame(FrameFault.MALFORMED, f"more than {REQUESTS_MAX} requests without an answer")
        self._requests.put_nowait(said)

    async def _serve(self) -> None:
        """Raises: BadFrame, ConnectionEnded."""
        answers: dict[int, Callable[[bytes], Awaitable[None]]] = {
            CopyFrameKind.ASK: self._ask,
            CopyFrameKind.BEGIN: self._begin_copy,
            CopyFrameKind.CHUNK: self._give_chunk,
            CopyFrameKind.END: self._end,
            CopyFrameKind.SUMS: self._give_sums,
        }
        while True:
            request = await self._requests.get()
            if (answer := answers.get(request.kind)) is None:
                raise BadFrame(FrameFault.MALFORMED, f"request of kind {request.kind}")
            try:
                await answer(request.body)
            except CopyRefused as refused:
                log.info("copy_refused", node=self.session.peer.node, code=refused.code, why=refused.why)
                await self._send(CopyFrameKind.REFUSED, encode_value(CopyRefusal(refused.code, refused.why).to_json()))

    async def _ask(self, body: bytes) -> None:
        wish = decode_value(body, CopyWish.from_json)
        standing = await self._call(lambda: self._service.desk.ask(self.session.peer, wish))
        await self._send(CopyFrameKind.STANDING, encode_value(standing.to_json()))

    async def _begin_copy(self, body: bytes) -> None:
        request = decode_value(body, CopyRequest.from_json)
        answer = await self._call(lambda: self._service.desk.begin_copy(self.session.peer, request, self))
        if isinstance(answer, CopyWait):
            await self._send(CopyFrameKind.WAIT, encode_value(answer.to_json()))
            return
        text = encode_value(answer.to_json())
        pieces = [text[at : at + BODY_BYTES_MAX] for at in range(0, len(text), BODY_BYTES_MAX)]
        for left, piece in zip(reversed(range(len(pieces))), pieces, strict=True):
            await self._send(CopyFrameKind.MANIFEST, piece, left)

    async def _give_chunk(self, body: bytes) -> None:
        place, service, peer = ChunkPlace.decode(body), self._service, self.session.peer
        if wait_s := service.rate.take_bytes(place.length, time.monotonic()):
            await asyncio.sleep(wait_s)
        held = service.desk.locate(peer, place, self)
        try:
            content, crc32c = self._file.read(held, place.offset, place.length)
        except FileLost as lost:
            service.desk.locate(peer, place, self)  # it may be lost because the copy is over
            raise CopyRefused(RefusalCode.FILE_LOST, str(lost)) from lost
        await self._send(CopyFrameKind.DATA, ChunkData(place, crc32c, content).encode())
        service.desk.note_sent(place.copy, place.length)

    async def _end(self, body: bytes) -> None:
        end = decode_value(body, CopyEnd.from_json)
        await self._call(lambda: self._service.desk.end(self.session.peer, end, self))
        await self._send(CopyFrameKind.ENDED, b"")

    async def _give_sums(self, body: bytes) -> None:
        request = decode_value(body, SumsRequest.from_json)
        known = await self._call(lambda: self._service.desk.sums(request))
        await self._send(CopyFrameKind.KNOWN, encode_value(known.to_json()))

    async def _call(self, work: Callable[[], T]) -> T:
        """What the desk answers; whatever else goes wrong at this node is a refusal too. Raises: CopyRefused."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._service.asking, work)
        except CopyRefused:
            raise
        except Exception as error:
            log.exception("copy_failed", node=self.session.peer.node)
            raise CopyRefused(RefusalCode.UNAVAILABLE, full_text(error) or type(error).__name__) from error

    async def _send(self, kind: CopyFrameKind, body: bytes, count: int = 0) -> None:
        """Raises: ConnectionEnded."""
        while not self.connection.writable:
            if self.connection.is_ending:
                raise ConnectionEnded("the recipient hung up")
            self._writable.clear()
            await self._writable.wait()
        self.connection.write(self.session.sealer.seal(kind, body, count))


LOOK_S: Final = 1.0  # between two looks at copies of which nothing is read any more
THREADS: Final = 2  # for what looks at the node


class CopyServer:
    """Made in any thread; `start` begins, `stop` ends, and it is not started twice."""

    def __init__(
        self,
        ours: HelloCredentials,
        node: SourceNode,
        limits: CopyLimits,
        *,
        tls: PeerTls | None = None,
        settings: TransportSettings | None = None,
    ) -> None:
        self.desk = CopyDesk(node, limits, later=_run_aside)
        self._ours, self._settings, self._quiet = ours, settings or TransportSettings(), QuietLog()
        self._asking = ThreadPoolExecutor(THREADS, "cmdlog-copy-asks")
        self._service = CopyService(self.desk, SharedRate(limits.rate), self._asking)
        self._incoming = IncomingSockets(self._welcome, tls=tls, settings=self._settings, refused=self._refuse, quiet=self._quiet)
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
        session = await answer_session(COPY_CHANNEL, connection, self._ours)
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
