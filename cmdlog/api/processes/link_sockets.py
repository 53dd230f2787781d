"""The socket pairs between the node and an HTTP process, in an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Final

from cmdlog.api.processes.link_frames import HEAD
from cmdlog.cluster.transport.framed_connection import FramedConnection

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
