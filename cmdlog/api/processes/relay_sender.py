"""Requests that the node answers, in the process that has their clients: an ASGI application that asks the node.

One rule: it knows no route. What the node's application wants to receive is received here, what it sends is sent here, and the
request ends when it does, or when the link or the client is gone.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

from starlette.types import Receive, Scope, Send

from cmdlog.api.processes.link_frames import LinkFrameKind, encode_link_frame
from cmdlog.api.processes.relay_frames import (
    DONE,
    decode_part,
    encode_failure,
    encode_received,
    encode_scope,
)
from cmdlog.cluster.channels.sealed_frames import ChannelFrame


class _AskedRequest:
    """One request. `ended` is set once."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self.receive, self.send = receive, send
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


class RelaySender:
    """The application. Only the event loop's thread."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        """`write` sends a frame to the node."""
        self._write = write
        self._numbers = itertools.count(1)
        self._relayed: dict[int, _AskedRequest] = {}
        self._over = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._over:
            return  # without an answer: the connection ends
        number = next(self._numbers) & 0xFFFFFFFF
        relayed = self._relayed[number] = _AskedRequest(receive, send)
        self._write(encode_link_frame(LinkFrameKind.REQUEST, encode_scope(scope), number))
        try:
            await relayed.ended
        finally:
            del self._relayed[number]
            for task in list(relayed.tasks):
                task.cancel()
            if not relayed.ended.done() or relayed.ended.cancelled():
                self._write(encode_link_frame(LinkFrameKind.GONE, count=number))

    def take_frame(self, frame: ChannelFrame) -> None:
        """WANT, PART or END."""
        relayed = self._relayed.get(frame.count)
        if relayed is None:  # it ended while this was on its way
            return
        if frame.kind == LinkFrameKind.WANT:
            relayed.spawn(self._receive(frame.count, relayed))
        elif frame.kind == LinkFrameKind.PART:
            relayed.spawn(self._send(frame.count, relayed, frame.body))
        else:
            relayed.end()

    def end(self) -> None:
        """The link is over: what is not answered as a whole never will be."""
        self._over = True
        for relayed in list(self._relayed.values()):
            relayed.end()

    async def _receive(self, number: int, relayed: _AskedRequest) -> None:
        try:
            told = encode_received(await relayed.receive())
        except Exception as error:  # noqa: BLE001 - it is raised again, in the node's application
            told = encode_failure(error)
        self._write(encode_link_frame(LinkFrameKind.RECEIVED, told, number))

    async def _send(self, number: int, relayed: _AskedRequest, part: bytes) -> None:
        try:
            await relayed.send(decode_part(part))
            told = DONE
        except Exception as error:  # noqa: BLE001 - as above
            told = encode_failure(error)
        self._write(encode_link_frame(LinkFrameKind.SENT, told, number))
