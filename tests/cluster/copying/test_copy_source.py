"""Source and recipient over real sockets: copies arrive whole, by one connection or several; a fault costs that copy at most."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cmdlog.cluster.copying.copy_client import CopyClient, SourceLost
from cmdlog.cluster.copying.copy_frames import COPY_CHANNEL, ChunkPlace, CopyFrameKind, copy_credentials
from cmdlog.cluster.copying.copy_rate import SharedRate
from cmdlog.cluster.copying.copy_values import CopyEnding, CopyRefused, CopyRequest, RefusalCode
from cmdlog.cluster.transport.peer_tls import make_peer_tls
from cmdlog.raft.wire.secure_frames import Secret
from tests.cluster.copying.copykit import (
    LIFE,
    RECIPIENT,
    REQUEST,
    SECRET,
    WISH,
    MadeUpNode,
    ServedSource,
    admitted,
    begin,
    fetch,
    make_snapshot,
    some_bytes,
)
from tests.cluster.transport.netkit import CLUSTER, make_node, running
from tests.cluster.transport.test_peer_tls import is_hung_up_on, tls_files
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


def test_manifest_larger_than_a_frame_arrives(node: MadeUpNode, serve: Serve) -> None:
    """The code of an application can be."""
    node.catalog = {"version": 1, "bundle": some_bytes(9 << 20).hex()}
    with serve().client() as client:
        manifest = begin(client)
    (catalog,) = manifest.groups[1022].catalogs.values()
    assert catalog.value == node.catalog


def test_another_connection_continues(node: MadeUpNode, serve: Serve) -> None:
    """By the copy's id, whether the first one hung up or is still there; then that one has lost it to nobody else."""
    source = serve()
    with source.client() as first:
        manifest = begin(first)
        assert first.read_chunk(manifest.copy, 3, 0, 100) == IMAGE[:100]
    with source.client() as second, source.client() as third:
        assert second.read_chunk(manifest.copy, 3, 100, 100) == IMAGE[100:200]
        assert third.read_chunk(manifest.copy, 3, 200, 100) == IMAGE[200:300]
        with pytest.raises(CopyRefused) as refused:
            second.begin_copy(REQUEST)
        assert refused.value.code == RefusalCode.ALREADY_COPYING
    wait_for(lambda: source.source.status()["copies"][0]["connected"] is False)
    with source.client() as fourth:
        assert begin(fourth).copy != manifest.copy


def test_two_recipients_at_once(node: MadeUpNode, serve: Serve) -> None:
    """Each gets all of it; a third is refused until one is done."""
    node.members |= {number: admitted(b"life of%d" % number, number) for number in (3, 4)}
    source = serve()
    found: dict[int, dict[str, bytes]] = {}

    def copy(number: int) -> None:
        with source.client(b"life of%d" % number, number) as client:
            manifest = begin(client, CopyRequest(number, b"life of%d" % number))
            ready.wait()
            found[number] = fetch(client, manifest)
            client.end(manifest.copy, CopyEnding.DONE)

    ready = threading.Barrier(3)
    threads = [threading.Thread(target=copy, args=(number,)) for number in (3, 4)]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(source.source.status()["copies"]) == 2)
    with source.client() as client, pytest.raises(CopyRefused) as refused:
        client.begin_copy(REQUEST)
    assert refused.value.code == RefusalCode.BUSY
    ready.wait()
    for thread in threads:
        thread.join()
    assert found[3] == found[4]
    assert found[3]["p0000-0000000000000080/image.sqlite"] == IMAGE


def test_strangers_get_nothing(node: MadeUpNode, serve: Serve) -> None:
    """Another secret, that of consensus itself, another cluster, the source's own number: no session, and the source works on."""
    source = serve()
    others = [
        copy_credentials(CLUSTER, RECIPIENT, LIFE, Secret(b"another secret of 32 bytes......")),
        copy_credentials(bytes(16), RECIPIENT, LIFE, SECRET),
        copy_credentials(CLUSTER, 1, LIFE, SECRET),
    ]
    for ours in others:
        with pytest.raises(SourceLost), source.client(ours=ours):
            pass
    with source.client() as client:
        assert client.ask(WISH).begun
    assert node.wishes == [WISH]


def test_wrong_incarnation_is_refused(node: MadeUpNode, serve: Serve) -> None:
    """With the right secret: who one is does not follow from that."""
    with serve().client(b"old life") as client:
        with pytest.raises(CopyRefused) as refused:
            client.begin_copy(CopyRequest(RECIPIENT, b"old life"))
        assert refused.value.code == RefusalCode.WRONG_RECIPIENT
        with pytest.raises(CopyRefused) as refused:
            client.begin_copy(REQUEST)
        assert refused.value.code == RefusalCode.WRONG_RECIPIENT
        with pytest.raises(CopyRefused):
            client.ask(WISH)


