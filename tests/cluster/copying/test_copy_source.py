"""Source and recipient over real sockets: copies arrive whole, by one connection or several; a fault costs that copy at most."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cmdlog.cluster.copying.copy_client import SourceLost
from cmdlog.cluster.copying.copy_frames import COPY_CHANNEL, ChunkData, ChunkPlace, CopyFrameKind
from cmdlog.cluster.copying.copy_source import BURST_S, REQUEST_BYTES_MAX, REQUESTS_MAX, CopyConnection, CopyService, SharedRate
from cmdlog.cluster.copying.copy_values import (
    CopyEnd,
    CopyEnding,
    CopyManifest,
    CopyRefusal,
    CopyRefused,
    RefusalCode,
    decode_value,
    encode_value,
)
from cmdlog.cluster.copying.held_files import FileLost, OpenFile
from cmdlog.cluster.transport.channel_session import ChannelSession
from cmdlog.cluster.transport.framed_connection import FramedConnection
from cmdlog.cluster.transport.peer_transport import make_peer_tls
from cmdlog.cluster.transport.sealed_frames import ChannelOpener, ChannelSealer
from cmdlog.raft.wire.layout import BadFrame
from cmdlog.raft.wire.secure_frames import Hello, Seal, make_links
from tests.cluster.copying.copykit import (
    LIFE,
    RECIPIENT,
    REQUEST,
    SECRET,
    SOURCE,
    WISH,
    MadeUpNode,
    ServedSource,
    begin,
    fetch,
    make_snapshot,
    peer,
    some_bytes,
)
from tests.cluster.transport.fake_transport import FakeTransport
from tests.cluster.transport.linkkit import turn_until
from tests.cluster.transport.netkit import CLUSTER, make_node, running
from tests.cluster.transport.test_peer_transport import is_hung_up_on, tls_files
from tests.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.slow  # sockets

IMAGE = some_bytes(3_000_001)
Serve = Callable[..., ServedSource]


@pytest.fixture
def node(tmp_path: Path) -> MadeUpNode:
    """Two partitions; the first has a delta on its image."""
    made = MadeUpNode(tmp_path, partitions=(0, 1))
    made.snapshots[0] = make_snapshot(tmp_path, 0, 90, b"delta", base=made.hold(IMAGE, 0, 80))
    made.hold(b"", 1, 70)
    return made


@pytest.fixture
def serve(node: MadeUpNode) -> Iterator[Serve]:
    """Makes sources of that node."""
    with ExitStack() as stack:

        def make(**given: Any) -> ServedSource:
            served = ServedSource(node, **given)
            stack.callback(served.close)
            return served

        yield make


def test_copy_arrives_whole(node: MadeUpNode, serve: Serve) -> None:
    """Every file, byte by byte; the files are free when it is over, the log when the recipient has caught up."""
    source = serve()
    with source.client() as client:
        manifest = begin(client)
        files = fetch(client, manifest)
        shown = source.source.status()["copies"]
        client.end(manifest.copy, CopyEnding.DONE)
    assert {name: len(content) for name, content in files.items()} == {file.name: file.size for file in manifest.files}
    assert files["p0000-0000000000000080/image.sqlite"] == IMAGE
    assert files["p0000-0000000000000090/delta.sqlite"] == b"delta"
    assert [(copy["node"], copy["percent"], copy["connected"]) for copy in shown] == [(RECIPIENT, 100.0, True)]
    wait_for(lambda: not node.held_folders())
    assert node.anchors
    node.members.clear()
    wait_for(lambda: not node.anchors)


def test_manifest_larger_than_a_frame_arrives(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces: it holds the code of an application."""
    monkeypatch.setattr("cmdlog.cluster.copying.copy_source.BODY_BYTES_MAX", 100)
    with serve().client() as client:
        assert len(begin(client).files) == 6


