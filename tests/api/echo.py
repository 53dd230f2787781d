"""An application of small routes behind a real connection, and what its clients send and read."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

import orjson
from starlette.types import Receive, Scope, Send

from tests.api.served import Served, status_of

READ_BYTES = 256_000  # what one read of the event loop brings at most


RESET = struct.pack("ii", 1, 0)


class Application:
    """Small routes that behave as handlers do; `gate` opens what waits."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.begun: list[str] = []  # paths, in the order in which they were taken up
        self.left: list[str] = []  # paths whose client was gone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        self.begun.append(path)
        name, _, rest = path[1:].partition("/")
        try:
            await getattr(self, "do_" + name)(rest, receive, send)
        except ConnectionError:
            self.left.append(path)
        except TimeoutError:
            await answer(send, 408, b"late", [(b"connection", b"close")])

    async def do_echo(self, rest: str, receive: Receive, send: Send) -> None:
        await answer(send, 200, await body_of(receive))

    async def do_ignore(self, rest: str, receive: Receive, send: Send) -> None:
        await answer(send, int(rest or 401), b"not read")

    async def do_wait(self, rest: str, receive: Receive, send: Send) -> None:
        body = await body_of(receive)
        await self.gate.wait()
        await answer(send, 200, body)

    async def do_stream(self, rest: str, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ConnectionError
            more = message["more_body"]
            await send({"type": "http.response.body", "body": message["body"], "more_body": more})

    async def do_big(self, rest: str, receive: Receive, send: Send) -> None:
        size = int(rest)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % size)]})
        for at in range(0, size, 100_000):
            part = bytes((at // 100_000 % 251,)) * min(100_000, size - at)
            await send({"type": "http.response.body", "body": part, "more_body": at + 100_000 < size})

    async def do_half(self, rest: str, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        if rest == "fails":
            raise RuntimeError("secret parameters")
        if rest == "waits":
            await self.gate.wait()

    async def do_defect(self, rest: str, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", rest.encode())]})
        await send({"type": "http.response.body", "body": b"four"})

    async def do_header(self, rest: str, receive: Receive, send: Send) -> None:
        await answer(send, 200, b"", [(b"x", b"a\r\nset-cookie: b")])


async def answer(send: Send, status: int, body: bytes, headers: Any = ()) -> None:
    """A whole answer."""
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"%d" % len(body)), *headers]})
    await send({"type": "http.response.body", "body": body})


async def body_of(receive: Receive) -> bytes:
    """The whole body. Raises: ConnectionError, TimeoutError."""
    parts, more = [], True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError
        parts.append(message["body"])
        more = message["more_body"]
    return b"".join(parts)


def post(path: str, body: bytes = b"", headers: str = "") -> bytes:
    """A whole request."""
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


def one_answer(client: socket.socket) -> tuple[int, bytes]:
    """Reads an answer of stated length."""
    held = b""
    while b"\r\n\r\n" not in held:
        part = client.recv(1)
        assert part, held
        held += part
    length = int(held.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    body = b""
    while len(body) < length:
        body += client.recv(length - len(body))
    return status_of(held), body


def echoes(client: socket.socket, body: bytes = b"x", headers: str = "") -> None:
    """The client is served."""
    client.sendall(post("/echo", body, headers))
    assert one_answer(client) == (200, body)


def serves(server: Served) -> None:
    """A client that comes now is served."""
    with server.connect() as fresh:
        echoes(fresh, b"served")


def problem_of(raw: bytes) -> Any:
    """The problem object of an answer that closes its connection."""
    head, _, body = raw.partition(b"\r\n\r\n")
    assert b"content-type: application/problem+json" in head
    assert b"connection: close" in head
    problem = orjson.loads(body)
    assert problem["status"] == status_of(raw)
    return problem


def buffered(server: Served) -> int:
    """Bytes that wait for clients to read, of the connection that has most."""
    return server.inside(lambda: max((one._transport.get_write_buffer_size() for one in server.registry.open), default=0))
