"""Frames between the node and an HTTP process."""

from __future__ import annotations

import asyncio
import threading

import pytest

from cmdlog.api.processes.process_link import (
    HEAD,
    LinkFrameKind,
    LinkSession,
    encode_link_frame,
    join_link,
    make_pair,
    new_connection,
    next_turn,
    nothing,
)
from cmdlog.cluster.forwarding.call_rows import CallFrameKind
from cmdlog.cluster.transport.sealed_frames import ChannelFrame
from cmdlog.raft.wire.layout import BadFrame
from cmdlog.raft.wire.secure_frames import FrameCutter


def test_a_frame_is_read_as_it_was_written() -> None:
    """Whatever its kind, and without a body; the cutter finds both in one piece of bytes."""
    session = LinkSession()
    sent = session.sealer.seal(CallFrameKind.CALLS, b"rows", 3) + encode_link_frame(LinkFrameKind.ASK, count=2**32 - 1)
    frames = [session.opener.open(frame) for frame in FrameCutter(bytes_min=HEAD.size).feed(sent)]
    assert frames == [
        ChannelFrame(CallFrameKind.CALLS, 3, b"rows"), ChannelFrame(LinkFrameKind.ASK, 2**32 - 1, b""),
    ]  # fmt: skip


def test_a_frame_of_another_length_is_refused() -> None:
    """Both ends are one program, so this is a defect, and the link ends."""
    with pytest.raises(BadFrame):
        LinkSession().open(encode_link_frame(LinkFrameKind.PART, b"body")[:-1])


async def test_frames_that_wait_are_taken_when_the_link_is_joined() -> None:
    """The node sends before a process has come up, also what no handshake would have; and each sees the other's end."""
    taken: list[int] = []
    ends, (node, process) = make_pair(), (new_connection(), new_connection())
    node.deliver_to(lambda frame: None, on_writable=nothing, on_closed=nothing)
    await join_link(node, ends[0])
    node.write(encode_link_frame(LinkFrameKind.CODE, b"x" * 100_000, 7))
    over = asyncio.Event()
    process.deliver_to(lambda frame: taken.append(LinkSession().open(frame).count), on_writable=nothing, on_closed=over.set)
    await join_link(process, ends[1])
    node.hang_up()
    await over.wait()
    await node.closed.wait()
    node.end()
    assert taken == [7]


async def test_the_next_turn_is_reached_from_any_thread() -> None:
    """Answers come by a thread of the log when it has failed; a loop that has ended takes nothing."""
    kept: list[object] = []
    soon, called = next_turn(), asyncio.Event()
    soon(called.set)
    assert not called.is_set()
    await called.wait()
    called.clear()
    thread = threading.Thread(target=soon, args=(called.set,))
    thread.start()
    await called.wait()
    thread.join()
    kept.append(soon)
    thread = threading.Thread(target=kept[0], args=(nothing,))  # type: ignore[arg-type]  # as above
    thread.start()
    thread.join()
