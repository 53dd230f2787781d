"""Source and recipient over real sockets: copies arrive whole, by one connection or several; a fault costs that copy at most."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cmdlog.cluster.copying.copy_client import SourceLost
from cmdlog.cluster.copying.copy_frames import COPY_CHANNEL
from cmdlog.cluster.copying.copy_values import CopyEnding, CopyRefused
from cmdlog.cluster.transport.peer_tls import make_peer_tls
from tests.cluster.copying.copykit import (
    RECIPIENT,
    MadeUpNode,
    ServedSource,
    begin,
    fetch,
    make_snapshot,
    some_bytes,
)
from tests.cluster.transport.netkit import make_node, running
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
