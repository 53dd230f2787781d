"""The recipient's end, beside a source whose answers are scripted: what it checks, and that it never waits for ever."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import google_crc32c
import pytest

from cmdlog.cluster.copying.copy_client import (
    ANSWERS_MAX,
    CHUNK_BYTES_MIN,
    PIECE_BYTES,
    ChunkDamaged,
    CopyClient,
    CopyTimes,
    SourceLost,
)
from cmdlog.cluster.copying.copy_frames import COPY_CHANNEL, ChunkData, ChunkPlace, CopyFrameKind, copy_credentials
from cmdlog.cluster.copying.copy_values import (
    CopyEnding,
    CopyFile,
    CopyManifest,
    CopyRefusal,
    CopyRefused,
    CopyRequest,
    encode_value,
)
from cmdlog.cluster.transport.channel_session import ChannelSession, answer_session
from cmdlog.cluster.transport.framed_connection import FramedConnection
from tests.cluster.copying.copykit import LIFE, RECIPIENT, REQUEST, SECRET, SOURCE, WISH
from tests.cluster.copying.test_copy_values import MANIFEST, STANDING
from tests.cluster.transport.netkit import CLUSTER
from tests.waiting import wait_for

pytestmark = pytest.mark.slow  # sockets

Script = Callable[[ChannelSession, int, bytes], list[bytes]]
FILE = CopyFile(0, 0, "p0000-0000000000000090/image.sqlite", 10, 0)
COPY = bytes(16)
IMPATIENT = CopyTimes(connect_s=60.0, answer_s=0.3, begin_s=0.3)


@contextmanager
def scripted(script: Script, *, times: CopyTimes | None = None, says: str = "hello") -> Iterator[CopyClient]:
    """A client of a source that answers each frame as the script says; None of it: it hangs up."""
    listener = socket.create_server(("127.0.0.1", 0))

    async def serve(connection: FramedConnection) -> None:
        sock, _ = await asyncio.get_running_loop().sock_accept(listener)
        await asyncio.get_running_loop().sock_recv(sock, 1)
        await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, sock)
        if says != "hello":
            connection.end()
            return
        session = await answer_session(COPY_CHANNEL, connection, copy_credentials(CLUSTER, SOURCE, b"source 1", SECRET))
        answers: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()

        def take(frame: bytes) -> None:
            said = session.opener.open(frame)
            answers.put_nowait((said.kind, said.body))

        connection.deliver_to(take, on_writable=lambda: None, on_closed=lambda: answers.put_nowait((0, b"")))
        while (asked := await answers.get())[0]:
            frames = script(session, *asked)
            if frames == HANG_UP:
                connection.end()
            for frame in frames:
                connection.write(frame)

    def run() -> None:
        listener.setblocking(False)
        asyncio.run(serve(FramedConnection(silence_s=60.0)))

    thread = threading.Thread(target=run)
    thread.start()
    ours = copy_credentials(CLUSTER, RECIPIENT, LIFE, SECRET)
    client = CopyClient(ours, SOURCE, listener.getsockname()[:2], times=times or CopyTimes())
    try:
        yield client
    finally:
        client.close()
        thread.join()
        listener.close()


HANG_UP: list[bytes] = [b"hang up"]


def always(kind: CopyFrameKind, body: bytes, count: int = 0) -> Script:
    """The same answer to everything."""
    return lambda session, _kind, _body: [session.sealer.seal(kind, body, count)]


def chunk(content: bytes, **change: Any) -> Script:
    """The bytes at the place that was asked for, but for the change; `crc` is that of `hello`."""

    def answer(session: ChannelSession, _kind: int, body: bytes) -> list[bytes]:
        place = replace(ChunkPlace.decode(body), **change)
        return [session.sealer.seal(CopyFrameKind.DATA, ChunkData(place, 0x9A71BB4C, content).encode())]

    return answer


def test_answers_are_values() -> None:
    """Of each question."""
    with scripted(always(CopyFrameKind.STANDING, encode_value(STANDING.to_json()))) as client:
        client.connect()
        assert client.ask(WISH) == STANDING
    with scripted(always(CopyFrameKind.ENDED, b"")) as client:
        client.connect()
        client.end(COPY, CopyEnding.DONE)
    with scripted(chunk(b"hello")) as client:
        client.connect()
        assert next(client.read_chunks(COPY, replace(FILE, size=8), 3)) == b"hello"


def test_answers_that_were_not_asked_for_end_the_connection() -> None:
    """They would wait in memory for ever."""

    def answer(session: ChannelSession, _kind: int, _body: bytes) -> list[bytes]:
        return [session.sealer.seal(CopyFrameKind.ENDED, b"") for _ in range(2 * ANSWERS_MAX)]

    with scripted(answer) as client:
        client.connect()
        client.end(COPY, CopyEnding.DONE)
        wait_for(lambda: client._connection is not None and client._connection.closed.is_set())
        ends = map(client.end, [COPY] * 2 * ANSWERS_MAX, [CopyEnding.DONE] * 2 * ANSWERS_MAX)
        with pytest.raises(SourceLost, match="not asked for"):
            list(ends)


def test_manifest_in_pieces_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code can be larger than a frame."""
    text = encode_value(MANIFEST.to_json())

    def answer(session: ChannelSession, _kind: int, _body: bytes) -> list[bytes]:
        return [
            session.sealer.seal(CopyFrameKind.MANIFEST, piece, left)
            for left, piece in ((2, text[:50]), (1, text[50:51]), (0, text[51:]))
        ]

    with scripted(answer) as client:
        client.connect()
        assert client.begin_copy(REQUEST) == MANIFEST
    with scripted(lambda session, *_: answer(session, 0, b"")[::2]) as client:
        client.connect()
        with pytest.raises(SourceLost):
            client.begin_copy(REQUEST)


