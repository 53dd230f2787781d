"""Requests that an HTTP process relays, in the node: the node's own application answers them.

One rule: the gate of the node admits them, as it does where there are no HTTP processes. When the process is gone, so is the
client: `receive` says so, and what is sent goes nowhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.types import ASGIApp, Message

from cmdlog.api.processes.link_frames import LinkFrameKind, encode_link_frame
from cmdlog.api.processes.relay_frames import GONE, decode_received, decode_scope, decode_sent, encode_parts
from cmdlog.cluster.channels.sealed_frames import ChannelFrame


class _RelayedRequest:
    """One request: `receive` and `send` of its application."""

    def __init__(self, number: int, write: Callable[[bytes], None]) -> None:
        self._number, self._write = number, write
        self._wanted: asyncio.Future[bytes] | None = None
        self._sending: asyncio.Future[bytes] | None = None
        self._gone = False
        self.task: asyncio.Task[None]

    async def receive(self) -> Message:
        """One that was cancelled is continued by the next: what it asked for comes once."""
        if self._gone:
            return decode_received(GONE)
        if self._wanted is None:
            self._wanted = asyncio.get_running_loop().create_future()
            self._write(encode_link_frame(LinkFrameKind.WANT, count=self._number))
        told = await asyncio.shield(self._wanted)
        self._wanted = None
        return decode_received(told)

    async def send(self, message: Message) -> None:
        for part in encode_parts(message):
            if self._gone:
                return
            self._sending = asyncio.get_running_loop().create_future()
            self._write(encode_link_frame(LinkFrameKind.PART, part, self._number))
            told = await self._sending
            decode_sent(told)

    def received(self, told: bytes) -> None:
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(told)

    def sent(self, told: bytes) -> None:
        if self._sending is not None and not self._sending.done():
            self._sending.set_result(told)

    def leave(self) -> None:
        """Nobody waits for the answer."""
        self._gone = True
        self.received(GONE)
        self.sent(GONE)


class RelayReceiver:
    """All of one process. Only the event loop's thread."""

    def __init__(self, application: ASGIApp, write: Callable[[bytes], None]) -> None:
        """`write` sends a frame to the process."""
        self._application, self._write = application, write
        self._relayed: dict[int, _RelayedRequest] = {}

    def take_frame(self, frame: ChannelFrame) -> None:
        """REQUEST, RECEIVED, SENT or GONE."""
        if frame.kind == LinkFrameKind.REQUEST:
            relayed = self._relayed[frame.count] = _RelayedRequest(frame.count, self._write)
            relayed.task = asyncio.get_running_loop().create_task(self._serve_request(frame.count, relayed, frame.body))
            return
        known = self._relayed.get(frame.count)
        if known is None:  # it ended while this was on its way
            return
        if frame.kind == LinkFrameKind.RECEIVED:
            known.received(frame.body)
        elif frame.kind == LinkFrameKind.SENT:
            known.sent(frame.body)
        else:
            known.leave()

    def end(self) -> None:
        """The process is gone."""
        for relayed in list(self._relayed.values()):
            relayed.leave()

    async def _serve_request(self, number: int, relayed: _RelayedRequest, scope: bytes) -> None:
        try:
            await self._application(decode_scope(scope), relayed.receive, relayed.send)
        finally:
            del self._relayed[number]
            self._write(encode_link_frame(LinkFrameKind.END, count=number))
