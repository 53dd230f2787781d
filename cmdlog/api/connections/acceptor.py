"""Taking connections from the listening socket, also when there are no file descriptors left for them.

One rule: whatever `accept` says, the socket keeps listening and the loop does not spin. A process without free descriptors cannot
take a connection, and as long as one waits the socket stays readable: asked again at once, the loop would do nothing else. Thus a
*spare* descriptor is kept. It is given up to take the connection, and had again when that is closed: the client learns at once
that there is no room. Where another thread was quicker to take it, new connections wait for `PAUSE_S` in the kernel's queue.

uvloop's own server has the spare, but spins without it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from typing import Final

import structlog

ACCEPTS_AT_ONCE: Final = 32  # then those who are connected have their turn
PAUSE_S: Final = 0.25
QUIET_S: Final = 60.0  # between two lines of the log about it
GONE: Final = frozenset((errno.ECONNABORTED, errno.EPROTO, errno.EPERM))  # this one connection; the next may be had at once

logger = structlog.get_logger("cmdlog.api")


class Acceptor:
    """What `asyncio.Server` is to uvicorn. `make` is called once per connection. Only the event loop's thread."""

    def __init__(self, listener: socket.socket, make: Callable[[], asyncio.Protocol], *, at_once: int = ACCEPTS_AT_ONCE) -> None:
        """`at_once`: connections in one turn of the loop."""
        self._listener, self._make, self._at_once = listener, make, at_once
        self._loop = asyncio.get_running_loop()
        self._taking: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._told_s = -QUIET_S  # when it was last logged that descriptors ran out
        self._closed = False
        self._spare = _spare()
        listener.setblocking(False)
        self._loop.add_reader(listener, self._accept, at_once)

    def close(self) -> None:
        """Takes those that wait, and no further connection. Idempotent."""
        if self._closed:
            return
        self._accept(
            ACCEPTS_AT_ONCE
        )  # a client that is connected may have sent a request: with the socket it would be lost without an answer
        self._closed = True
        self._loop.remove_reader(self._listener)
        if self._timer is not None:
            self._timer.cancel()
        self._give_up_spare()
        self._listener.close()

    async def wait_closed(self) -> None:
        """Returns when nothing of it is left."""
        while self._taking:
            await asyncio.wait(self._taking)

    def _accept(self, at_once: int) -> None:
        for _ in range(at_once):
            try:
                client, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in GONE:
                    continue
                if not self._shed(error):
                    self._pause()
                    return
            else:
                task = self._loop.create_task(self._serve_client(client))
                self._taking.add(task)
                task.add_done_callback(self._taking.discard)

    async def _serve_client(self, client: socket.socket) -> None:
        client.setblocking(False)
        try:
            await self._loop.connect_accepted_socket(self._make, client)
        except OSError:  # it is gone already
            client.close()

    def _shed(self, error: OSError) -> bool:
        """Ends one connection that there is no descriptor for; False when that cannot be done."""
        now = self._loop.time()
        if now - self._told_s >= QUIET_S:
            self._told_s = now
            logger.warning("accept_failed", problem=error.strerror, hint="ulimit -n: new connections are rejected until then")
        if self._spare is None:
            return False
        self._give_up_spare()
        try:
            self._listener.accept()[0].close()
        except OSError:
            return False
        finally:
            self._spare = _spare()
        return True

    def _give_up_spare(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            os.close(spare)

    def _pause(self) -> None:
        self._loop.remove_reader(self._listener)
        self._timer = self._loop.call_later(PAUSE_S, self._resume)

    def _resume(self) -> None:
        self._timer = None
        self._spare = _spare() if self._spare is None else self._spare
        self._loop.add_reader(self._listener, self._accept, self._at_once)


def _spare() -> int | None:
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
