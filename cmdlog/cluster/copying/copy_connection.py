"""The source's end of one connection for copies: requests are answered one after the other, in their order.

One rule: what a request wants is waited for, looked up, read and sealed, and only then is the next one looked at. So a recipient
that asks ahead costs no memory but its requests, and one that does not read gets no more. Files are read in the loop, which does
nothing else; what looks at the node may wait for its locks, and has threads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final, TypeVar

import structlog

from cmdlog.cluster.channels.channel_session import ChannelSession
from cmdlog.cluster.channels.sealed_frames import BODY_BYTES_MAX, ChannelFrame
from cmdlog.cluster.copying.copy_desk import CopyDesk
from cmdlog.cluster.copying.copy_frames import ChunkData, ChunkPlace, CopyFrameKind
from cmdlog.cluster.copying.copy_rate import SharedRate
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
from cmdlog.cluster.transport.framed_connection import ConnectionEnded, FramedConnection
from cmdlog.operator_error import full_text
from cmdlog.raft.wire.layout import BadFrame, FrameFault

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
