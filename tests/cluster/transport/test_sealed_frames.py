"""Frames of a channel: authentic, whole, of this session, and each the next one."""

from __future__ import annotations

import pytest

from cmdlog.cluster.copying.copy_frames import COPY_CHANNEL
from cmdlog.cluster.forwarding.call_rows import CALL_CHANNEL, CallFrameKind
from cmdlog.cluster.transport.sealed_frames import BODY_BYTES_MAX, ChannelFrame, ChannelOpener, ChannelSealer
from cmdlog.raft.wire.layout import BadFrame
from cmdlog.raft.wire.secure_frames import FRAME_BYTES_MAX, Secret
from tests.cluster.forwarding.callkit import SECRET, links

THERE, BACK = links()


def refused(opener: ChannelOpener, frame: bytes) -> str:
    """Why it is."""
    with pytest.raises(BadFrame) as found:
        opener.open(frame)
    return found.value.fault.value


def test_what_is_sealed_is_opened() -> None:
    """Kind, count and body; also an empty one, and the largest."""
    sealer, opener = ChannelSealer(CALL_CHANNEL, THERE, SECRET), ChannelOpener(CALL_CHANNEL, THERE, SECRET)
    for body in (b"", b"body", bytes(BODY_BYTES_MAX)):
        frame = sealer.seal(CallFrameKind.CALLS, body, 3)
        assert len(frame) <= FRAME_BYTES_MAX
        assert opener.open(frame) == ChannelFrame(CallFrameKind.CALLS, 3, body)


def test_any_changed_byte_is_refused() -> None:
    """Wherever it is; the frame after it is then out of order for the same opener, which took nothing."""
    frame = ChannelSealer(CALL_CHANNEL, THERE, SECRET).seal(CallFrameKind.CALLS, b"some parameters", 1)
    opener = ChannelOpener(CALL_CHANNEL, THERE, SECRET)
    for at in range(len(frame)):
        damaged = bytearray(frame)
        damaged[at] ^= 0x20
        assert refused(opener, bytes(damaged)) in {"length", "magic", "version", "mac"}, at
    assert opener.open(frame).body == b"some parameters"


def test_frames_come_once_and_in_order() -> None:
    """A repeated one and a later one are refused; so nothing is placed twice, and nothing is left out."""
    sealer, opener = ChannelSealer(CALL_CHANNEL, THERE, SECRET), ChannelOpener(CALL_CHANNEL, THERE, SECRET)
    first, second, third = (sealer.seal(CallFrameKind.PROBE) for _ in range(3))
    opener.open(first)
    assert refused(opener, first) == "sequence"
    assert refused(opener, third) == "sequence"
    opener.open(second)
    assert refused(opener, first) == "sequence"


@pytest.mark.parametrize("other", [BACK, links(session=1)[0]])
def test_frames_of_another_direction_or_session_are_refused(other: object) -> None:
    """What was recorded elsewhere is of no use."""
    frame = ChannelSealer(CALL_CHANNEL, other, SECRET).seal(CallFrameKind.PROBE)  # type: ignore[arg-type]
    assert refused(ChannelOpener(CALL_CHANNEL, THERE, SECRET), frame) == "session"


def test_frames_of_another_channel_are_refused() -> None:
    """Their magic is another one, and so is the key of the MAC."""
    frame = ChannelSealer(COPY_CHANNEL, THERE, SECRET).seal(CallFrameKind.PROBE)
    assert refused(ChannelOpener(CALL_CHANNEL, THERE, SECRET), frame) == "magic"
    disguised = frame[:4] + CALL_CHANNEL.magic + frame[6:]
    assert refused(ChannelOpener(CALL_CHANNEL, THERE, SECRET), disguised) == "mac"


def test_keys_of_consensus_are_no_keys_here() -> None:
    """The channel's secret is another one than the cluster's, so no frame or hello of either is valid on the other."""
    cluster = Secret(b"the secret of a cluster")
    assert CALL_CHANNEL.secret(cluster).key != cluster.key
    frame = ChannelSealer(CALL_CHANNEL, THERE, cluster).seal(CallFrameKind.PROBE)
    assert refused(ChannelOpener(CALL_CHANNEL, THERE, CALL_CHANNEL.secret(cluster)), frame) == "mac"
