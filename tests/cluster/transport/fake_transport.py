"""A transport of asyncio in memory, for one end of a connection."""

from __future__ import annotations

import asyncio
from typing import Any

from cmdlog.cluster.transport.framed_connection import FramedConnection
from cmdlog.raft.wire.secure_frames import LENGTH


class FakeTransport(asyncio.Transport):
    """Remembers what was written; `lose` is what a loop does when the socket is closed."""

    def __init__(self, connection: FramedConnection) -> None:
        super().__init__()
        self._connection, self._closing = connection, False
        self.written = b""
        self.aborted = False
        self.unsent = 0  # bytes that the socket has not taken
        connection.connection_made(self)

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def frames(self) -> list[bytes]:
        """What was written since the last time, cut."""
        found, data = [], self.written
        while data:
            (size,) = LENGTH.unpack_from(data)
            found.append(data[:size])
            data = data[size:]
        self.written = b""
        return found

    def close(self) -> None:
        self._closing = True

    def abort(self) -> None:
        self._closing = self.aborted = True

    def is_closing(self) -> bool:
        return self._closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.limits = high, low

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def lose(self) -> None:
        """The socket is gone."""
        self._closing = True
        self._connection.connection_lost(None)
