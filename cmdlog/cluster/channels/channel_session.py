"""The beginning of a connection of a channel: two hellos, and then a first frame of the caller, which the called end answers.

One rule: a hello alone may be a recorded one, so the called end gives a caller nothing before its first frame, which needs the
session.
"""

from __future__ import annotations

from dataclasses import dataclass

from cmdlog.cluster.channels.sealed_frames import ChannelFrame, ChannelName, ChannelOpener, ChannelSealer
from cmdlog.cluster.transport.framed_connection import FramedConnection
from cmdlog.cluster.transport.handshake import ClusterName, answer_hello, exchange_hellos
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.wire.layout import BadFrame, FrameFault
from cmdlog.raft.wire.secure_frames import Link, Peer, Seal, Secret


@dataclass(frozen=True, slots=True)
class ChannelCredentials:
    """What an end proves itself with. `secret` is the channel's: see `ChannelName.secret`."""

    name: ClusterName
    me: Peer
    secret: Secret

    @property
    def cluster(self) -> bytes:
        return self.name.current


@dataclass(frozen=True, slots=True)
class ChannelSession:
    """Both directions of a connection whose ends know each other."""

    peer: Peer
    sealer: ChannelSealer
    opener: ChannelOpener


async def call_session(
    channel: ChannelName, connection: FramedConnection, ours: ChannelCredentials, node: NodeId
) -> ChannelSession:
    """The caller's hello and the answer to it. Raises: BadFrame, ConnectionEnded."""
    answer, outgoing, incoming = await exchange_hellos(connection, ours, node, Seal.WHOLE)
    return _session(channel, ours, answer.sender, outgoing=outgoing, incoming=incoming)


async def greet_session(channel: ChannelName, connection: FramedConnection, ours: ChannelCredentials) -> ChannelSession:
    """The called end's part; the caller is alive only when its first frame opens. Raises: BadFrame, ConnectionEnded."""
    call, outgoing, incoming = await answer_hello(connection, ours, Seal.WHOLE)
    return _session(channel, ours, call.sender, outgoing=outgoing, incoming=incoming)


def _session(channel: ChannelName, ours: ChannelCredentials, peer: Peer, *, outgoing: Link, incoming: Link) -> ChannelSession:
    opener = ChannelOpener(channel, incoming, ours.secret, is_current=lambda: incoming.cluster == ours.name.current)
    return ChannelSession(peer, ChannelSealer(channel, outgoing, ours.secret), opener)


async def expect_frame(connection: FramedConnection, session: ChannelSession, kind: int) -> ChannelFrame:
    """The next frame of the handshake, which must be of this kind. Raises: BadFrame, ConnectionEnded."""
    frame = session.opener.open(await connection.receive())
    if frame.kind != kind:
        raise BadFrame(FrameFault.MALFORMED, f"frame of kind {frame.kind} instead of {kind}")
    return frame
