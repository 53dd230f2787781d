"""The beginning of a link for calls: two hellos, then OPEN from the caller and READY with the called end's window.

One rule: the called end gives a caller nothing before OPEN, which needs the session.

An end is a number and a random name of its process, not a life of a disk: what comes by the link decides nothing in consensus.
"""

from __future__ import annotations

from cmdlog.cluster.channels.channel_session import (
    ChannelCredentials,
    ChannelSession,
    call_session,
    expect_frame,
    greet_session,
)
from cmdlog.cluster.forwarding.call_frames import CALL_CHANNEL, CallFrameKind
from cmdlog.cluster.forwarding.call_rows import CallWindow, decode_window
from cmdlog.cluster.transport.framed_connection import FramedConnection
from cmdlog.raft.configuration import NodeId


async def open_session(connection: FramedConnection, ours: ChannelCredentials, node: NodeId) -> tuple[ChannelSession, CallWindow]:
    """The caller's part. Raises: BadFrame, ConnectionEnded."""
    session = await call_session(CALL_CHANNEL, connection, ours, node)
    connection.write(session.sealer.seal(CallFrameKind.OPEN))
    ready = await expect_frame(connection, session, CallFrameKind.READY)
    return session, decode_window(ready.body)


async def answer_session(connection: FramedConnection, ours: ChannelCredentials, window: CallWindow) -> ChannelSession:
    """The called end's part. Raises: BadFrame, ConnectionEnded."""
    session = await greet_session(CALL_CHANNEL, connection, ours)
    await expect_frame(connection, session, CallFrameKind.OPEN)
    connection.write(session.sealer.seal(CallFrameKind.READY, window.encode()))
    return session
