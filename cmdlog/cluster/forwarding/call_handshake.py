"""The beginning of a link for calls: two hellos, then OPEN from the caller and READY with the called end's window.

One rule: a hello alone may be a recorded one, so the called end gives a caller nothing before OPEN, which needs the session.

An end is a number and a random name of its process, not a life of a disk: what comes by the link decides nothing in consensus.
"""

from __future__ import annotations

from dataclasses import dataclass

from cmdlog.cluster.forwarding.call_frames import CallFrame, CallFrameKind, CallFrameOpener, CallFrameSealer
from cmdlog.cluster.forwarding.call_rows import CallWindow, decode_window
from cmdlog.cluster.transport.framed_connection import FramedConnection
from cmdlog.cluster.transport.handshake import answer_hello, exchange_hellos
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.wire.layout import BadFrame, FrameFault
from cmdlog.raft.wire.secure_frames import Link, Peer, Seal, Secret


@dataclass(frozen=True, slots=True)
class CallCredentials:
    """What an end proves itself with. `secret` is the channel's: see `channel_secret`."""

    cluster: bytes  # [16] UUID
    me: Peer
    secret: Secret


@dataclass(frozen=True, slots=True)
class CallSession:
    """Both directions of a link whose ends know each other."""

    peer: Peer
    sealer: CallFrameSealer
    opener: CallFrameOpener


async def open_session(connection: FramedConnection, ours: CallCredentials, node: NodeId) -> tuple[CallSession, CallWindow]:
    """The caller's part. Raises: BadFrame, ConnectionEnded."""
    peer, outgoing, incoming = await exchange_hellos(connection, ours, node, Seal.WHOLE)
    session = _session(ours, peer, outgoing=outgoing, incoming=incoming)
    connection.write(session.sealer.seal(CallFrameKind.OPEN))
    ready = _expect(session.opener.open(await connection.receive()), CallFrameKind.READY)
    return session, decode_window(ready.body)


async def answer_session(connection: FramedConnection, ours: CallCredentials, window: CallWindow) -> CallSession:
    """The called end's part. Raises: BadFrame, ConnectionEnded."""
    peer, outgoing, incoming = await answer_hello(connection, ours, Seal.WHOLE)
    session = _session(ours, peer, outgoing=outgoing, incoming=incoming)
    _expect(session.opener.open(await connection.receive()), CallFrameKind.OPEN)
    connection.write(session.sealer.seal(CallFrameKind.READY, window.encode()))
    return session


def _expect(frame: CallFrame, kind: CallFrameKind) -> CallFrame:
    if frame.kind != kind:
        raise BadFrame(FrameFault.MALFORMED, f"frame of kind {frame.kind} instead of {kind.name}")
    return frame


def _session(ours: CallCredentials, peer: Peer, *, outgoing: Link, incoming: Link) -> CallSession:
    return CallSession(peer, CallFrameSealer(outgoing, ours.secret), CallFrameOpener(incoming, ours.secret))
