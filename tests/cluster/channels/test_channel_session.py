"""The beginning of a connection of a channel: both ends know the secret, the cluster and each other's number."""

from __future__ import annotations

import pytest

from cmdlog.cluster.channels.channel_session import ChannelCredentials, ChannelSession, call_session, expect_frame, greet_session
from cmdlog.cluster.forwarding.call_frames import CALL_CHANNEL, CallFrameKind
from cmdlog.cluster.transport.framed_connection import ConnectionEnded, FramedConnection
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.wire.layout import BadFrame
from cmdlog.raft.wire.secure_frames import Secret
from tests.cluster.channels.channelkit import Shaken, shake
from tests.cluster.forwarding.callkit import credentials


def call(caller: ChannelCredentials, called: ChannelCredentials, *, node: int = 2, kind: int = CallFrameKind.OPEN) -> Shaken:
    """The hellos, and a first frame of the caller, where the called end expects OPEN."""

    async def begin(connection: FramedConnection) -> ChannelSession:
        session = await call_session(CALL_CHANNEL, connection, caller, NodeId(node))
        connection.write(session.sealer.seal(kind, b"first", 5))
        return session

    async def answer(connection: FramedConnection) -> tuple[ChannelSession, int, bytes]:
        session = await greet_session(CALL_CHANNEL, connection, called)
        frame = await expect_frame(connection, session, CallFrameKind.OPEN)
        return session, frame.count, frame.body

    return shake(begin, answer)


def test_ends_that_know_each_other_share_a_session() -> None:
    """Each knows who the other is, and opens what the other seals."""
    caller, called, _ = call(credentials(1), credentials(2))
    assert isinstance(caller, ChannelSession)
    assert isinstance(called, tuple)
    session, *first = called
    assert (caller.peer.node, session.peer.node, first) == (2, 1, [5, b"first"])
    assert caller.opener.open(session.sealer.seal(9)).kind == 9


def test_first_frame_of_another_kind_is_refused() -> None:
    """The session is right, but not the step."""
    _, called, _ = call(credentials(1), credentials(2), kind=CallFrameKind.PROBE)
    assert isinstance(called, BadFrame)
    assert called.fault.value == "malformed"


@pytest.mark.parametrize(
    ("caller", "fault"),
    [
        (credentials(1, secret=CALL_CHANNEL.secret(Secret(b"another secret of 32 bytes......"))), "mac"),
        (credentials(1, secret=Secret(b"0123456789abcdef0123456789abcdef")), "mac"),
        (credentials(1, cluster=bytes(16)), "cluster"),
        (credentials(2), "receiver"),
    ],
)
def test_stranger_gets_no_session(caller: ChannelCredentials, fault: str) -> None:
    """Another secret, the one of consensus, another cluster, our own number."""
    theirs, ours, _ = call(caller, credentials(2))
    assert isinstance(ours, BadFrame)
    assert ours.fault.value == fault
    assert isinstance(theirs, ConnectionEnded)


def test_node_at_another_one_s_address_is_refused() -> None:
    """Calls for node 3 never reach node 2."""
    theirs, ours, _ = call(credentials(1), credentials(2), node=3)
    assert isinstance(ours, BadFrame)
    assert isinstance(theirs, ConnectionEnded)