def test_garbage_and_recorded_beginnings_are_hung_up_on(node: MadeUpNode, serve: Serve) -> None:
    """What was said on another connection is of no use, as it is or in part."""
    source = serve()
    said = record_of(source)
    for data in (b"\xff" * 300, said, said[:40], said[:150] + b"\0" * 80):
        with socket.create_connection(source.address, timeout=PATIENCE_S) as sock:
            sock.sendall(COPY_CHANNEL.preface + data)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(4096):
                pass
    assert node.wishes == [WISH]
    with source.client() as client:
        assert client.ask(WISH).begun


def record_of(source: ServedSource) -> bytes:
    """What a recipient said on its connection, after the preface."""
    heard = bytearray()
    listener = socket.create_server(("127.0.0.1", 0))

    def relay() -> None:
        near, _ = listener.accept()
        with near, socket.create_connection(source.address) as far:
            back = threading.Thread(target=pump, args=(far, near, bytearray()))
            back.start()
            pump(near, far, heard)
            back.join()

    thread = threading.Thread(target=relay)
    thread.start()
    client = source.client()
    client._address = listener.getsockname()[:2]
    with client:
        assert client.ask(WISH).begun
    thread.join()
    listener.close()
    return bytes(heard[1:])


def pump(here: socket.socket, there: socket.socket, heard: bytearray) -> None:
    """Until the end."""
    try:
        while data := here.recv(65536):
            heard += data
            there.sendall(data)
        there.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def flood(client: CopyClient, copy: bytes) -> None:
    """Asks for much more than anybody may."""
    for _ in range(200):
        client._send(CopyFrameKind.CHUNK, ChunkPlace(copy, 3, 0, 1 << 20).encode())
    for _ in range(200):
        client._receive(20.0, CopyFrameKind.DATA)


def test_unread_requests_are_limited(node: MadeUpNode, serve: Serve) -> None:
    """Who asks without end is hung up on."""
    with serve(rate=1 << 20).client() as client:
        manifest = begin(client)
        with pytest.raises(SourceLost):
            flood(client, manifest.copy)


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
            client.read_chunk(manifest.copy, 0, 0, 1)
    wait_for(lambda: not node.held_folders() and not node.anchors)


def test_cancelled_copy_says_so(node: MadeUpNode, serve: Serve) -> None:
    """Between two pieces, however many were asked for."""
    source = serve(rate=4 << 20)
    with source.client() as client:
        manifest = begin(client)
        pieces = client.read_chunks(manifest.copy, manifest.files[3])
        next(pieces)
        assert source.source.cancel(RECIPIENT) == 1
        with pytest.raises(CopyRefused) as refused:
            list(pieces)
        assert refused.value.code == RefusalCode.CANCELLED
        with pytest.raises(CopyRefused) as refused:
            client.end(manifest.copy, CopyEnding.CANCELLED)
        assert refused.value.code == RefusalCode.CANCELLED
    wait_for(lambda: not node.held_folders())


@pytest.mark.parametrize("harm", ["removed", "cut"])
def test_file_that_is_lost_at_the_source_is_named(node: MadeUpNode, serve: Serve, harm: str) -> None:
    """By somebody who knows better than the node; the copy can begin again."""
    with serve().client() as client:
        manifest = begin(client)
        (path,) = node.directory.glob("snapshots/tmp-p0000-*/image.sqlite")
        if harm == "removed":
            path.unlink()
        else:
            os.truncate(path, 100)
        with pytest.raises(CopyRefused, match=r"image\.sqlite") as refused:
            client.read_chunk(manifest.copy, 3, 200, 100)
        assert refused.value.code == RefusalCode.FILE_LOST


def test_expired_copy_is_unknown(node: MadeUpNode, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipient begins again, and gets everything."""
    monkeypatch.setattr("cmdlog.cluster.copying.copy_sessions.SILENT_S", 0.0)
    monkeypatch.setattr("cmdlog.cluster.copying.copy_source.LOOK_S", 0.05)
    source = serve()
    with source.client() as client:
        manifest = begin(client)
        wait_for(lambda: not source.source.status()["copies"])
        with pytest.raises(CopyRefused) as refused:
            client.read_chunk(manifest.copy, 0, 0, 1)
        assert refused.value.code == RefusalCode.UNKNOWN_COPY
    wait_for(lambda: not node.held_folders() and not node.anchors)


def test_error_of_the_node_is_a_refusal(node: MadeUpNode, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is; the connection stays."""

    def fail(_: object) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(node, "_cluster_state", fail)
    with serve().client() as client:
        for _ in range(2):
            with pytest.raises(CopyRefused, match="the disk is gone") as refused:
                client.begin_copy(REQUEST)
            assert refused.value.code == RefusalCode.UNAVAILABLE
        assert client.ask(WISH).begun
    wait_for(lambda: not node.held_folders() and not node.anchors)


def test_rate_is_kept(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every piece asks for its turn, and is given when that has come."""
    taken: list[int] = []

    def take_bytes(_: SharedRate, size: int, _now_s: float) -> float:
        taken.append(size)
        return 0.0

    monkeypatch.setattr(SharedRate, "take_bytes", take_bytes)
    with serve(rate=10 << 20).client() as client:
        manifest = begin(client)
        assert manifest.rate == 10 << 20
        fetch(client, manifest)
    assert sum(taken) == manifest.size


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