def test_refusal_is_raised_and_the_connection_stays() -> None:
    """Another question may follow."""
    with scripted(always(CopyFrameKind.REFUSED, encode_value(CopyRefusal("busy", "others copy").to_json()))) as client:
        client.connect()
        for _ in range(2):
            with pytest.raises(CopyRefused, match="others copy") as refused:
                client.begin_copy(REQUEST)
            assert refused.value.code == "busy"


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (chunk(b"hellO"), ChunkDamaged),
        (chunk(b"hello", file=1), ChunkDamaged),
        (chunk(b"hello", offset=4), ChunkDamaged),
        (chunk(b"hello!"), ChunkDamaged),
        (always(CopyFrameKind.DATA, b"short"), SourceLost),
        (always(CopyFrameKind.STANDING, b"{}"), SourceLost),
        (always(CopyFrameKind.REFUSED, b"garbage"), SourceLost),
        (lambda *_: [bytes(300)], SourceLost),
        (lambda *_: HANG_UP, SourceLost),
    ],
)
def test_chunk_that_is_not_what_was_asked_for_is_an_error(script: Script, error: type[Exception]) -> None:
    """Never bytes: other content, another place, another kind, garbage, nothing."""
    with scripted(script) as client:
        client.connect()
        with pytest.raises(error):
            next(client.read_chunks(COPY, replace(FILE, size=8), 3))


def test_frames_of_the_source_are_checked() -> None:
    """One that is repeated, or was changed on its way, ends the connection."""

    def twice(session: ChannelSession, _kind: int, _body: bytes) -> list[bytes]:
        return [session.sealer.seal(CopyFrameKind.ENDED)] * 2

    def changed(session: ChannelSession, _kind: int, _body: bytes) -> list[bytes]:
        frame = bytearray(session.sealer.seal(CopyFrameKind.ENDED, b"body"))
        frame[-20] ^= 1
        return [bytes(frame)]

    for script, good in ((twice, 1), (changed, 0)):
        with scripted(script) as client:
            client.connect()
            for _ in range(good):
                client.end(COPY, CopyEnding.DONE)
            with pytest.raises(SourceLost):
                client.end(COPY, CopyEnding.DONE)


