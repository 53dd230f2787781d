"""Both ends of relayed requests in one event loop, joined by frames that pass at the loop's next turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Message

from cmdlog.api.processes.process_link import LinkSession
from cmdlog.api.processes.relay import RelayReceiver, RelaySender
from tests.waiting import eventually


class RelayPair:
    """`sender` is the application of a process, `receiver` answers by the node's."""

    def __init__(self, application: ASGIApp) -> None:
        self._session = LinkSession()
        self.kinds: list[int] = []  # of all frames, in order
        self.sender = RelaySender(self._pass_to_node)
        self.receiver = RelayReceiver(application, lambda frame: self._pass(frame, self.sender.take_frame))

    def _pass_to_node(self, frame: bytes) -> None:
        self._pass(frame, self.receiver.take_frame)

    def _pass(self, frame: bytes, take: Callable[[Any], None]) -> None:
        said = self._session.open(frame)
        self.kinds.append(said.kind)
        asyncio.get_running_loop().call_soon(take, said)


async def happened(condition: Callable[[], object]) -> None:
    """Returns when it is true."""
    assert await asyncio.to_thread(eventually, condition)


class Client:
    """What a connection is to an application: its body, and what was sent to it."""

    def __init__(self, *body: bytes) -> None:
        self._body = list(body) or [b""]
        self.sent: list[Message] = []
        self.gone = asyncio.Event()
        self.takes = asyncio.Event()  # not set: it reads no answer
        self.takes.set()

    async def receive(self) -> Message:
        if self._body:
            return {"type": "http.request", "body": self._body.pop(0), "more_body": bool(self._body)}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        await self.takes.wait()
        self.sent.append(message)

    @property
    def answer(self) -> bytes:
        """Of what was sent, the body."""
        return b"".join(message.get("body", b"") for message in self.sent)
