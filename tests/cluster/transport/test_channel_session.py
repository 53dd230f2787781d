"""The beginning of a channel: ends that know each other share a session, and nobody else gets one."""

from __future__ import annotations

import pytest

from cmdlog.cluster.forwarding.call_rows import CALL_CHANNEL, CallFrameKind
from cmdlog.cluster.transport.channel_session import ChannelSession, answer_session, call_session
from cmdlog.cluster.transport.framed_connection import ConnectionEnded, FramedConnection
from cmdlog.cluster.transport.handshake import HelloCredentials, exchange_hellos
from cmdlog.cluster.transport.sealed_frames import ChannelSealer
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.wire.layout import BadFrame
from cmdlog.raft.wire.secure_frames import Seal, Secret
from tests.cluster.forwarding.callkit import credentials
from tests.cluster.transport.channelkit import Shaken, shake


def call(caller: HelloCredentials, *, node: int = 2, replay: list[bytes] | None = None) -> Shaken:
    """Both parts of the handshake, to node 2."""
    return shake(
        lambda connection: call_session(CALL_CHANNEL, connection, caller, NodeId(node)),
        lambda connection: answer_session(CALL_CHANNEL, connection, credentials(2), b"welcome"),
        replay=replay,
    )


def test_ends_that_know_each_other_share_a_session() -> None:
    """Each knows who the other is, and opens what the other seals; the caller learns what READY says."""
    caller, called, sent = call(credentials(1))
    assert isinstance(caller, tuple)
    session, ready = caller
    assert isinstance(called, ChannelSession)
    assert (session.peer.node, called.peer.node, ready, len(sent)) == (2, 1, b"welcome", 2)
    assert session.opener.open(called.sealer.seal(9)).kind == 9


def test_recorded_beginning_is_refused() -> None:
    """The hello of an earlier connection passes, its OPEN does not: the session is another one."""
    _, _, sent = call(credentials(1))
    _, ours, _ = call(credentials(1), replay=list(sent))
    assert isinstance(ours, BadFrame)
    assert ours.fault.value == "session"


def test_first_frame_of_another_kind_is_refused() -> None:
    """The session is right, but not the step."""

    async def begin(connection: FramedConnection) -> None:
        _, outgoing, _ = await exchange_hellos(connection, credentials(1), NodeId(2), Seal.WHOLE)
        connection.write(ChannelSealer(CALL_CHANNEL, outgoing, credentials(1).secret).seal(CallFrameKind.PROBE))

    _, ours, _ = shake(begin, lambda connection: answer_session(CALL_CHANNEL, connection, credentials(2)))
    assert isinstance(ours, BadFrame)
    assert ours.fault.value == "malformed"


@pytest.mark.parametrize(
    ("caller", "fault"),
    [
        (credentials(1, secret=CALL_CHANNEL.secret(Secret(b"another secret of 32 bytes......"))), "mac"),
        (credentials(1, secret=Secret(b"0123456789abcdef0123456789abcdef")), "mac"),
        (credentials(1, cluster=bytes(16)), "cluster"),
        (credentials(2), "receiver"),
    ],
)
def test_stranger_gets_no_session(caller: HelloCredentials, fault: str) -> None:
    """Another secret, the one of consensus, another cluster, our own number."""
    theirs, ours, _ = call(caller)
    assert isinstance(ours, BadFrame)
    assert ours.fault.value == fault
    assert isinstance(theirs, ConnectionEnded)


def test_node_at_another_one_s_address_is_refused() -> None:
    """Calls for node 3 never reach node 2."""
    theirs, ours, _ = call(credentials(1), node=3)
    assert isinstance(ours, BadFrame)
    assert isinstance(theirs, ConnectionEnded)