def test_silence_ends_in_an_error() -> None:
    """Of each question, in its time; the client is of no use afterwards."""
    with scripted(lambda *_: [], times=IMPATIENT) as client:
        client.connect()
        with pytest.raises(SourceLost, match=r"no answer in 0\.3 s"):
            client.ask(WISH)
        with pytest.raises(SourceLost):
            client.begin_copy(REQUEST)


def test_source_that_refuses_the_hello_is_lost() -> None:
    """Or is not there."""
    with scripted(lambda *_: [], says="nothing") as client, pytest.raises(SourceLost, match="node 1 at 127"):
        client.connect()
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = gone.getsockname()[:2]
    nobody = CopyClient(copy_credentials(CLUSTER, RECIPIENT, LIFE, SECRET), SOURCE, address)
    with pytest.raises(SourceLost), nobody:
        pass
    with pytest.raises(SourceLost):
        nobody.ask(WISH)


def test_client_that_is_closed_interrupts_what_is_under_way() -> None:
    """From any thread: here when the question has arrived at the source."""
    arrived, closing = threading.Event(), threading.Event()

    def hear(*_: object) -> list[bytes]:
        arrived.set()
        return []

    with scripted(hear) as client:
        client.connect()

        def close_then() -> None:
            closing.wait()
            arrived.wait()
            client.close()

        thread = threading.Thread(target=close_then)
        thread.start()
        closing.set()
        with pytest.raises(SourceLost, match="closed"):
            client.ask(WISH)
        thread.join()


def test_pieces_come_in_their_order_and_may_be_left() -> None:
    """The rest from an offset; who stops early can still ask for something else."""
    content = bytes(range(256)) * 4096

    def answer(session: ChannelSession, kind: int, body: bytes) -> list[bytes]:
        if kind == CopyFrameKind.END:
            return [session.sealer.seal(CopyFrameKind.ENDED)]
        place = ChunkPlace.decode(body)
        piece = content[place.offset : place.offset + place.length]
        return [session.sealer.seal(CopyFrameKind.DATA, ChunkData(place, google_crc32c.value(piece), piece).encode())]

    with scripted(answer) as client:
        client.connect()
        file = replace(FILE, size=len(content))
        assert b"".join(client.read_chunks(COPY, file, 7)) == content[7:]
        assert list(client.read_chunks(COPY, file, len(content))) == []
        pieces = client.read_chunks(COPY, file)
        assert len(next(pieces)) == PIECE_BYTES
        pieces.close()  # type: ignore[attr-defined]
        client.end(COPY, CopyEnding.CANCELLED)


def test_slow_source_is_asked_for_small_pieces() -> None:
    """A piece at the stated rate must not take as long as an answer may."""
    sizes: list[int] = []

    def answer(session: ChannelSession, kind: int, body: bytes) -> list[bytes]:
        if kind == CopyFrameKind.BEGIN:
            return [session.sealer.seal(CopyFrameKind.MANIFEST, encode_value(replace(MANIFEST, rate=1 << 20).to_json()))]
        place = ChunkPlace.decode(body)
        sizes.append(place.length)
        piece = bytes(place.length)
        return [session.sealer.seal(CopyFrameKind.DATA, ChunkData(place, 0, piece).encode())]

    with scripted(answer) as client:
        client.connect()
        assert isinstance(client.begin_copy(CopyRequest(RECIPIENT, LIFE)), CopyManifest)
        with pytest.raises(ChunkDamaged):
            next(client.read_chunks(COPY, replace(FILE, size=1 << 20)))
    assert sizes[0] == (1 << 20) // 8 > CHUNK_BYTES_MIN
