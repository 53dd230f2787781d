"""The beginning of a connection: two hellos, then both ends pin each other's incarnation and say so.

    caller                          called
      hello  ------------------------>
      <--------------------------------  hello, with the caller's nonce
      pins the called one's incarnation
      PINNED ------------------------>   the session proves that the caller is alive
                                         pins the caller's incarnation, and accepts its process
      <--------------------------------  PINNED, or REFUSED
      accepts the called one's process
      messages ---------------------->

One rule: the ends take turns. So nothing is unread when one hangs up, and the reason reaches the other end. A hello alone changes
nothing, since it may be a recorded one: the called end writes to its disk only for a caller that knows the session.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from cmdlog.cluster.transport.framed_connection import ConnectionEnded, FramedConnection
from cmdlog.cluster.transport.peer_book import PeerBook, PeerRefused
from cmdlog.operator_error import OperatorError
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.wire.control_frames import (
    ControlKind,
    ControlOpener,
    ControlSealer,
    ProcessStart,
    RefusalReason,
)
from cmdlog.raft.wire.layout import BadFrame, FrameFault
from cmdlog.raft.wire.secure_frames import (
    NONCE_BYTES,
    Hello,
    Link,
    Peer,
    Seal,
    Secret,
    cluster_of_epoch,
    decode_hello,
    make_links,
)


class RefusedByPeer(OperatorError):
    """The other end has proved who it is, and does not speak with this node."""

    hint = "the peer's own log names what it knows of this node"

    def __init__(self, node: NodeId, reason: int) -> None:
        known = {member.value for member in RefusalReason}
        self.reason = RefusalReason(reason).name.lower() if reason in known else f"reason_{reason}"
        super().__init__(f"node {node} refuses this node: {self.reason}", kind=self.reason)


class ClusterName:
    """What every hello and frame says as its cluster: another one from each forced recovery on (`cmdlog.raft`, duty 14). Any
    thread."""

    def __init__(self, cluster_id: bytes, epoch: int = 0) -> None:
        self._cluster_id = cluster_id
        self.current = cluster_of_epoch(cluster_id, epoch)

    def enter_epoch(self, epoch: int) -> None:
        """What is said from now on; 0 is the cluster as it was made."""
        self.current = cluster_of_epoch(self._cluster_id, epoch)


@dataclass(frozen=True, slots=True)
class HelloCredentials:
    """What an end of any connection says hello with, and proves itself with. The secret is of consensus or of a channel."""

    name: ClusterName
    me: Peer
    secret: Secret

    @property
    def cluster(self) -> bytes:
        return self.name.current


@dataclass(frozen=True, slots=True)
class PeerCredentials:
    """What this node proves itself with to consensus."""

    hello: HelloCredentials
    book: PeerBook
    seal: Seal


@dataclass(frozen=True, slots=True)
class Session:
    """Both directions of a connection whose ends know each other, and the seals of what they say about it."""

    peer: Peer
    outgoing: Link
    incoming: Link
    controls_out: ControlSealer
    controls_in: ControlOpener
    name: ClusterName
    earlier: tuple[bytes, ...] = ()  # starts of the peer's directory before the present one (`ProcessStart`)


async def exchange_hellos(
    connection: FramedConnection, ours: HelloCredentials, node: NodeId, seal: Seal, *, earlier: tuple[bytes, ...] = ()
) -> tuple[Hello, Link, Link]:
    """The caller's hello and the answer to it: who is there, and the directions out and in. Raises: BadFrame, ConnectionEnded."""
    call = Hello(ours.cluster, ours.me, node, os.urandom(NONCE_BYTES), earlier=earlier)
    connection.write(call.encode(ours.secret))
    try:
        frame = await connection.receive()
    except ConnectionEnded as error:  # strangers are answered nothing
        why = "it may have another secret, cluster or node id"
        if seal is Seal.HEADS:  # TLS, whose handshake has ended for us before the other end looks at our certificate
            why += ", or not accept our certificate, which may have expired or be of another authority"
        raise ConnectionEnded(f"{error} before it said hello: {why}") from None
    answer = decode_hello(frame, secret=ours.secret, cluster=ours.cluster, receiver=ours.me.node, echo=call.nonce)
    if answer.sender.node != node:
        raise BadFrame(FrameFault.SENDER, f"node {answer.sender.node} answers at the address of node {node}")
    outgoing, incoming = make_links(call, answer, ours.secret, seal)
    return answer, outgoing, incoming


