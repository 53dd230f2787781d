"""What tests of the transport share: nodes on loopback, a handler that records, parcels, and a peer made by hand."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from cmdlog.cluster.transport.peer_book import PeerBook
from cmdlog.cluster.transport.peer_network import Endpoint, PeerNetwork
from cmdlog.cluster.transport.peer_transport import Address, LinkStatus, NoticeKind, PeerNotice, TransportSettings
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.messages import Append, Entries, HeartbeatBundle
from cmdlog.raft.multi_raft import Parcel
from cmdlog.raft.wire.control_frames import ControlFrame, ControlKind, ControlOpener, ControlSealer
from cmdlog.raft.wire.layout import Addressed
from cmdlog.raft.wire.secure_frames import LENGTH, FrameSealer, Hello, Link, Peer, Seal, Secret, decode_hello, make_links
from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.files import RealFiles
from cmdlog.wal.ids import Index, PartitionId, Term
from tests.waiting import PATIENCE_S, wait_for

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
SECRET: Final = Secret(b"0123456789abcdef0123456789abcdef")
CLUSTER: Final = bytes(range(16))
GROUP: Final = PartitionId(0)
QUICK: Final = TransportSettings(
    tick_s=0.02, probe_s=0.05, silence_s=3.0, pause_s_min=0.01, pause_s_max=0.05, challenge_s=3.0, connect_s=60.0, hello_s=60.0
)  # a hello has its time on a busy machine, too


def appended(sender: NodeId, receiver: NodeId, index: int, size: int = 10) -> Parcel:
    """One entry with this index, of `size` bytes."""
    entries = Entries(Index(index), [Term(1)], bytes(1), [bytes([index % 251]) * size])
    return Parcel(receiver, [(GROUP, Append(sender, receiver, Term(1), Term(0), Index(0), entries))])


def beats(sender: NodeId, receiver: NodeId, rounds: dict[int, int], term: int = 1) -> Parcel:
    """Heartbeats of these groups with these rounds."""
    groups = [PartitionId(group) for group in rounds]
    bundle = HeartbeatBundle(
        sender, receiver, groups, [Term(term)] * len(rounds), [Index(0)] * len(rounds), list(rounds.values())
    )
    return Parcel(receiver, bundles=[bundle])


def indexes(messages: list[Addressed]) -> list[int]:
    """Of the entries in these messages, in their order."""
    return [message.entries.first for _, message in messages if isinstance(message, Append)]


@dataclass
class Recorder:
    """A handler that remembers everything."""

    ticks: int = 0
    heard: dict[NodeId, list[Addressed]] = field(default_factory=dict)
    notices: list[PeerNotice] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)
    before_messages: Callable[[], None] = lambda: None

    def on_tick(self, ticks: int) -> None:
        self.threads.add(threading.get_ident())
        self.ticks += ticks

    def on_messages(self, peer: NodeId, messages: list[Addressed]) -> None:
        self.threads.add(threading.get_ident())
        self.before_messages()
        self.heard.setdefault(peer, []).extend(messages)

    def on_notice(self, notice: PeerNotice) -> None:
        self.threads.add(threading.get_ident())
        self.notices.append(notice)

    def indexes_of(self, peer: NodeId) -> list[int]:
        """Of all entries that this peer has sent."""
        return indexes(self.heard.get(peer, []))

    def has(self, kind: NoticeKind, peer: NodeId) -> bool:
        """Whether this was noticed about the peer."""
        return any(notice.kind is kind and notice.peer == peer for notice in list(self.notices))

    def details(self, kind: NoticeKind) -> list[str]:
        """What was said with each notice of a kind."""
        return [notice.detail for notice in list(self.notices) if notice.kind is kind]


def identity_of(node: int, *, cluster: bytes = CLUSTER, incarnation: bytes | None = None) -> Identity:
    """A node's first life, unless stated."""
    return Identity(cluster, node, incarnation or b"life-of%d" % node)


def open_book(folder: Path, identity: Identity) -> PeerBook:
    """The book of a node directory."""
    folder.mkdir(parents=True, exist_ok=True)
    return PeerBook.open(RealFiles(), str(folder), identity)


