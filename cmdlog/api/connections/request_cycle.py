"""One request and its answer over a connection: as ASGI, or in one piece.

One rule: an answer is whole or the connection ends. Its head goes out with the first of its body in one write, and a body that is
longer or shorter than its stated length is a defect, not an answer. The writer of a long answer waits for its client, which has
until a deadline to take it; a small answer does not wait.

`receive` raises TimeoutError when the body does not come in time: all of it `body_timeout_s` after the head; of a *stream*, a
route whose bodies have no end, at least `STREAM_BYTES_MIN` in every such time. Only while the application waits is anything late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from math import inf
from typing import TYPE_CHECKING, Final

import structlog
from starlette.types import ASGIApp, Message, Scope

from cmdlog.api.connections.http_parser import Headers, HttpParser, Request
from cmdlog.node.placing.shares import UNCOUNTED_BYTES

if TYPE_CHECKING:
    from cmdlog.api.connections.connection import Connection

STREAM_BYTES_MIN: Final = 16  # shorter than the shortest call: a stream that brings less is as good as silent
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
STATUS_LINES: Final = {int(status): b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}
BODILESS: Final = frozenset((204, 304))
CONTENT_LENGTH: Final = b"content-length"
CONNECTION: Final = b"connection"
CLOSE: Final = (CONNECTION, b"close")
OK: Final = 200
AWAITS: Final = "cmdlog.awaits"  # in the scope: `RequestCycle.await_room`
RESULT_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\n%bcontent-type: application/json\r\ncontent-length: %d\r\ncmdlog-txn: %d\r\nx-request-id: %b\r\n%b\r\n"
)
"""Of the result of a call: the lines that all answers share, length, transaction, id, and maybe another header."""
CHUNKED: Final = (b"transfer-encoding", b"chunked")

logger = structlog.get_logger("cmdlog.api")


def encode_head(status: int, headers: Headers, shared: bytes) -> bytes:
    """An answer's first line and headers, after those that all share. Raises: RuntimeError when one of them holds a line end."""
    lines = b"".join([b"%b: %b\r\n" % header for header in headers])
    if not lines.count(b"\n") == lines.count(b"\r") == len(headers):
        raise RuntimeError("a header of the answer holds a line end")
    return b"%b%b%b\r\n" % (STATUS_LINES[status], shared, lines)


class CallCycle:
    """A request that is complete, and its answer in one piece, without ASGI."""

    __slots__ = ("_connection", "keep_alive", "request", "started", "status")

    def __init__(self, connection: Connection, request: Request) -> None:
        self._connection, self.request = connection, request
        self.keep_alive = request.keep_alive
        self.started = False
        self.status = 0

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop in whose thread the answer is given."""
        return self._connection.loop

    def attribute(self, name: str) -> None:
        """The request passed the gate by the credential of this name. Raises: Problem, see `ConnectionRegistry.attribute`."""
        connection = self._connection
        connection.registry.attribute(connection, name)

    def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Sends the answer, whose headers state its length. Nothing happens when the client is gone."""
        connection = self._connection
        if not self.keep_alive:
            headers.append(CLOSE)
        try:
            data = encode_head(status, headers, connection.registry.shared_lines()) + body
        except RuntimeError:
            self.started = True
            connection.broken(self)
            raise
        self.started, self.status = True, status
        connection.answered(self, data)

    def answer_result(self, txn_id: int, body: bytes, request_id: str) -> None:
        """`answer` with the result of a call. The request's id holds no line end."""
        close = b"" if self.keep_alive else b"connection: close\r\n"
        shared = self._connection.registry.shared_lines()
        self.started, self.status = True, OK
        self._connection.answered(self, RESULT_HEAD % (shared, len(body), txn_id, request_id.encode(), close) + body)

    def when_taken(self, tell: Callable[[], None]) -> None:
        """Calls `tell` when the client has taken the answer, which was given, or is gone."""
        self._connection.when_taken(tell)

    def close_after(self) -> None:
        """See `RequestCycle`."""
        self.keep_alive = False

    def arrived(self) -> None:
        """See `RequestCycle`. There is nothing more to come."""

    def expire(self) -> None:
        """See `RequestCycle`. Nothing is waited for."""

    def disconnect(self) -> None:
        """See `RequestCycle`. The outcome is kept under the call's key; no one is notified."""