def test_source_that_stops_midway_is_lost(node: MadeUpNode, serve: Serve) -> None:
    """The recipient learns it at once, and the source keeps nothing."""
    source = serve(rate=1 << 20)  # else all of it may be on its way before the end
    with source.client() as client:
        manifest = begin(client)
        pieces = client.read_chunks(manifest.copy, manifest.files[3])
        next(pieces)
        source.source.stop()
        with pytest.raises((SourceLost, CopyRefused)):
            list(pieces)
        with pytest.raises(SourceLost):
            next(client.read_chunks(manifest.copy, manifest.files[0]))
    wait_for(lambda: not node.held_folders() and not node.anchors)


def test_operator_cancels_a_copy(node: MadeUpNode, serve: Serve) -> None:
    """The recipient is told, and nothing is held for it."""
    source = serve()
    with source.client() as client:
        copy = begin(client).copy
        assert source.source.cancel(RECIPIENT) == 1
        with pytest.raises(CopyRefused) as refused:
            client.end(copy, CopyEnding.DONE)
    assert refused.value.code == RefusalCode.CANCELLED
    wait_for(lambda: not node.held_folders() and not node.anchors)


def test_copy_comes_by_the_peers_port(node: MadeUpNode, serve: Serve, tmp_path: Path) -> None:
    """Where consensus and calls are: the first byte says whose a connection is."""
    source = serve()
    peers = make_node(tmp_path / "peers", 1)
    peers.network.give_sockets(COPY_CHANNEL.preface, source.source.take_socket)
    with running(peers):
        source.address = peers.address
        with source.client() as client:
            assert fetch(client, begin(client))["p0000-0000000000000080/image.sqlite"] == IMAGE


def test_tls_protects_a_copy(node: MadeUpNode, serve: Serve, tmp_path: Path) -> None:
    """Both ends show a certificate; who shows none is hung up on."""
    source = serve(tls=make_peer_tls(**tls_files(tmp_path / "tls")))
    with source.client() as client:
        assert fetch(client, begin(client))["p0000-0000000000000080/image.sqlite"] == IMAGE
    with socket.create_connection(source.address, timeout=PATIENCE_S) as plain:
        plain.sendall(COPY_CHANNEL.preface + b"\xff" * 200)
        assert is_hung_up_on(plain)


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
def single(tmp_path: Path) -> MadeUpNode:
    """One partition."""
    made = MadeUpNode(tmp_path)
    made.hold(b"content of the image")
    return made


def play(single: MadeUpNode, scenario: Scenario, *, rate: int = 0) -> None:
    """Runs it in a loop."""

    async def run() -> None:
        with ThreadPoolExecutor(2) as asking:
            wire = Wire(single, asking, rate=rate)
            await scenario(wire)
            await wire.hang_up()

    asyncio.run(run())


def test_answers_come_in_the_order_of_the_requests(single: MadeUpNode) -> None:
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

    play(single, scenario)


def test_recipient_that_does_not_read_gets_no_more(single: MadeUpNode) -> None:
    """Not one piece beyond what the socket takes, until it reads again."""

    async def scenario(wire: Wire) -> None:
        copy = (await wire.begin()).copy
        wire.connection.pause_writing()
        for _ in range(3):
            wire.say(CopyFrameKind.CHUNK, ChunkPlace(copy, 1, 0, 7).encode())
        wire.say(CopyFrameKind.ASK, encode_value(WISH.to_json()))
        await asyncio.sleep(0)
        assert wire.end.frames() == []
        assert single.wishes == []
        wire.connection.resume_writing()
        assert len(await wire.hear(4)) == 4

    play(single, scenario)


@pytest.mark.parametrize("harm", ["kind", "body", "chunk", "size", "count"])
def test_request_that_cannot_be_read_ends_the_connection(single: MadeUpNode, harm: str) -> None:
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

    play(single, scenario)


