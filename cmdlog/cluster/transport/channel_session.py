"""The beginning of a channel beside consensus: two hellos, OPEN from the caller, READY from the called end.

One rule: a hello alone may be a recorded one, so the called end gives a caller nothing before OPEN, which needs the session.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cmdlog.cluster.transport.framed_connection import FramedConnection
from cmdlog.cluster.transport.handshake import HelloCredentials, answer_hello, exchange_hellos
from cmdlog.cluster.transport.sealed_frames import ChannelFrame, ChannelName, ChannelOpener, ChannelSealer
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.wire.layout import BadFrame, FrameFault
from cmdlog.raft.wire.secure_frames import Link, Peer, Seal

OPEN: Final = 1  # kind of the caller's first frame, of every channel
READY: Final = 2  # of the answer


@dataclass(frozen=True, slots=True)
class ChannelSession:
    """Both directions of a connection whose ends know each other."""

    peer: Peer
    sealer: ChannelSealer
    opener: ChannelOpener


async def call_session(
    channel: ChannelName, connection: FramedConnection, ours: HelloCredentials, node: NodeId
) -> tuple[ChannelSession, bytes]:
    """The caller's part; the session, and what READY says. The secret is the channel's: see `ChannelName.secret`.

    Raises: BadFrame, ConnectionEnded.
    """
    answer, outgoing, incoming = await exchange_hellos(connection, ours, node, Seal.WHOLE)
    session = _session(channel, ours, answer.sender, outgoing=outgoing, incoming=incoming)
    connection.write(session.sealer.seal(OPEN))
    return session, (await _expect_frame(connection, session, READY)).body


async def answer_session(
    channel: ChannelName, connection: FramedConnection, ours: HelloCredentials, ready: bytes = b""
) -> ChannelSession:
    """The called end's part; READY says `ready`. Raises: BadFrame, ConnectionEnded."""
    call, outgoing, incoming = await answer_hello(connection, ours, Seal.WHOLE)
    session = _session(channel, ours, call.sender, outgoing=outgoing, incoming=incoming)
    await _expect_frame(connection, session, OPEN)
    connection.write(session.sealer.seal(READY, ready))
    return session


def _session(channel: ChannelName, ours: HelloCredentials, peer: Peer, *, outgoing: Link, incoming: Link) -> ChannelSession:
    opener = ChannelOpener(channel, incoming, ours.secret, is_current=lambda: incoming.cluster == ours.name.current)
    return ChannelSession(peer, ChannelSealer(channel, outgoing, ours.secret), opener)


async def _expect_frame(connection: FramedConnection, session: ChannelSession, kind: int) -> ChannelFrame:
    """The next frame, which must be of this kind. Raises: BadFrame, ConnectionEnded."""
    frame = session.opener.open(await connection.receive())
    if frame.kind != kind:
        raise BadFrame(FrameFault.MALFORMED, f"frame of kind {frame.kind} instead of {kind}")
    return frame