class RequestCycle:
    """Made for one request; `run` is its task."""

    def __init__(self, connection: Connection, request: Request, *, deadline: float, stream: bool) -> None:
        self._connection, self.request = connection, request
        self.keep_alive = request.keep_alive
        self.task: asyncio.Task[None]  # of `run`
        self.status = 0
        self.started = False  # something of the answer's head is fixed
        self.complete = False  # the answer is written
        self._head = b""  # of the answer, until the first of its body goes with it
        self._chunked = False
        self._left = 0  # bytes of the answer that its stated length still wants
        self._continued = not request.expects_continue
        self._disconnected = False
        self._arrived: asyncio.Future[None] | None = None  # set while more of the body is awaited
        self._deadline, self._stream = deadline, stream
        self._brought = 0  # bytes of a stream since its deadline was moved
        self._ended = False  # the end of the request's body was handed over
        self._expired = False

    # -- what the connection says ----------------------------------------------------------------------------------------

    def close_after(self) -> None:
        """The answer is the connection's last one."""
        self.keep_alive = False

    def arrived(self) -> None:
        """More of the body is there, or its end."""
        waiter, self._arrived = self._arrived, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def expire(self) -> None:
        """The body did not come in time."""
        self._expired = True
        self.arrived()

    def disconnect(self) -> None:
        """The client is gone, or no longer counts."""
        self._disconnected = True
        self.arrived()

    # -- ASGI ------------------------------------------------------------------------------------------------------------

    async def run(self, application: ASGIApp) -> None:
        """Has the request answered. Never raises, except when it is cancelled."""
        connection = self._connection
        try:
            await application(self._scope(), self.receive, self.send)
        except Exception as error:  # noqa: BLE001 - the application answers its own errors; this one is a defect
            if not self._disconnected:
                logger.error("request_failed", path=self.request.path, error=type(error).__name__)
        finally:
            connection.finished(self)

    def _scope(self) -> Scope:
        request, connection = self.request, self._connection
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": request.version,
            "method": request.method,
            "scheme": connection.scheme,
            "path": request.path,
            "raw_path": request.raw_path,
            "query_string": request.query,
            "root_path": "",
            "headers": request.headers,
            "client": connection.client,
            "server": connection.server,
            AWAITS: self.await_room,
        }

    def await_room(self, deadline: float) -> None:
        """The body is not read before there is room for it: until then the connection may have to make room. Inf: no longer."""
        self._connection.wait_until(self, deadline)

    async def receive(self) -> Message:
        """The next of the request's body. Raises: TimeoutError.

        After it, the client's end: who has closed its side may still read its answer, but no long work should be done for it.
        """
        connection = self._connection
        parser = connection.parser
        while not (self._disconnected or self.complete or (self._ended and connection.ended)):
            if not self._ended and (parser.waiting or parser.complete):
                return self._take_frames(parser)
            await self._wait(inf if parser.complete else self._body_deadline())  # the end of the client may come at any time
        return {"type": "http.disconnect"}

    def _take_frames(self, parser: HttpParser) -> Message:
        body = parser.take_body()
        self._brought += len(body)
        self._ended = parser.complete
        if not parser.complete:
            self._connection.read_on()
        return {"type": "http.request", "body": body, "more_body": not self._ended}

    def _body_deadline(self) -> float:
        if self._stream and self._brought >= STREAM_BYTES_MIN:
            self._brought = 0
            self._deadline = self._connection.body_deadline()
        return self._deadline

    async def _wait(self, deadline: float) -> None:
        connection = self._connection
        if not self._continued and not self.started:
            self._continued = True
            connection.write_now(CONTINUE)
        self._arrived = connection.loop.create_future()
        connection.wait_until(self, deadline)
        try:
            await self._arrived
        finally:
            self._arrived = None
            connection.wait_until(self, inf)
        if self._expired:
            raise TimeoutError("the request's body took too long")

    async def send(self, message: Message) -> None:
        """The next of the answer. When the client is gone, nothing happens."""
        if self._disconnected:
            return
        if message["type"] == "http.response.start":
            self._start(message["status"], list(message.get("headers", ())))
            return
        if not self.started or self.complete:
            raise RuntimeError("a part of an answer that has not begun, or has ended")
        last = not message.get("more_body", False)
        data = self._encode(message.get("body", b""), last=last)
        if data:
            await self._connection.write(data)
        if last and not self._disconnected:
            self.complete = True
            self.arrived()
            self._connection.answered(self)

    def _start(self, status: int, headers: Headers) -> None:
        if self.started:
            raise RuntimeError("the answer has begun already")
        self.started, self.status = True, status
        stated = None
        for name, value in headers:
            if name == CONTENT_LENGTH:
                stated = int(value)
            elif name == CONNECTION and value.lower() == b"close":
                self.keep_alive = False
        if not self._connection.parser.complete and not self._continued:
            self.keep_alive = False  # whether the client will send its body now is its choice: what comes next is unknown
        if stated is None and self.request.method != "HEAD" and status not in BODILESS:
            self._chunked = self.request.version == "1.1"
            self.keep_alive = self.keep_alive and self._chunked  # to HTTP/1.0 the end of the connection is the end
            if self._chunked:
                headers.append(CHUNKED)
        if not self.keep_alive and CLOSE not in headers:
            headers.append(CLOSE)
        self._left = -1 if stated is None or self.request.method == "HEAD" else stated
        self._head = encode_head(status, headers, self._connection.registry.shared_lines())

    def _encode(self, body: bytes, *, last: bool) -> bytes:
        head, self._head = self._head, b""
        if self.request.method == "HEAD":
            return head
        if self._chunked:
            chunk = (b"%x\r\n" % len(body), body, b"\r\n") if body else ()
            return b"".join((head, *chunk, b"0\r\n\r\n" if last else b""))
        if self._left >= 0:
            self._left -= len(body)
            if self._left < 0 or (last and self._left):
                raise RuntimeError("the answer's body differs from its stated length")
        return head + body if head else body