def test_connection_that_is_lost_leaves_the_copy(single: MadeUpNode) -> None:
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

    play(single, waits_for_rate, rate=1)
    play(single, waits_for_socket)


def test_copy_that_ends_while_a_piece_waits_is_refused(single: MadeUpNode) -> None:
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

    play(single, scenario, rate=200)


async def refusal(wire: Wire) -> CopyRefusal:
    """The next answer."""
    ((kind, body),) = await wire.hear()
    assert kind == CopyFrameKind.REFUSED
    return decode_value(body, CopyRefusal.from_json)


@pytest.mark.parametrize("bytes_left", [None, 3], ids=["removed", "cut"])
def test_file_that_is_lost_at_the_source_is_named(single: MadeUpNode, bytes_left: int | None) -> None:
    """By an operator who knows better than the node; the connection stays."""

    async def scenario(wire: Wire) -> None:
        copy = (await wire.begin()).copy
        (path,) = single.root.glob("snapshots/tmp-*/image.sqlite")
        if bytes_left is None:
            path.unlink()
        else:
            os.truncate(path, bytes_left)
        for _ in range(2):
            wire.say(CopyFrameKind.CHUNK, ChunkPlace(copy, 1, 0, 7).encode())
            refused = await refusal(wire)
            assert (refused.code, "image.sqlite" in refused.why) == (RefusalCode.FILE_LOST, True)

    play(single, scenario)


def test_copy_that_ends_while_a_file_is_read_says_why(single: MadeUpNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end takes the files away: none of them is lost."""

    async def scenario(wire: Wire) -> None:
        def read(_file: OpenFile, *_where: object) -> tuple[bytes, int]:
            wire.desk.cancel(RECIPIENT, "by an operator")
            raise FileLost("image.sqlite is gone")

        monkeypatch.setattr(OpenFile, "read", read)
        wire.say(CopyFrameKind.CHUNK, ChunkPlace((await wire.begin()).copy, 1, 0, 7).encode())
        assert (await refusal(wire)).code == RefusalCode.CANCELLED

    play(single, scenario)


def test_error_of_the_node_is_a_refusal(single: MadeUpNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is; the connection stays."""

    def fail(_: object) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(single, "cluster_state", fail)

    async def scenario(wire: Wire) -> None:
        for _ in range(2):
            wire.say(CopyFrameKind.BEGIN, encode_value(REQUEST.to_json()))
            refused = await refusal(wire)
            assert (refused.code, "the disk is gone" in refused.why) == (RefusalCode.UNAVAILABLE, True)

    play(single, scenario)


def test_no_limit_never_waits() -> None:
    """Whatever is asked for."""
    rate = SharedRate(0)
    assert [rate.take_bytes(1 << 30, 0.0) for _ in range(5)] == [0.0] * 5


def test_sum_of_all_is_the_rate() -> None:
    """Two that ask in turns get half each: after a second of waiting, a second's worth has been given."""
    rate, now, given = SharedRate(1000), 0.0, {0: 0, 1: 0}
    while now < 10.0:
        for who in given:
            now += rate.take_bytes(100, now)
            given[who] += 100
    assert sum(given.values()) == pytest.approx(10_000, rel=0.03)
    assert given[0] == pytest.approx(given[1], abs=100)


def test_pause_is_not_made_up_for() -> None:
    """After a minute without a question only `BURST_S` of it may be caught up."""
    rate = SharedRate(1000)
    rate.take_bytes(100, 0.0)
    waits = [rate.take_bytes(25, 60.0) for _ in range(4)]
    assert waits == pytest.approx([0.0, 0.0, 0.0, 3 * 0.025 - BURST_S])


def test_late_question_waits_no_longer_than_its_turn() -> None:
    """A piece waits for those before it, not for itself."""
    rate = SharedRate(1000)
    assert rate.take_bytes(1000, 5.0) == 0.0
    assert rate.take_bytes(1000, 5.0) == pytest.approx(1.0 - BURST_S)
