"""Requests that an HTTP process relays: the node's own application answers them, by questions to the process with the client.

One rule: each `receive` and `send` of the node's application is one question, and the next one waits for its answer. So the gate
of the node admits them, and a slow reader, a late body and a client that is gone are seen as without HTTP processes.

On the wire a request is its scope once, then what its application receives and sends, part by part. `RelaySender` is the
application of the process; it knows no route. `RelayReceiver` is its other end, in the node.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cmdlog.api.processes.process_link import LinkFrameKind, encode_link_frame
from cmdlog.cluster.transport.sealed_frames import ChannelFrame

PART_BYTES_MAX: Final = 1 << 20  # of a body, in one frame
TEXTS: Final = ("method", "path", "scheme", "http_version")
BYTES: Final = ("raw_path", "query_string")
START: Final = b"s"
MORE: Final = b"m"
LAST: Final = b"l"
GONE: Final = b"g"
LATE: Final = b"t"
DEFECT: Final = b"d"
DONE: Final = b"o"


def encode_scope(scope: Scope) -> bytes:
    """A request's head."""
    payload: dict[str, Any] = {name: scope[name] for name in TEXTS}
    payload |= {name: scope[name].decode("latin-1") for name in BYTES}
    payload["headers"] = _texts(scope["headers"])
    return orjson.dumps({**payload, "client": scope["client"], "server": scope["server"]})


def decode_scope(body: bytes) -> Scope:
    """The inverse."""
    payload = orjson.loads(body)
    fixed = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "root_path": ""}
    ends = {name: tuple(payload[name]) if payload[name] else None for name in ("client", "server")}
    return {
        **fixed,
        **{name: payload[name] for name in TEXTS},
        **{name: payload[name].encode("latin-1") for name in BYTES},
        "headers": _pairs(payload["headers"]),
        **ends,
    }


def encode_received(message: Message) -> bytes:
    """What `receive` gave."""
    if message["type"] == "http.disconnect":
        return GONE
    body: bytes = message.get("body", b"")
    return (MORE if message.get("more_body", False) else LAST) + body


def encode_failure(error: Exception) -> bytes:
    """What `receive` or `send` raised."""
    if isinstance(error, TimeoutError):
        return LATE + str(error).encode()
    return DEFECT + f"{type(error).__name__}: {error}".encode()


def decode_received(body: bytes) -> Message:
    """What `receive` gave. Raises: what it raised."""
    _raise_failure(body)
    if body[:1] == GONE:
        return {"type": "http.disconnect"}
    return {"type": "http.request", "body": body[1:], "more_body": body[:1] == MORE}


def decode_sent(body: bytes) -> None:
    """Raises: what `send` raised."""
    _raise_failure(body)


def encode_parts(message: Message) -> Iterator[bytes]:
    """A message of an answer, in parts that are sent one after the other."""
    if message["type"] == "http.response.start":
        yield START + orjson.dumps([message["status"], _texts(message.get("headers", ()))])
        return
    body: bytes = message.get("body", b"")
    more = message.get("more_body", False)
    for at in range(0, max(1, len(body)), PART_BYTES_MAX):
        part = body[at : at + PART_BYTES_MAX]
        yield (MORE if more or at + PART_BYTES_MAX < len(body) else LAST) + part


def decode_part(body: bytes) -> Message:
    """The inverse, of one part."""
    if body[:1] == START:
        status, headers = orjson.loads(body[1:])
        return {"type": "http.response.start", "status": status, "headers": _pairs(headers)}
    return {"type": "http.response.body", "body": body[1:], "more_body": body[:1] == MORE}


def _raise_failure(body: bytes) -> None:
    kind, text = body[:1], body[1:]
    if kind == LATE:
        raise TimeoutError(text.decode())
    if kind == DEFECT:
        raise RuntimeError(text.decode())


def _texts(headers: Any) -> list[tuple[str, str]]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]


def _pairs(headers: Any) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]


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
            payload = encode_received(await relayed.receive())
        except Exception as error:  # noqa: BLE001 - it is raised again, in the node's application
            payload = encode_failure(error)
        self._write(encode_link_frame(LinkFrameKind.RECEIVED, payload, number))

    async def _send(self, number: int, relayed: _AskedRequest, part: bytes) -> None:
        try:
            await relayed.send(decode_part(part))
            payload = DONE
        except Exception as error:  # noqa: BLE001 - as above
            payload = encode_failure(error)
        self._write(encode_link_frame(LinkFrameKind.SENT, payload, number))


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
        payload = await asyncio.shield(self._wanted)
        self._wanted = None
        return decode_received(payload)

    async def send(self, message: Message) -> None:
        for part in encode_parts(message):
            if self._gone:
                return
            self._sending = asyncio.get_running_loop().create_future()
            self._write(encode_link_frame(LinkFrameKind.PART, part, self._number))
            payload = await self._sending
            decode_sent(payload)

    def received(self, payload: bytes) -> None:
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(payload)

    def sent(self, payload: bytes) -> None:
        if self._sending is not None and not self._sending.done():
            self._sending.set_result(payload)

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