WRITE_BYTES: Final = UNCOUNTED_BYTES


class ResponseWriter:
    """Only the event loop's thread."""

    __slots__ = ("_drained", "_loop", "_taken", "_timeout_s", "deadline", "paused")

    def __init__(self, loop: asyncio.AbstractEventLoop, *, timeout_s: float) -> None:
        self._loop, self._timeout_s = loop, timeout_s
        self.paused = False  # the client takes less than is written
        self.deadline = inf  # when it must have taken enough
        self._drained: asyncio.Future[None] | None = None  # set while that is awaited
        self._taken: list[Callable[[], None]] = []  # called then

    def pause(self) -> None:
        """More than WRITE_BYTES are not sent yet."""
        self.paused = True
        self.deadline = self._loop.time() + self._timeout_s

    def resume(self) -> None:
        """The client has taken it, or is gone."""
        self.paused = False
        self.deadline = inf
        waiter, self._drained = self._drained, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        while self._taken:
            self._taken.pop()()

    def when_taken(self, tell: Callable[[], None]) -> None:
        """Calls `tell` when the client has taken what is written, or is gone: maybe at once."""
        if self.paused:
            self._taken.append(tell)
        else:
            tell()

    async def write(self, transport: asyncio.Transport, data: bytes) -> None:
        """Returns when at most WRITE_BYTES and one such part are not sent yet, or the client is gone."""
        whole = memoryview(data)
        for start in range(0, len(data), WRITE_BYTES):
            if self.paused:
                self._drained = self._loop.create_future()
                await self._drained
            if transport.is_closing():
                return
            transport.write(whole[start : start + WRITE_BYTES] if len(data) > WRITE_BYTES else data)
