"""Takes the connections that come in, and holds those that have not proved who they are within limits.

One rule: a stranger costs a socket for `hello_s`, and nothing else. Of too many strangers the one that has waited longest makes
room: a peer is done within moments, so it is never the one that waits, while one that only occupies a place is.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Final

from cmdlog.cluster.transport.quiet_log import QuietLog

PAUSE_S: Final = 0.25  # when no descriptor is left; the callers wait in the kernel's queue
BACKLOG: Final = 128

Welcome = Callable[[socket.socket], Awaitable[None]]
"""Leads a connection to the end of its handshake, or closes it; must not raise."""


class PeerAcceptor:
    """Of one listening socket; a task of the loop runs it."""

    def __init__(self, listener: socket.socket, welcome: Welcome, quiet: QuietLog, *, strangers_max: int) -> None:
        listener.setblocking(False)
        self._listener, self._welcome, self._quiet, self._strangers_max = listener, welcome, quiet, strangers_max
        self._strangers: dict[asyncio.Task[None], None] = {}  # oldest first
        self.evicted = 0

    @property
    def strangers(self) -> int:
        """Connections that have not proved who they are."""
        return len(self._strangers)

    async def run(self) -> None:
        """Until it is cancelled."""
        try:
            while True:
                await _readable(self._listener)
                try:
                    sock, _ = self._listener.accept()  # in this step: cancelled inside `sock_accept`, a task loses the socket
                except BlockingIOError:  # the caller has gone
                    continue
                except OSError as error:
                    self._quiet.log("peer_accept_failed", error.errno, why=str(error))
                    await asyncio.sleep(PAUSE_S)
                else:
                    sock.setblocking(False)
                    self._take_stranger(sock)
        finally:
            self._listener.close()

    def end_strangers(self) -> list[asyncio.Task[None]]:
        """Hangs up on those who are still strangers; the tasks that end with that. `run` has been cancelled."""
        strangers = list(self._strangers)
        for task in strangers:
            task.cancel()
        return strangers

    def _take_stranger(self, sock: socket.socket) -> None:
        while len(self._strangers) >= self._strangers_max:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.cancel()
            self.evicted += 1
            self._quiet.log("peer_strangers_evicted", limit=self._strangers_max)
        begun = False

        async def lead() -> None:
            nonlocal begun
            begun = True
            await self._welcome(sock)

        def forget(task: asyncio.Task[None]) -> None:
            self._strangers.pop(task, None)
            if not begun:  # cancelled before its first step: nobody else closes the socket
                sock.close()

        task = asyncio.get_running_loop().create_task(lead())
        self._strangers[task] = None
        task.add_done_callback(forget)


async def first_byte(sock: socket.socket) -> bytes:
    """Waits for what the caller sends first, and leaves it to be read; b"" when it hangs up."""
    await _readable(sock)
    return sock.recv(1, socket.MSG_PEEK)


async def _readable(sock: socket.socket) -> None:
    """Until there is something to be read, or somebody to be accepted."""
    loop = asyncio.get_running_loop()
    arrived = asyncio.Event()
    loop.add_reader(sock, arrived.set)
    try:
        await arrived.wait()
    finally:
        loop.remove_reader(sock)
