"""One connection as a stream of frames: cut, counted, bounded in both directions.

One rule: it knows no secret and judges nothing but lengths. Until `deliver_to`, frames wait for `receive`, a few small ones at
most; from then on each goes to the callback at once. Whatever is wrong with one ends the connection.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from cmdlog.raft.wire.layout import BadFrame, FrameFault
from cmdlog.raft.wire.secure_frames import FRAME_BYTES_MAX, FRAME_BYTES_MIN, FrameCutter

EARLY_FRAMES_MAX: Final = 4  # of a handshake
WRITE_BYTES: Final = 256 << 10  # that wait in this process for the socket; then heartbeats can still overtake
UNSENT_BYTES: Final = 128 << 10  # that wait in the kernel, for the same reason
KEEPALIVE_S: Final = 5  # of silence on the socket, before the kernel asks the other machine
KEEPALIVE_PROBES: Final = 3
LINGER_S: Final = 1.0  # for the last frame of a connection


class ConnectionEnded(OSError):
    """The connection is over; the text says why, as far as it is known."""


class FramedConnection(asyncio.Protocol):
    """Used in the loop's thread alone."""

    def __init__(self, *, silence_s: float, bytes_min: int = FRAME_BYTES_MIN) -> None:
        """`bytes_min`: of a frame."""
        self._silence_s = silence_s
        self._cutter = FrameCutter(bytes_min=bytes_min)
        self._early: deque[bytes] = deque()
        self._arrived = asyncio.Event()
        self._on_frame: Callable[[bytes], None] | None = None
        self._on_writable: Callable[[], None] | None = None
        self._on_closed: Callable[[], None] | None = None
        self._transport: asyncio.Transport | None = None
        self.closed = asyncio.Event()
        self.error: Exception | None = None  # why it ended, where it did not just end
        self.writable = True
        self._hung_up = False
        self._over = False  # nothing is taken or sent any more, whatever waits
        self.in_bytes = self.out_bytes = 0
        self.faults = self._cutter.faults  # of lengths; those of contents are counted by who opens the frames

    # -- coming and going ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are no subclasses
        self._transport.set_write_buffer_limits(high=WRITE_BYTES)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            set_options(sock, silence_s=self._silence_s)
        if self.closed.is_set():
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.error = self.error or exc
        self.writable, self._over = False, True
        self.closed.set()
        self._arrived.set()
        if self._on_closed is not None:
            self._on_closed()

    def end(self, error: Exception | None = None) -> None:
        """Closes at once, whatever waits to be sent. The first reason counts."""
        self.error = self.error or error
        self.writable, self._over = False, True
        if self._transport is not None:
            self._transport.abort()
        else:
            self.closed.set()

    def hang_up(self) -> None:
        """Closes when what was written is sent, or was not taken for `LINGER_S`."""
        self.writable, self._hung_up, self._over = False, True, True
        if self._transport is not None:
            self._transport.close()
            asyncio.get_running_loop().call_later(LINGER_S, self.end)

    def drop(self) -> None:
        """Closes at once, unless it hangs up already."""
        if not self._hung_up:
            self.end()

    @property
    def delivers(self) -> bool:
        """Whether the handshake is done."""
        return self._on_frame is not None

    @property
    def is_ending(self) -> bool:
        return self.error is not None or self.closed.is_set() or self._transport is None or self._transport.is_closing()

    # -- frames ----------------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self.in_bytes += len(data)
        try:
            for frame in self._cutter.feed(data):
                if self._on_frame is not None:
                    self._on_frame(frame)
                elif len(self._early) < EARLY_FRAMES_MAX:
                    self._early.append(frame)
                    self._arrived.set()
                else:
                    raise BadFrame(FrameFault.LENGTH, f"more than {EARLY_FRAMES_MAX} frames before the end of the handshake")
                if self._over:
                    return
        except BadFrame as error:
            self.end(error)

    async def receive(self) -> bytes:
        """The next frame of the handshake. Raises: BadFrame, ConnectionEnded."""
        while not self._early:
            if self.is_ending:
                raise self.error if isinstance(self.error, BadFrame) else ConnectionEnded(str(self.error or "the peer hung up"))
            self._arrived.clear()
            await self._arrived.wait()
        return self._early.popleft()

    def deliver_to(
        self, on_frame: Callable[[bytes], None], *, on_writable: Callable[[], None], on_closed: Callable[[], None]
    ) -> None:
        """The other end has proved who it is: frames may be large, and go to `on_frame`, which may raise BadFrame."""
        self._cutter.bytes_max = FRAME_BYTES_MAX
        self._on_frame, self._on_writable, self._on_closed = on_frame, on_writable, on_closed
        try:
            while self._early and not self.is_ending:
                on_frame(self._early.popleft())
        except BadFrame as error:
            self.end(error)

    def write(self, frame: bytes) -> None:
        """Sends as soon as the socket takes it; the caller heeds `writable`."""
        if not self._over and self._transport is not None and not self._transport.is_closing():
            self.out_bytes += len(frame)
            self._transport.write(frame)

    @property
    def unsent_bytes(self) -> int:
        """That wait in this process for the socket."""
        return 0 if self._transport is None or self.is_ending else self._transport.get_write_buffer_size()

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        if self.is_ending:
            return
        self.writable = True
        if self._on_writable is not None:
            self._on_writable()


def set_options(sock: socket.socket, *, silence_s: float) -> None:
    """Small frames leave at once, little waits in the kernel, and a machine that is gone is noticed."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    values = {
        "TCP_KEEPIDLE": KEEPALIVE_S,
        "TCP_KEEPINTVL": 1,
        "TCP_KEEPCNT": KEEPALIVE_PROBES,
        "TCP_USER_TIMEOUT": int(silence_s * 1000),
        "TCP_NOTSENT_LOWAT": UNSENT_BYTES,
    }
    for name, value in values.items():
        if (option := getattr(socket, name, None)) is not None:  # not every system has every one
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
