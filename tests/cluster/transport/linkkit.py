"""Two ends of one connection in memory, for tests of links, of what admits them, and of peers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cmdlog.cluster.transport.framed_connection import FramedConnection
from cmdlog.cluster.transport.handshake import ClusterName, HelloCredentials, PeerCredentials, Session
from cmdlog.cluster.transport.outbox import Outbox
from cmdlog.cluster.transport.peer_admission import KnownPeer
from cmdlog.cluster.transport.peer_book import PeerBook
from cmdlog.cluster.transport.peer_link import IncomingLink, OutgoingLink
from cmdlog.cluster.transport.peer_transport import PeerNotice
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.wire.control_frames import ControlOpener, ControlSealer, ProcessStart
from cmdlog.raft.wire.layout import Addressed
from cmdlog.raft.wire.secure_frames import Hello, Peer, Seal, make_links
from tests.cluster.transport.fake_transport import FakeTransport
from tests.cluster.transport.netkit import CLUSTER, ONE, SECRET, TWO, identity_of, open_book
from tests.waiting import PATIENCE_S

START = ProcessStart(1, b"process1")
AGAIN = ProcessStart(2, b"process2")


def sessions(caller: NodeId = ONE, called: NodeId = TWO) -> tuple[Session, Session]:
    """What the caller and the called end have after their hellos."""
    name = ClusterName(CLUSTER)
    ends = [Peer(node, identity_of(node).incarnation) for node in (caller, called)]
    call = Hello(CLUSTER, ends[0], called, os.urandom(16))
    answer = Hello(CLUSTER, ends[1], caller, os.urandom(16), echo=call.nonce)
    there, back = make_links(call, answer, SECRET, Seal.WHOLE)

    def session(peer: Peer, outgoing: object, incoming: object) -> Session:
        sealer = ControlSealer(outgoing, SECRET, b"process%d" % peer.node)  # type: ignore[arg-type]
        return Session(peer, outgoing, incoming, sealer, ControlOpener(incoming, SECRET), name)  # type: ignore[arg-type]

    return session(ends[1], there, back), session(ends[0], back, there)


@dataclass
class Wire:
    """Both ends of a connection from node 1 to node 2; `carry` moves what was written until nothing is under way."""

    outbox: Outbox = field(default_factory=lambda: Outbox(bytes_max=1 << 20, messages_max=1000))
    heard: list[Addressed] = field(default_factory=list)
    there_start: ProcessStart = START

    def __post_init__(self) -> None:
        self.caller, self.called = FramedConnection(silence_s=1.0), FramedConnection(silence_s=1.0)
        self.caller_end, self.called_end = FakeTransport(self.caller), FakeTransport(self.called)
        ours, theirs = sessions()
        encoder = SECRET.encoder(Seal.WHOLE)
        self.outgoing = OutgoingLink(self.caller, ours, START, outbox=self.outbox, secret=SECRET, encoder=encoder)
        self.incoming = IncomingLink(self.called, theirs, self.there_start, secret=SECRET, deliver=self.heard.extend)
        self.ended: list[str] = []

    def open(self) -> None:
        """As after the handshake."""
        self.outbox.open()
        self.outgoing.open(lambda: self.ended.append("outgoing"))
        self.incoming.open(lambda: self.ended.append("incoming"))

    def carry(self) -> None:
        """Moves bytes both ways."""
        while self.caller_end.written or self.called_end.written:
            for source, target in ((self.caller_end, self.called), (self.called_end, self.caller)):
                data, source.written = source.written, b""
                if data and not target.is_ending:
                    target.data_received(data)


@dataclass
class PeerBench:
    """One known peer, with what it notices."""

    notices: list[PeerNotice] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.outbox = Outbox(bytes_max=1 << 20, messages_max=1000)
        self.peer = KnownPeer(TWO, ("127.0.0.1", 7), self.outbox, self.notices.append, lambda _, error: self.errors.append(error))


def credentials(folder: Path, node: NodeId = ONE) -> PeerCredentials:
    """Of a node with a new directory."""
    book: PeerBook = open_book(folder / f"node-{node}", identity_of(node))
    return PeerCredentials(HelloCredentials(ClusterName(CLUSTER), book.me, SECRET), book, Seal.WHOLE)


async def turns(count: int = 10) -> None:
    """Lets every task of the loop take a few steps."""
    for _ in range(count):
        await asyncio.sleep(0)


async def turn_until(condition: Callable[[], object]) -> None:
    """Lets the loop turn until the condition is true."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - the code under test has no event for a test
            await asyncio.sleep(0)
