"""The beginning of a link for calls: both ends know the secret, the cluster and each other's number, and the session is new."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from cmdlog.cluster.forwarding.call_frames import channel_secret
from cmdlog.cluster.forwarding.call_handshake import CallCredentials, CallSession, answer_session, open_session
from cmdlog.cluster.forwarding.call_rows import CallWindow
from cmdlog.cluster.transport.framed_connection import ConnectionEnded, FramedConnection
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.wire.layout import BadFrame
from cmdlog.raft.wire.secure_frames import Secret
from tests.cluster.forwarding.callkit import ROOM, credentials
from tests.cluster.transport.fake_transport import FakeTransport

Shaken = tuple[object, object, list[bytes]]


def shake(caller: CallCredentials, called: CallCredentials, *, node: int = 2, replay: list[bytes] | None = None) -> Shaken:
    """What both ends got, or their errors, and what the caller sent. `replay` is said in the caller's place."""

    async def run() -> Shaken:
        ends = FramedConnection(silence_s=1.0), FramedConnection(silence_s=1.0)
        wires = FakeTransport(ends[0]), FakeTransport(ends[1])
        tasks = [
            asyncio.create_task(open_session(ends[0], caller, NodeId(node))),
            asyncio.create_task(answer_session(ends[1], called, ROOM)),
        ]
        sent: list[bytes] = []
        for _ in range(20):
            await asyncio.sleep(0)
            sent += (frames := wires[0].frames())
            if replay is not None:
                frames, replay[:1] = replay[:1], []
            for frame in frames:
                ends[1].data_received(frame)
            for frame in wires[1].frames():
                ends[0].data_received(frame)
            for task, other in zip(tasks, (ends[1], ends[0]), strict=True):
                if replay is None and task.done() and task.exception() is not None:
                    with contextlib.suppress(Exception):
                        other.connection_lost(None)
        results = await asyncio.gather(*[asyncio.wait_for(task, 0.1) for task in tasks], return_exceptions=True)
        return results[0], results[1], sent

    return asyncio.run(run())


def test_ends_that_know_each_other_share_a_session() -> None:
    """The caller learns the window."""
    caller, called, sent = shake(credentials(1), credentials(2))
    assert isinstance(caller, tuple)
    session, window = caller
    assert window == ROOM == CallWindow(1000, 1 << 20)
    assert isinstance(called, CallSession)
    assert (session.peer.node, called.peer.node) == (2, 1)
    assert len(sent) == 2


@pytest.mark.parametrize(
    ("caller", "fault"),
    [
        (credentials(1, secret=channel_secret(Secret(b"another secret of 32 bytes......"))), "mac"),
        (credentials(1, secret=Secret(b"0123456789abcdef0123456789abcdef")), "mac"),
        (credentials(1, cluster=bytes(16)), "cluster"),
        (credentials(2), "receiver"),
    ],
)
def test_stranger_gets_no_session(caller: CallCredentials, fault: str) -> None:
    """Another secret, the one of consensus, another cluster, our own number."""
    theirs, ours, _ = shake(caller, credentials(2))
    assert isinstance(ours, BadFrame)
    assert ours.fault.value == fault
    assert isinstance(theirs, ConnectionEnded)


def test_node_at_another_one_s_address_is_refused() -> None:
    """Calls for node 3 never reach node 2."""
    theirs, ours, _ = shake(credentials(1), credentials(2), node=3)
    assert isinstance(ours, BadFrame)
    assert isinstance(theirs, ConnectionEnded)


def test_recorded_beginning_is_refused() -> None:
    """The hello of an earlier connection passes, its OPEN does not: the session is another one."""
    _, _, sent = shake(credentials(1), credentials(2))
    _, ours, _ = shake(credentials(1), credentials(2), replay=list(sent))
    assert isinstance(ours, BadFrame)
    assert ours.fault.value == "session"
