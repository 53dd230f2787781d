"""Frames of calls: authentic, whole, of this session, and each the next one."""

from __future__ import annotations

import pytest

from cmdlog.cluster.forwarding.call_frames import (
    BODY_BYTES_MAX,
    PREFACE,
    CallFrame,
    CallFrameKind,
    CallFrameOpener,
    CallFrameSealer,
    channel_secret,
)
from cmdlog.raft.wire.layout import BadFrame
from cmdlog.raft.wire.secure_frames import FRAME_BYTES_MAX, HELLO, LENGTH, MAC_BYTES, Secret
from tests.cluster.forwarding.callkit import SECRET, links

THERE, BACK = links()


def refused(opener: CallFrameOpener, frame: bytes) -> str:
    """Why it is."""
    with pytest.raises(BadFrame) as found:
        opener.open(frame)
    return found.value.fault.value


def test_what_is_sealed_is_opened() -> None:
    """Kind, count and body; also an empty one, and the largest."""
    sealer, opener = CallFrameSealer(THERE, SECRET), CallFrameOpener(THERE, SECRET)
    for body in (b"", b"body", bytes(BODY_BYTES_MAX)):
        frame = sealer.seal(CallFrameKind.CALLS, body, 3)
        assert len(frame) <= FRAME_BYTES_MAX
        assert opener.open(frame) == CallFrame(CallFrameKind.CALLS, 3, body)


def test_any_changed_byte_is_refused() -> None:
    """Wherever it is; the frame after it is then out of order for the same opener, which took nothing."""
    frame = CallFrameSealer(THERE, SECRET).seal(CallFrameKind.CALLS, b"some parameters", 1)
    opener = CallFrameOpener(THERE, SECRET)
    for at in range(len(frame)):
        damaged = bytearray(frame)
        damaged[at] ^= 0x20
        assert refused(opener, bytes(damaged)) in {"length", "magic", "version", "mac"}, at
    assert opener.open(frame).body == b"some parameters"


def test_frames_come_once_and_in_order() -> None:
    """A repeated one and a later one are refused; so nothing is placed twice, and nothing is left out."""
    sealer, opener = CallFrameSealer(THERE, SECRET), CallFrameOpener(THERE, SECRET)
    first, second, third = (sealer.seal(CallFrameKind.PROBE) for _ in range(3))
    opener.open(first)
    assert refused(opener, first) == "sequence"
    assert refused(opener, third) == "sequence"
    opener.open(second)
    assert refused(opener, first) == "sequence"


@pytest.mark.parametrize("other", [BACK, links(session=1)[0]])
def test_frames_of_another_direction_or_session_are_refused(other: object) -> None:
    """What was recorded elsewhere is of no use."""
    frame = CallFrameSealer(other, SECRET).seal(CallFrameKind.PROBE)  # type: ignore[arg-type]
    assert refused(CallFrameOpener(THERE, SECRET), frame) == "session"


def test_keys_of_consensus_are_no_keys_here() -> None:
    """The channel's secret is another one than the cluster's, so no frame or hello of either is valid on the other."""
    cluster = Secret(b"the secret of a cluster")
    assert channel_secret(cluster).key != cluster.key
    frame = CallFrameSealer(THERE, cluster).seal(CallFrameKind.PROBE)
    assert refused(CallFrameOpener(THERE, channel_secret(cluster)), frame) == "mac"


def test_no_hello_of_this_version_begins_with_the_preface() -> None:
    """The first byte of a connection says whose it is: a hello's is the low byte of its length, that of TLS is 22."""
    hello = LENGTH.pack(LENGTH.size + HELLO.size + MAC_BYTES)
    assert PREFACE not in {hello[:1], bytes([22])}
