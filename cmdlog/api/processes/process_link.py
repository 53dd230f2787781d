"""The socket pairs between the node and an HTTP process, and the frames on them: a length, a kind, a number, a body.

One rule: both ends are one program on one machine, joined by socket pairs that nobody else has; so nothing is sealed, and what an
end cannot read is a defect.

Each process has two links. One carries calls and their answers, as frames of `cmdlog.cluster.forwarding`; the other everything
else, so that no large answer is before a call:

    process -> node   REQUEST, RECEIVED, SENT, GONE    a request that the node answers: see `relay`
                      COUNTS                           what was counted; the number of an ASK, or 0
                      SERVES                           the code of this version is in use, or why it cannot be
    node -> process   WANT, PART, END                  of such a request
                      CODE                             a version of the code, from now on
                      ASK                              for COUNTS
                      OTHERS                           single calls and streams of the other processes
                      STOP                             answer what is under way, and end; 1: another node takes the calls
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import socket
import threading
from collections.abc import Callable
from typing import Final

from cmdlog.cluster.transport.framed_connection import FramedConnection
from cmdlog.cluster.transport.sealed_frames import ChannelFrame
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
    """Both directions of a link: `cmdlog.cluster.transport.sealed_frames.FrameSession`, and its two halves."""

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


SOCKET_BYTES: Final = 4 << 20  # asked of the kernel, which grants what its limits allow
SILENCE_S: Final = 60.0  # is for sockets of a network


def make_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a link."""
    ends = socket.socketpair()
    for end in ends:
        end.setblocking(False)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            end.setsockopt(socket.SOL_SOCKET, option, SOCKET_BYTES)
    return ends


def new_connection() -> FramedConnection:
    """An end's frames."""
    return FramedConnection(silence_s=SILENCE_S, bytes_min=HEAD.size)


async def join_link(connection: FramedConnection, end: socket.socket) -> None:
    """The frames of this connection go by this socket from now on, which it owns."""
    await asyncio.get_running_loop().create_unix_connection(lambda: connection, sock=end)


def next_turn() -> Callable[[Callable[[], None]], None]:
    """Has a function called at the next turn of the running loop; for any thread."""
    loop, thread = asyncio.get_running_loop(), threading.get_ident()

    def soon(call: Callable[[], None]) -> None:
        if threading.get_ident() == thread:
            loop.call_soon(call)
        else:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and the links with it
                loop.call_soon_threadsafe(call)

    return soon


def nothing() -> None:
    """What is to be done where nothing is."""
