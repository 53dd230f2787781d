"""The source's end of one connection: answers in the order of the requests, as fast as they are read, and none after the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cmdlog.cluster.channels.channel_session import ChannelSession
from cmdlog.cluster.channels.sealed_frames import ChannelOpener, ChannelSealer
from cmdlog.cluster.copying.copy_connection import REQUEST_BYTES_MAX, REQUESTS_MAX, CopyConnection, CopyService
from cmdlog.cluster.copying.copy_frames import COPY_CHANNEL, ChunkData, ChunkPlace, CopyFrameKind
from cmdlog.cluster.copying.copy_rate import SharedRate
from cmdlog.cluster.copying.copy_values import (
    CopyEnd,
    CopyEnding,
    CopyManifest,
    CopyRefusal,
    RefusalCode,
    decode_value,
    encode_value,
)
from cmdlog.cluster.transport.framed_connection import FramedConnection
from cmdlog.raft.wire.layout import BadFrame
from cmdlog.raft.wire.secure_frames import Hello, Seal, make_links
from tests.cluster.copying.copykit import LIFE, REQUEST, SECRET, SOURCE, WISH, MadeUpNode, peer
from tests.cluster.transport.fake_transport import FakeTransport
from tests.cluster.transport.linkkit import turn_until
from tests.cluster.transport.netkit import CLUSTER


class Wire:
    """A recipient that speaks with a source in memory."""

    def __init__(self, node: MadeUpNode, asking: ThreadPoolExecutor, *, rate: int = 0) -> None:
        ends = peer(), peer(b"source 1", SOURCE)
        secret = COPY_CHANNEL.secret(SECRET)
        call = Hello(CLUSTER, ends[0], ends[1].node, bytes(16))
        there, back = make_links(call, Hello(CLUSTER, ends[1], ends[0].node, LIFE * 2, echo=call.nonce), secret, Seal.WHOLE)
        self._sealer, self._opener = ChannelSealer(COPY_CHANNEL, there, secret), ChannelOpener(COPY_CHANNEL, back, secret)
        session = ChannelSession(ends[0], ChannelSealer(COPY_CHANNEL, back, secret), ChannelOpener(COPY_CHANNEL, there, secret))
        self.connection = FramedConnection(silence_s=1.0)
        self.end = FakeTransport(self.connection)
        self.desk = node.desk()
        self.source = CopyConnection(self.connection, session, CopyService(self.desk, SharedRate(rate), asking))
        self.source.open()
        self.task = asyncio.create_task(self.source.run())
        self.answers: list[tuple[int, bytes]] = []

    def say(self, kind: int, body: bytes) -> None:
        """One request."""
        self.connection.data_received(self._sealer.seal(kind, body))

    async def hear(self, count: int = 1) -> list[tuple[int, bytes]]:
        """So many answers more."""
        wanted = len(self.answers) + count

        def arrived() -> bool:
            self.answers += [(said.kind, said.body) for said in map(self._opener.open, self.end.frames())]
            return len(self.answers) >= wanted

        await turn_until(arrived)
        return self.answers[-count:]

    async def begin(self) -> CopyManifest:
        """Begins a copy."""
        self.say(CopyFrameKind.BEGIN, encode_value(REQUEST.to_json()))
        ((kind, body),) = await self.hear()
        assert kind == CopyFrameKind.MANIFEST
        return decode_value(body, CopyManifest.from_json)

    async def hang_up(self) -> None:
        """The recipient is gone."""
        self.end.lose()
        await self.task


Scenario = Callable[[Wire], Awaitable[None]]


@pytest.fixture
def node(tmp_path: Path) -> MadeUpNode:
    """One partition."""
    made = MadeUpNode(tmp_path)
    made.hold(b"content of the image")
    return made


def play(node: MadeUpNode, scenario: Scenario, *, rate: int = 0) -> None:
    """Runs it in a loop."""

    async def run() -> None:
        with ThreadPoolExecutor(2) as asking:
            wire = Wire(node, asking, rate=rate)
            await scenario(wire)
            await wire.hang_up()

    asyncio.run(run())


def test_answers_come_in_the_order_of_the_requests(node: MadeUpNode) -> None:
    """Also where one of them takes a thread and the next does not."""

    async def scenario(wire: Wire) -> None:
        copy = (await wire.begin()).copy
        wire.say(CopyFrameKind.ASK, encode_value(WISH.to_json()))
        wire.say(CopyFrameKind.CHUNK, ChunkPlace(copy, 1, 0, 7).encode())
        wire.say(CopyFrameKind.CHUNK, ChunkPlace(copy, 9, 0, 7).encode())
        wire.say(CopyFrameKind.CHUNK, ChunkPlace(copy, 1, 8, 2).encode())
        wire.say(CopyFrameKind.END, encode_value(CopyEnd(copy, CopyEnding.DONE, "").to_json()))
        kinds = [kind for kind, _ in await wire.hear(5)]
        assert [CopyFrameKind(kind).name for kind in kinds] == ["STANDING", "DATA", "REFUSED", "DATA", "ENDED"]
        chunks = [ChunkData.decode(body) for kind, body in wire.answers if kind == CopyFrameKind.DATA]
        assert [chunk.content for chunk in chunks] == [b"content", b"of"]
        assert all(chunk.is_intact for chunk in chunks)

    play(node, scenario)


def test_recipient_that_does_not_read_gets_no_more(node: MadeUpNode) -> None:
    """Not one piece beyond what the socket takes, until it reads again."""

    async def scenario(wire: Wire) -> None:
        copy = (await wire.begin()).copy
        wire.connection.pause_writing()
        for _ in range(3):
            wire.say(CopyFrameKind.CHUNK, ChunkPlace(copy, 1, 0, 7).encode())
        wire.say(CopyFrameKind.ASK, encode_value(WISH.to_json()))
        await asyncio.sleep(0)
        assert wire.end.frames() == []
        assert node.wishes == []
        wire.connection.resume_writing()
        assert len(await wire.hear(4)) == 4

    play(node, scenario)


@pytest.mark.parametrize("harm", ["kind", "body", "chunk", "size", "count"])
def test_request_that_cannot_be_read_ends_the_connection(node: MadeUpNode, harm: str) -> None:
    """An unknown kind, no object, too large a piece, too many; the copy waits for the next connection."""

    async def scenario(wire: Wire) -> None:
        copy = (await wire.begin()).copy
        if harm == "kind":
            wire.say(77, b"")
        elif harm == "body":
            wire.say(CopyFrameKind.ASK, b"garbage")
        elif harm == "chunk":
            wire.say(CopyFrameKind.CHUNK, ChunkPlace(copy, 1, 0, 2 << 20).encode())
        elif harm == "size":
            wire.say(CopyFrameKind.ASK, encode_value({**WISH.to_json(), "reason": "x" * REQUEST_BYTES_MAX}))
        else:
            for _ in range(REQUESTS_MAX + 2):
                if not wire.connection.is_ending:
                    wire.say(CopyFrameKind.CHUNK, ChunkPlace(copy, 1, 0, 7).encode())
        await turn_until(lambda: wire.end.aborted)
        assert isinstance(wire.connection.error, BadFrame)
        await wire.hang_up()
        (left,) = wire.desk.status()["copies"]
        assert left["connected"] is False

    play(node, scenario)


def test_connection_that_is_lost_leaves_the_copy(node: MadeUpNode) -> None:
    """Whatever it was doing: waiting for its turn at the rate, or for the socket."""

    async def waits_for_rate(wire: Wire) -> None:
        copy = (await wire.begin()).copy
        for _ in range(3):
            wire.say(CopyFrameKind.CHUNK, ChunkPlace(copy, 1, 0, 7).encode())
        await asyncio.sleep(0)
        await wire.hang_up()
        assert len(wire.desk.status()["copies"]) == 1

    async def waits_for_socket(wire: Wire) -> None:
        copy = (await wire.begin()).copy
        wire.connection.pause_writing()
        wire.say(CopyFrameKind.CHUNK, ChunkPlace(copy, 1, 0, 7).encode())
        await asyncio.sleep(0)
        await wire.hang_up()
        assert len(wire.desk.status()["copies"]) == 1

    play(node, waits_for_rate, rate=1)
    play(node, waits_for_socket)


def test_copy_that_ends_while_a_piece_waits_is_refused(node: MadeUpNode) -> None:
    """The turn at the rate comes, and there is nothing to give any more."""

    async def scenario(wire: Wire) -> None:
        copy = (await wire.begin()).copy
        for _ in range(2):
            wire.say(CopyFrameKind.CHUNK, ChunkPlace(copy, 1, 0, 20).encode())
        assert (await wire.hear())[0][0] == CopyFrameKind.DATA
        wire.desk.cancel(2, "by an operator")
        ((kind, body),) = await wire.hear()
        assert kind == CopyFrameKind.REFUSED
        assert decode_value(body, CopyRefusal.from_json).code == RefusalCode.CANCELLED

    play(node, scenario, rate=200)
