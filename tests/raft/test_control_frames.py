"""Control frames: what goes in comes out, and whatever is damaged, foreign or repeated does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cmdlog.raft.wire.control_frames import (
    CONTROL_BYTES,
    ControlKind,
    ControlOpener,
    ControlSealer,
    ProcessStart,
    is_control,
)
from cmdlog.raft.wire.layout import BadFrame, FrameFault
from cmdlog.raft.wire.secure_frames import FRAME_BYTES_MIN, HELLO_BYTES_MAX, FrameCutter, Link, Opener, Peer, Secret
from tests.raft.wirekit import BEAT, LINK_HEADS, LINK_WHOLE, PEER, SECRET, one_frame

PROCESS = b"process1"


def sealed(kind: ControlKind = ControlKind.PROBE, value: int = 7, *, link: Link = LINK_HEADS, secret: Secret = SECRET) -> bytes:
    """The first control frame of a direction."""
    return ControlSealer(link, secret, PROCESS).seal(kind, value)


def fault_of(frame: bytes) -> FrameFault:
    """Why it is refused; counted too."""
    opener = ControlOpener(LINK_HEADS, SECRET)
    with pytest.raises(BadFrame) as refused:
        opener.open(frame)
    assert opener.faults == {refused.value.fault: 1}
    return refused.value.fault


@pytest.mark.parametrize("kind", list(ControlKind))
def test_every_kind_comes_out_as_it_went_in(kind: ControlKind) -> None:
    """With its value and the sender's process; it is told from a frame of messages, and passes the cutter of a stranger."""
    frame = sealed(kind, (1 << 64) - 1)
    said = ControlOpener(LINK_HEADS, SECRET).open(frame)
    assert (said.kind, said.start) == (kind, ProcessStart((1 << 64) - 1, PROCESS))
    assert is_control(frame)
    assert not is_control(one_frame([BEAT]))
    assert list(FrameCutter().feed(frame)) == [frame]
    assert FRAME_BYTES_MIN <= CONTROL_BYTES <= HELLO_BYTES_MAX


def test_every_flipped_bit_is_refused() -> None:
    """All of it is under its MAC."""
    frame = sealed()
    for bit in range(8 * len(frame)):
        damaged = bytearray(frame)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadFrame):
            ControlOpener(LINK_HEADS, SECRET).open(bytes(damaged))


@pytest.mark.parametrize(
    ("frame", "fault"),
    [
        (sealed()[:-1], FrameFault.LENGTH),
        (b"", FrameFault.LENGTH),
        (sealed().replace(b"CC", b"CR", 1), FrameFault.MAGIC),
        (sealed()[:6] + b"\2" + sealed()[7:], FrameFault.VERSION),
        (sealed(secret=Secret(bytes(32))), FrameFault.MAC),
        (sealed(link=LINK_WHOLE), FrameFault.SESSION),
        (sealed(link=replace(LINK_HEADS, session=b"earlier!")), FrameFault.SESSION),
        (sealed(link=replace(LINK_HEADS, cluster=bytes(16))), FrameFault.SESSION),
        (sealed(link=replace(LINK_HEADS, receiver=Peer(PEER, b"life-of0"))), FrameFault.SESSION),
    ],
)
def test_a_frame_of_another_link_is_refused_by_name(frame: bytes, fault: FrameFault) -> None:
    """Damaged, without the secret, of another connection, cluster, incarnation or seal."""
    assert fault_of(frame) is fault


def test_a_repeated_frame_is_refused() -> None:
    """Each direction counts its control frames."""
    sealer, opener = ControlSealer(LINK_HEADS, SECRET, PROCESS), ControlOpener(LINK_HEADS, SECRET)
    first, second = sealer.seal(ControlKind.PROBE, 1), sealer.seal(ControlKind.PROBE, 2)
    opener.open(second)
    for old in (first, second):
        with pytest.raises(BadFrame, match="sequence"):
            opener.open(old)


def test_frames_and_control_frames_do_not_stand_for_each_other() -> None:
    """Each has a key of its own, beside its magic."""
    control = bytearray(sealed())
    control[4:6] = b"CR"
    with pytest.raises(BadFrame):
        Opener(LINK_HEADS, SECRET).open(bytes(control))
