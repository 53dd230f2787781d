"""Frames between the node and an HTTP process."""

from __future__ import annotations

import pytest

from cmdlog.api.processes.link_frames import HEAD, LinkFrameKind, LinkSession, encode_link_frame
from cmdlog.cluster.channels.sealed_frames import ChannelFrame
from cmdlog.cluster.forwarding.call_frames import CallFrameKind
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


def test_kinds_have_one_meaning() -> None:
    """Numbers of one link are unique."""
    assert len({int(kind) for kind in LinkFrameKind}) == len(LinkFrameKind)