@dataclass
class NetNode:
    """A running network with what it was made of."""

    network: PeerNetwork
    handler: Recorder
    book: PeerBook

    @property
    def address(self) -> Address:
        return self.network.address

    def peer(self, node: NodeId) -> LinkStatus:
        """The status of one peer."""
        (found,) = wait_for(lambda: [peer for peer in self.network.status().peers if peer.node == node])
        return found

    def connected(self, node: NodeId) -> bool:
        """Whether messages go there and come from there."""
        peers = [peer for peer in self.network.status().peers if peer.node == node]
        return bool(peers) and peers[0].connected_since_s is not None and peers[0].calls_since_s is not None


def make_node(
    folder: Path,
    node: int,
    *,
    secret: Secret = SECRET,
    identity: Identity | None = None,
    settings: TransportSettings = QUICK,
    endpoint: Endpoint | None = None,
) -> NetNode:
    """A started network; the caller stops it."""
    book = open_book(folder / f"node-{node}", identity or identity_of(node))
    handler = Recorder()
    network = PeerNetwork(book, secret, endpoint or Endpoint(), settings)
    network.start(handler)
    return NetNode(network, handler, book)


@contextmanager
def running(*nodes: NetNode) -> Iterator[None]:
    """Stops them in the end."""
    try:
        yield
    finally:
        for node in nodes:
            node.network.stop()


@contextmanager
def joined(folder: Path, count: int = 2, **options: Any) -> Iterator[list[NetNode]]:
    """Nodes 1 to `count`, each connected with every other."""
    nodes = [make_node(folder, number, **options) for number in range(1, count + 1)]
    with running(*nodes):
        addresses = {NodeId(number): node.address for number, node in enumerate(nodes, 1)}
        for node in nodes:
            node.network.set_peers(addresses)
        for number, node in enumerate(nodes, 1):
            for other in addresses.keys() - {number}:
                wait_for(lambda node=node, other=other: node.connected(other))  # type: ignore[misc]
        yield nodes


class RawPeer:
    """A peer made by hand, on a plain socket: what an attacker, or one with a defect, may say. It calls."""

    def __init__(
        self, address: Address, *, node: int = 2, receiver: int = 1, secret: Secret = SECRET, identity: Identity | None = None
    ) -> None:
        identity = identity or identity_of(node)
        self.me, self.receiver, self.secret, self.cluster = (
            Peer(NodeId(node), identity.incarnation),
            NodeId(receiver),
            secret,
            identity.cluster_id,
        )
        self.process, self.start = os.urandom(8), 1
        self.said = b""  # all bytes
        self.socket = socket.create_connection(address, timeout=PATIENCE_S)
        self.call = Hello(self.cluster, self.me, self.receiver, os.urandom(16))

    def __enter__(self) -> RawPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def say(self, data: bytes) -> None:
        self.said += data
        self.socket.sendall(data)

    def read(self) -> bytes:
        """One frame; b"" when the other end has hung up."""
        head = self._exactly(LENGTH.size)
        return head and head + self._exactly(LENGTH.unpack(head)[0] - LENGTH.size)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            try:
                part = self.socket.recv(size - len(data))
            except ConnectionError:
                return b""
            if not part:
                return b""
            data += part
        return data

    def greet(self) -> None:
        """The two hellos."""
        self.say(self.call.encode(self.secret))
        answer = decode_hello(self.read(), secret=self.secret, cluster=self.cluster, receiver=self.me.node, echo=self.call.nonce)
        self.there, self.back = make_links(self.call, answer, self.secret, Seal.WHOLE)
        self.controls, self.opener = ControlSealer(self.there, self.secret, self.process), ControlOpener(self.back, self.secret)
        self.frames = FrameSealer(self.there, self.secret, self.secret.encoder(Seal.WHOLE))

    def pin(self) -> ControlFrame:
        """Says PINNED, and returns what is answered."""
        self.say(self.controls.seal(ControlKind.PINNED, self.start))
        return self.opener.open(self.read())

    def introduce(self) -> ControlFrame:
        """The whole handshake."""
        self.greet()
        return self.pin()

    def link(self, **changes: Any) -> Link:
        """The direction of its messages, with changes."""
        return replace(self.there, **changes)

    def sealed(self, index: int) -> bytes:
        """A frame with one entry."""
        (frame,) = self.frames.seal(appended(self.me.node, self.receiver, index).messages)
        return frame

    def hung_up(self) -> bool:
        """Reads until the other end has hung up."""
        while self.read():
            pass
        return True
