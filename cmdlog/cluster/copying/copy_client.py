"""The recipient's end of a copy: one connection to one source, used by one thread at a time, blocking.

One rule: whatever it returns was checked. A frame that is not the source's next one, an answer of another kind, and a chunk whose
checksum is another one end in an error; nothing is asked twice by itself. After `SourceLost` make another client: the copy is
continued by its id.

The connection has a thread and an event loop of its own, so a client may be used wherever blocking is allowed, and `close`
interrupts from any thread what is under way.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self, TypeVar

import uvloop

from cmdlog.cluster.copying.copy_frames import (
    COPY_CHANNEL,
    ChunkData,
    ChunkPlace,
    CopyFrameKind,
)
from cmdlog.cluster.copying.copy_values import (
    CopyEnd,
    CopyEnding,
    CopyFile,
    CopyManifest,
    CopyRefusal,
    CopyRequest,
    CopyStanding,
    CopyWait,
    decode_value,
    encode_value,
)
from cmdlog.cluster.copying.log_sums import KnownSums, SumsRequest
from cmdlog.cluster.copying.wishes import CopyWish
from cmdlog.cluster.transport.channel_session import ChannelSession, call_session
from cmdlog.cluster.transport.framed_connection import LINGER_S, ConnectionEnded, FramedConnection
from cmdlog.cluster.transport.handshake import HelloCredentials
from cmdlog.cluster.transport.peer_sockets import connect_peer
from cmdlog.cluster.transport.peer_transport import Address, PeerTls, TransportSettings, address_text
from cmdlog.cluster.transport.sealed_frames import ChannelFrame
from cmdlog.operator_error import OperatorError, full_text
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.wire.layout import BadFrame, FrameFault
from cmdlog.wal.format.checked_json import MANIFEST_BYTES_MAX

PIECE_BYTES: Final = 256 << 10  # asked for at once: buffers of a megabyte cost the allocator more than the frames do
CHUNKS_AHEAD: Final = 16  # asked for before the first of them is there: a round trip costs no time then
ANSWERS_MAX: Final = 2 * CHUNKS_AHEAD  # that wait to be looked at; a manifest comes in ten pieces at most
CHUNK_BYTES_MIN: Final = 64 << 10  # of a piece, where the source's rate is low: a time-out is for a source that is silent
ANSWERS_PER_S: Final = 8  # that a source at its rate gives at least, so that none is late

V = TypeVar("V")


class SourceLost(OperatorError):
    """The connection to the source is over, was not made, or is silent. Another client may continue."""

    hint = "check that the source runs, and that both nodes have the same cluster file and secret"


class ChunkDamaged(OperatorError):
    """The source sent other bytes than it read, or bytes that nobody asked for: its memory or its program is at fault."""

    hint = "copy from another node, and check the memory of the source"


@dataclass(frozen=True, slots=True)
class CopyTimes:
    """How long the recipient waits, in seconds."""

    connect_s: float = 2.0  # for the connection, and again for both hellos
    answer_s: float = 10.0  # for an answer to ASK or END, or the next chunk
    begin_s: float = 60.0  # for an answer to BEGIN: the source looks at all files


class CopyClient:
    """See the module. `with CopyClient(…) as client:` connects and closes."""

    def __init__(
        self,
        ours: HelloCredentials,
        node: int,
        address: Address,
        *,
        tls: PeerTls | None = None,
        times: CopyTimes | None = None,
    ) -> None:
        """`ours`: see `copy_credentials`; its incarnation is that of the new life. `node` is the source's number."""
        self._ours, self._node, self._address, self._tls, self._times = ours, node, address, tls, times or CopyTimes()
        self._settings = TransportSettings(connect_s=self._times.connect_s, hello_s=self._times.connect_s)
        self._rate = 0  # bytes per second, as the newest manifest states it; 0: no limit
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._connection: FramedConnection | None = None
        self._session: ChannelSession | None = None
        self._answers: queue.SimpleQueue[ChannelFrame | None] = queue.SimpleQueue()  # None: the connection is over
        self._closed = False

    def connect(self) -> None:
        """Connects, and both ends prove who they are. Raises: SourceLost."""
        loop = self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="cmdlog-copy-client", daemon=True)
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._connect(), loop).result()
        except (OSError, BadFrame, UnicodeError) as error:  # TLS and time-outs are OSErrors
            self.close()
            raise self._lost(full_text(error) or "no answer in time") from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the connection; a call under way in another thread raises SourceLost. Any thread; idempotent."""
        self._closed = True
        loop, thread = self._loop, self._thread
        if loop is None or thread is None or loop.is_closed():
            return
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(lambda: loop.create_task(self._hang_up()))
        thread.join()
        self._answers.put(None)
        loop.close()

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- what is asked ---------------------------------------------------------------------------------------------------

    def ask(self, wish: CopyWish) -> CopyStanding:
        """The state of the wish; a refusal is in it. Its node and incarnation must be those of the credentials.

        Raises: SourceLost.
        """
        self._send(CopyFrameKind.ASK, encode_value(wish.to_json()))
        answer = self._receive(self._times.answer_s, CopyFrameKind.STANDING)
        return self._decode(answer.body, CopyStanding.from_json)

    def begin_copy(self, request: CopyRequest) -> CopyManifest | CopyWait:
        """Begins a copy, or says that it cannot begin yet. The source keeps what the manifest names until `end`, or until
        nothing was read of it for 60 seconds. Raises: CopyRefused, SourceLost.
        """
        self._send(CopyFrameKind.BEGIN, encode_value(request.to_json()))
        answer = self._receive(self._times.begin_s, CopyFrameKind.MANIFEST, CopyFrameKind.WAIT)
        if answer.kind == CopyFrameKind.WAIT:
            return self._decode(answer.body, CopyWait.from_json)
        body = bytearray(answer.body)
        while answer.count:
            rest = self._receive(self._times.answer_s, CopyFrameKind.MANIFEST)
            if rest.count != answer.count - 1 or len(body) + len(rest.body) > MANIFEST_BYTES_MAX:
                raise self._broken("a manifest in other pieces than it said")
            body += rest.body
            answer = rest
        manifest = self._decode(bytes(body), CopyManifest.from_json)
        self._rate = manifest.rate
        return manifest

    def read_chunks(self, copy: bytes, file: CopyFile, offset: int = 0) -> Iterator[bytes]:
        """The rest of a file from `offset` on, in pieces of at most `PIECE_BYTES`, some of them asked for ahead.
        Nothing else may be called before the iterator ends or is closed.

        Raises: CopyRefused, SourceLost, ChunkDamaged.
        """
        piece_bytes = self._piece_bytes()
        starts = iter(range(offset, file.size, piece_bytes))
        asked: deque[ChunkPlace] = deque()
        try:
            while True:
                while len(asked) < CHUNKS_AHEAD and (start := next(starts, None)) is not None:
                    place = ChunkPlace(copy, file.file, start, min(piece_bytes, file.size - start))
                    self._send(CopyFrameKind.CHUNK, place.encode())
                    asked.append(place)
                if not asked:
                    return
                place = asked.popleft()
                yield self._receive_chunk(place)
        finally:
            for _ in asked:  # or the next answer would be another one's
                with contextlib.suppress(SourceLost):
                    self._answer(self._times.answer_s)

    def end(self, copy: bytes, ending: CopyEnding, why: str = "") -> None:
        """Says how the copy ended: the source lets go of what it keeps. Raises: CopyRefused, SourceLost."""
        self._send(CopyFrameKind.END, encode_value(CopyEnd(copy, ending, why).to_json()))
        self._receive(self._times.answer_s, CopyFrameKind.ENDED)

    def ask_sums(self, request: SumsRequest) -> KnownSums:
        """What the node has read of its log; nothing is copied for it. Raises: CopyRefused, SourceLost."""
        self._send(CopyFrameKind.SUMS, encode_value(request.to_json()))
        return self._decode(self._receive(self._times.answer_s, CopyFrameKind.KNOWN).body, KnownSums.from_json)

    # -- frames ------------------------------------------------------------------------------------------------------------

    def _piece_bytes(self) -> int:
        share = self._rate // ANSWERS_PER_S if self._rate else PIECE_BYTES
        return min(max(share, CHUNK_BYTES_MIN), PIECE_BYTES)

    def _send(self, kind: CopyFrameKind, body: bytes) -> None:
        """Raises: SourceLost."""
        session, connection, loop = self._session, self._connection, self._loop
        if session is None or connection is None or loop is None or self._closed:
            raise self._lost("there is no connection")
        frame = session.sealer.seal(kind, body)
        try:
            loop.call_soon_threadsafe(connection.write, frame)
        except RuntimeError:
            raise self._lost("the connection was closed") from None

    def _answer(self, wait_s: float) -> ChannelFrame:
        """The next frame of the source. Raises: SourceLost."""
        try:
            frame = self._answers.get(timeout=wait_s)
        except queue.Empty:
            raise self._broken(f"no answer in {wait_s:g} s") from None
        if frame is None:
            self._answers.put(None)  # it stays over
            error = self._connection.error if self._connection is not None else None
            raise self._lost("the connection was closed" if self._closed else full_text(error or OSError("the source hung up")))
        return frame

    def _receive(self, wait_s: float, *kinds: CopyFrameKind) -> ChannelFrame:
        """The answer, of one of these kinds. Raises: CopyRefused, SourceLost."""
        frame = self._answer(wait_s)
        if frame.kind == CopyFrameKind.REFUSED:
            raise self._decode(frame.body, CopyRefusal.from_json).as_error()
        if frame.kind not in kinds:
            raise self._broken(f"an answer of kind {frame.kind}, where {' or '.join(kind.name for kind in kinds)} is due")
        return frame

    def _receive_chunk(self, place: ChunkPlace) -> bytes:
        body = self._receive(self._times.answer_s, CopyFrameKind.DATA).body
        try:
            data = ChunkData.decode(body)
        except BadFrame as error:
            raise self._broken(str(error)) from None
        if data.place != place:
            raise ChunkDamaged(f"node {self._node} sent {data.place}, where {place} was asked for")
        if not data.is_intact:
            raise ChunkDamaged(f"file {place.file} from byte {place.offset} on came from node {self._node} with another checksum")
        return data.content

    def _decode(self, body: bytes, read: Callable[[Mapping[str, Any]], V]) -> V:
        try:
            return decode_value(body, read)
        except BadFrame as error:
            raise self._broken(str(error)) from None

    def _broken(self, why: str) -> SourceLost:
        """What the source says cannot be relied on any more: hangs up."""
        self.close()
        return self._lost(why)

    def _lost(self, why: str) -> SourceLost:
        return SourceLost(f"the connection to node {self._node} at {address_text(self._address)} for a copy: {why}")

    # -- the loop's thread -------------------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        connection = self._connection = FramedConnection(silence_s=self._settings.silence_s)
        self._session, _ = await connect_peer(
            connection,
            self._address,
            lambda: call_session(COPY_CHANNEL, connection, self._ours, NodeId(self._node)),
            preface=COPY_CHANNEL.preface,
            tls=self._tls,
            settings=self._settings,
        )
        connection.deliver_to(self._take_frame, on_writable=lambda: None, on_closed=lambda: self._answers.put(None))
        if connection.closed.is_set():
            raise connection.error or ConnectionEnded("the source hung up")

    def _take_frame(self, frame: bytes) -> None:
        assert self._session is not None
        said = self._session.opener.open(frame)
        if self._answers.qsize() >= ANSWERS_MAX:
            raise BadFrame(FrameFault.MALFORMED, f"more than {ANSWERS_MAX} answers that were not asked for")
        self._answers.put(said)

    async def _hang_up(self) -> None:
        """The loop ends when the connection is closed."""
        loop = asyncio.get_running_loop()
        if self._connection is not None:
            self._connection.end()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LINGER_S):
                    await self._connection.closed.wait()
        loop.call_soon(loop.stop)