async def answer_hello(
    connection: FramedConnection, ours: HelloCredentials, seal: Seal, *, earlier: tuple[bytes, ...] = ()
) -> tuple[Hello, Link, Link]:
    """The called end's part of `exchange_hellos`; the caller may be a recorded one."""
    call = decode_hello(await connection.receive(), secret=ours.secret, cluster=ours.cluster, receiver=ours.me.node)
    answer = Hello(ours.cluster, ours.me, call.sender.node, os.urandom(NONCE_BYTES), echo=call.nonce, earlier=earlier)
    connection.write(answer.encode(ours.secret))
    incoming, outgoing = make_links(call, answer, ours.secret, seal)
    return call, outgoing, incoming


async def call_peer(
    connection: FramedConnection, ours: PeerCredentials, node: NodeId, pin: Callable[[Peer], Awaitable[None]]
) -> Session:
    """The caller's part up to its PINNED. Raises: BadFrame, ConnectionEnded, PeerRefused; what `pin` raises."""
    answer, outgoing, incoming = await exchange_hellos(connection, ours.hello, node, ours.seal, earlier=ours.book.start.earlier)
    session = _session(ours, answer, outgoing=outgoing, incoming=incoming)
    with naming_refusals(connection, session):
        await pin(session.peer)
    connection.write(session.controls_out.seal(ControlKind.PINNED, ours.book.start.number))
    return session


async def answer_peer(connection: FramedConnection, ours: PeerCredentials) -> tuple[Session, ProcessStart]:
    """The called end's part up to the caller's PINNED, which proves that the caller is alive and has pinned us.

    Raises: BadFrame, ConnectionEnded, RefusedByPeer.
    """
    call, outgoing, incoming = await answer_hello(connection, ours.hello, ours.seal, earlier=ours.book.start.earlier)
    session = _session(ours, call, outgoing=outgoing, incoming=incoming)
    return session, await read_pinned(connection, session)


async def read_pinned(connection: FramedConnection, session: Session) -> ProcessStart:
    """Which process the other end is, once it has pinned us. Raises: RefusedByPeer, BadFrame, ConnectionEnded."""
    said = session.controls_in.open(await connection.receive())
    if said.kind == ControlKind.REFUSED:
        raise RefusedByPeer(session.peer.node, said.value)
    if said.kind != ControlKind.PINNED:
        raise BadFrame(FrameFault.MALFORMED, f"control frame of kind {said.kind} before the end of the handshake")
    return replace(said.start, earlier=session.earlier)


def refuse(connection: FramedConnection, session: Session, reason: RefusalReason) -> None:
    """Says why, and hangs up."""
    connection.write(session.controls_out.seal(ControlKind.REFUSED, reason))
    connection.hang_up()


@contextmanager
def naming_refusals(connection: FramedConnection, session: Session) -> Iterator[None]:
    """Before an error of this end goes its way, the other end learns that it is refused, and why."""
    try:
        yield
    except OperatorError as error:
        refuse(connection, session, error.reason if isinstance(error, PeerRefused) else RefusalReason.UNAVAILABLE)
        raise


def _session(ours: PeerCredentials, theirs: Hello, *, outgoing: Link, incoming: Link) -> Session:
    controls_out = ControlSealer(outgoing, ours.hello.secret, ours.book.start.process)
    controls_in = ControlOpener(incoming, ours.hello.secret)
    return Session(theirs.sender, outgoing, incoming, controls_out, controls_in, ours.hello.name, theirs.earlier)
