"""Frames between the node and an HTTP process that it has started: a length, a kind, a number, a body.

One rule: both ends are one program on one machine, joined by socket pairs that nobody else has; so nothing is sealed, and what an
end cannot read is a defect.

Each process has two links. One carries calls and their answers, as frames of `cmdlog.cluster.forwarding`; the other everything
else, so that no large answer is before a call:

    process -> node   REQUEST, RECEIVED, SENT, GONE    a request that the node answers: see `relay_frames`
                      COUNTS                           what was counted; the number of an ASK, or 0
                      SERVES                           the code of this version is in use, or why it cannot be
    node -> process   WANT, PART, END                  of such a request
                      CODE                             a version of the code, from now on
                      ASK                              for COUNTS
                      OTHERS                           single calls and streams of the other processes
                      STOP                             answer what is under way, and end; 1: another node takes the calls
"""

from __future__ import annotations

import enum
from typing import Final

from cmdlog.cluster.channels.sealed_frames import ChannelFrame
from cmdlog.raft.wire.layout import BadFrame, FrameFault, layout

HEAD_FIELDS: Final = (("frame_bytes", "I"), ("kind", "H"), ("reserved", "2x"), ("count", "I"))
HEAD: Final = layout(HEAD_FIELDS)


class LinkFrameKind(enum.IntEnum):
    """See the module."""

    REQUEST = 1
    RECEIVED = 2
    SENT = 3
    GONE = 4
    COUNTS = 5
    SERVES = 6
    WANT = 7
    PART = 8
    END = 9
    CODE = 10
    ASK = 11
    STOP = 12
    OTHERS = 13


def encode_link_frame(kind: int, body: bytes = b"", count: int = 0) -> bytes:
    """One frame."""
    return HEAD.pack(HEAD.size + len(body), kind, count) + body


class LinkSession:
    """Both directions of a link: `cmdlog.cluster.channels.sealed_frames.FrameSession`, and its two halves."""

    @property
    def sealer(self) -> LinkSession:
        return self

    @property
    def opener(self) -> LinkSession:
        return self

    def seal(self, kind: int, body: bytes = b"", count: int = 0) -> bytes:
        return encode_link_frame(kind, body, count)

    def open(self, frame: bytes) -> ChannelFrame:
        """Raises: BadFrame."""
        size, kind, count = HEAD.unpack_from(frame)
        if size != len(frame):
            raise BadFrame(FrameFault.LENGTH, f"a frame of {len(frame)} bytes that says {size}")
        return ChannelFrame(kind, count, frame[HEAD.size :])
