"""Frames of a link for calls: sealed, counted, and of one direction of one connection.

One rule: a frame is taken as a whole or not at all, and only as the next one of its session. WIRE.md has the layout.

The keys are derived from the cluster's secret: no frame or hello of consensus is valid here, nor the other way round.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from hmac import compare_digest
from typing import Final

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

PREFACE: Final = b"\xca"  # first byte of the connection, before TLS and hello: no hello of consensus begins with it
CALL_MAGIC: Final = b"CF"
TURN_FIELDS: Final = (("sequence", "Q"), ("kind", "H"), ("reserved", "2x"), ("count", "I"))
HEAD: Final = layout((*LENGTH_FIELDS, *LINK_FIELDS))
TURN: Final = layout(TURN_FIELDS)
FRONT_BYTES: Final = HEAD.size + TURN.size
BODY_BYTES_MAX: Final = FRAME_BYTES_MAX - FRONT_BYTES - MAC_BYTES
assert FRONT_BYTES + MAC_BYTES >= FRAME_BYTES_MIN, "the cutter of frames takes no shorter ones"


class CallFrameKind(enum.IntEnum):
    """Numbers for ever."""

    OPEN = 1  # the caller's first frame: it knows the session
    READY = 2  # the called end's answer: its window
    CALLS = 3
    ANSWERS = 4
    PROBE = 5  # asks for a sign of life
    RECEIPT = 6  # is one


@dataclass(frozen=True, slots=True)
class CallFrame:
    """What a frame says; `kind` may be one that this program does not know."""

    kind: int
    count: int  # rows of the body
    body: bytes


def channel_secret(secret: Secret) -> Secret:
    """What links for calls are sealed with."""
    return Secret(secret.mac(b"call channel").digest())


class CallFrameSealer:
    """Makes the frames of one direction."""

    __slots__ = ("_head", "_mac", "_sequence")

    def __init__(self, link: Link, secret: Secret) -> None:
        self._head, self._mac = _head_of(link), secret.mac(b"call frame")
        self._sequence = 0

    def seal(self, kind: CallFrameKind, body: bytes = b"", count: int = 0) -> bytes:
        """One frame; the body has at most `BODY_BYTES_MAX`."""
        self._sequence += 1
        size = FRONT_BYTES + len(body) + MAC_BYTES
        front = LENGTH.pack(size) + self._head + TURN.pack(self._sequence, kind, count)
        mac = self._mac.copy()
        mac.update(front)
        mac.update(body)
        return b"".join((front, body, mac.digest()))


class CallFrameOpener:
    """Takes the frames of one direction."""

    __slots__ = ("_head", "_mac", "_sequence")

    def __init__(self, link: Link, secret: Secret) -> None:
        self._head, self._mac = _head_of(link), secret.mac(b"call frame")
        self._sequence = 0

    def open(self, frame: bytes) -> CallFrame:
        """What the frame says. Raises: BadFrame."""
        size = len(frame)
        if size < FRONT_BYTES + MAC_BYTES or LENGTH.unpack_from(frame)[0] != size:
            raise BadFrame(FrameFault.LENGTH, f"frame of calls of {size} bytes")
        if frame[4:6] != CALL_MAGIC:
            raise BadFrame(FrameFault.MAGIC, frame[4:6].hex())
        if frame[6] != VERSION:
            raise BadFrame(FrameFault.VERSION, f"{frame[6]}, but this program speaks {VERSION}")
        end = size - MAC_BYTES
        mac = self._mac.copy()
        mac.update(memoryview(frame)[:end])
        if not compare_digest(mac.digest(), frame[end:]):
            raise BadFrame(FrameFault.MAC, "frame of calls damaged, or not made with this cluster's secret")
        if frame[LENGTH.size : HEAD.size] != self._head:
            raise BadFrame(FrameFault.SESSION, "frame of calls of another connection")
        sequence, kind, count = TURN.unpack_from(frame, HEAD.size)
        if sequence != self._sequence + 1:
            raise BadFrame(FrameFault.SEQUENCE, f"frame of calls {sequence} after {self._sequence}")
        self._sequence = sequence
        return CallFrame(kind, count, frame[FRONT_BYTES:end])


def _head_of(link: Link) -> bytes:
    """As of all frames of the link, but for the magic."""
    head = link.head()
    assert head.startswith(MAGIC)
    return CALL_MAGIC + head[len(MAGIC) :]
