"""Frames of a channel beside consensus: sealed, counted, and of one direction of one connection.

One rule: a frame is taken as a whole or not at all, and only as the next one of its session. The WIRE.md beside each channel has
the layout.

The keys are derived from the cluster's secret and the channel's name: no frame or hello of one channel, or of consensus, is valid
on another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hmac import compare_digest
from typing import Final, Protocol

from cmdlog.raft.wire.layout import BadFrame, FrameFault, layout
from cmdlog.raft.wire.secure_frames import (
    FRAME_BYTES_MAX,
    FRAME_BYTES_MIN,
    LENGTH,
    LENGTH_FIELDS,
    LINK_FIELDS,
    MAC_BYTES,
    MAGIC,
    VERSION,
    Link,
    Secret,
)

TURN_FIELDS: Final = (("sequence", "Q"), ("kind", "H"), ("reserved", "2x"), ("count", "I"))
HEAD: Final = layout((*LENGTH_FIELDS, *LINK_FIELDS))
TURN: Final = layout(TURN_FIELDS)
FRONT_BYTES: Final = HEAD.size + TURN.size
BODY_BYTES_MAX: Final = FRAME_BYTES_MAX - FRONT_BYTES - MAC_BYTES
assert FRONT_BYTES + MAC_BYTES >= FRAME_BYTES_MIN, "the cutter of frames takes no shorter ones"


@dataclass(frozen=True, slots=True)
class ChannelName:
    """What tells a channel from all others. Its three values are numbers for ever."""

    word: str  # ASCII; part of the keys' names
    preface: bytes  # [1] first byte of the connection, before TLS and hello: no hello of consensus begins with it
    magic: bytes  # [2] of its frames

    def secret(self, secret: Secret) -> Secret:
        """What its hellos and frames are sealed with."""
        return Secret(secret.mac(f"{self.word} channel".encode()).digest())

    @property
    def frame_use(self) -> bytes:
        """The use of the MAC over a frame."""
        return f"{self.word} frame".encode()


@dataclass(frozen=True, slots=True)
class ChannelFrame:
    """What a frame says; `kind` may be one that this program does not know."""

    kind: int
    count: int
    body: bytes


class OutgoingFrames(Protocol):
    """Makes the frames of one direction."""

    def seal(self, kind: int, body: bytes = b"", count: int = 0) -> bytes: ...


class IncomingFrames(Protocol):
    """Takes the frames of one direction."""

    def open(self, frame: bytes) -> ChannelFrame: ...


class FrameSession(Protocol):
    """Both directions of a connection."""

    @property
    def sealer(self) -> OutgoingFrames: ...

    @property
    def opener(self) -> IncomingFrames: ...


class ChannelSealer:
    """Makes the frames of one direction."""

    __slots__ = ("_head", "_mac", "_sequence")

    def __init__(self, channel: ChannelName, link: Link, secret: Secret) -> None:
        self._head, self._mac = _head_of(channel, link), secret.mac(channel.frame_use)
        self._sequence = 0

    def seal(self, kind: int, body: bytes = b"", count: int = 0) -> bytes:
        """One frame; the body has at most `BODY_BYTES_MAX`."""
        self._sequence += 1
        size = FRONT_BYTES + len(body) + MAC_BYTES
        front = LENGTH.pack(size) + self._head + TURN.pack(self._sequence, kind, count)
        mac = self._mac.copy()
        mac.update(front)
        mac.update(body)
        return b"".join((front, body, mac.digest()))


class ChannelOpener:
    """Takes the frames of one direction."""

    __slots__ = ("_channel", "_head", "_is_current", "_mac", "_sequence")

    def __init__(
        self, channel: ChannelName, link: Link, secret: Secret, *, is_current: Callable[[], bool] = lambda: True
    ) -> None:
        """`is_current`: whether the cluster has the name under which both ends met."""
        self._channel, self._head, self._mac = channel, _head_of(channel, link), secret.mac(channel.frame_use)
        self._is_current = is_current
        self._sequence = 0

    def open(self, frame: bytes) -> ChannelFrame:
        """What the frame says. Raises: BadFrame."""
        size, what = len(frame), f"{self._channel.word} frame"
        if size < FRONT_BYTES + MAC_BYTES or LENGTH.unpack_from(frame)[0] != size:
            raise BadFrame(FrameFault.LENGTH, f"{what} of {size} bytes")
        if frame[4:6] != self._channel.magic:
            raise BadFrame(FrameFault.MAGIC, frame[4:6].hex())
        if frame[6] != VERSION:
            raise BadFrame(FrameFault.VERSION, f"{frame[6]}, but this program speaks {VERSION}")
        if not self._is_current():
            raise BadFrame(FrameFault.CLUSTER, f"{what} of the cluster before a forced recovery")
        end = size - MAC_BYTES
        mac = self._mac.copy()
        mac.update(memoryview(frame)[:end])
        if not compare_digest(mac.digest(), frame[end:]):
            raise BadFrame(FrameFault.MAC, f"{what} damaged, or not made with this cluster's secret")
        if frame[LENGTH.size : HEAD.size] != self._head:
            raise BadFrame(FrameFault.SESSION, f"{what} of another connection")
        sequence, kind, count = TURN.unpack_from(frame, HEAD.size)
        if sequence != self._sequence + 1:
            raise BadFrame(FrameFault.SEQUENCE, f"{what} {sequence} after {self._sequence}")
        self._sequence = sequence
        return ChannelFrame(kind, count, frame[FRONT_BYTES:end])


def _head_of(channel: ChannelName, link: Link) -> bytes:
    """As of all frames of the link, but for the magic."""
    head = link.head()
    assert head.startswith(MAGIC)
    return channel.magic + head[len(MAGIC) :]
