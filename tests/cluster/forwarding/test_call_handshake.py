"""The beginning of a link for calls: the caller learns the window, and nothing happens before its OPEN."""

from __future__ import annotations

from cmdlog.cluster.channels.channel_session import ChannelSession
from cmdlog.cluster.forwarding.call_handshake import answer_session, open_session
from cmdlog.cluster.forwarding.call_rows import CallWindow
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.wire.layout import BadFrame
from tests.cluster.channels.channelkit import Shaken, shake
from tests.cluster.forwarding.callkit import ROOM, credentials


def call(*, replay: list[bytes] | None = None) -> Shaken:
    """From node 1 to node 2."""
    return shake(
        lambda connection: open_session(connection, credentials(1), NodeId(2)),
        lambda connection: answer_session(connection, credentials(2), ROOM),
        replay=replay,
    )


def test_ends_that_know_each_other_share_a_session() -> None:
    """The caller learns the window."""
    caller, called, sent = call()
    assert isinstance(caller, tuple)
    session, window = caller
    assert window == ROOM == CallWindow(1000, 1 << 20)
    assert isinstance(called, ChannelSession)
    assert (session.peer.node, called.peer.node) == (2, 1)
    assert len(sent) == 2


def test_recorded_beginning_is_refused() -> None:
    """The hello of an earlier connection passes, its OPEN does not: the session is another one."""
    _, _, sent = call()
    _, ours, _ = call(replay=list(sent))
    assert isinstance(ours, BadFrame)
    assert ours.fault.value == "session"
