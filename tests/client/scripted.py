"""A server that misbehaves on purpose: it executes like the real one, under keys and sessions, and answers as its script says.

A step of the script is used up by each connection that it ends before a request, or by each request but the end of a session.
When the script is over, everything is answered.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from tests.waiting import PATIENCE_S

Phase = Literal["accepted", "head read", "body read", "executed"]
End = Literal["keep", "close", "reset", "stall"]
RESET = struct.pack("ii", 1, 0)
SESSIONS = "/v1/sessions/"


@dataclass(frozen=True)
class Step:
    """What happens to one request, and from when on."""

    phase: Phase = "executed"
    end: End = "keep"
    reply: Callable[[Any], bytes] | bytes | None = None  # None: the proper answer; a function gets the proper answer's bytes
    share: float = 1.0  # of the reply that is sent


@dataclass
class Request:
    """What arrived."""

    path: str
    headers: dict[str, str]
    body: bytes = b""


def http(status: int, value: Any, *, kind: str = "application/json", headers: Iterable[str] = ()) -> bytes:
    """A whole answer."""
    body = value if isinstance(value, bytes) else orjson.dumps(value)
    lines = [f"HTTP/1.1 {status} X", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def problem(status: int, code: str, *headers: str, **more: Any) -> bytes:
    """An error answer."""
    told = {"code": code, "status": status, "detail": code, **more}
    return http(status, told, kind="application/problem+json", headers=headers)


def name_of_call(request: Request) -> str | None:
    """What the call is known by: its key, or its session and number."""
    session, number = (request.headers.get("cmdlog-session", "") + ";").split(";")[:2]
    return f"{session} {number.strip()}" if session else request.headers.get("idempotency-key")


def name_of_line(entry: dict[str, Any], shared: str) -> str | None:
    """The same of a line of a batch, whose request names the session `shared`."""
    if "number" in entry:
        return f"{entry.get('session', shared)} number={entry['number']}"
    key: str | None = entry.get("key")
    return key


@dataclass
class ScriptedServer:
    """Use it in a `with` block. `executions` counts what was executed; `requests` is all that arrived whole, but `ended`."""

    script: Iterable[Step] = ()
    executions: int = 0
    requests: list[Request] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)  # sessions
    connections: int = 0
    tls: ssl.SSLContext | None = None

    def __enter__(self) -> ScriptedServer:
        self._steps = deque(self.script)
        self._outcomes: dict[str, int] = {}
        self._lock = threading.Lock()
        self._released, self._closing, self.arrived = threading.Event(), threading.Event(), threading.Event()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http{'s' if self.tls else ''}://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self.release()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for connection in self._sockets:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()

    def release(self) -> None:
        """Ends every stall."""
        self._released.set()

    # -- connections -----------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self.connections += 1
                self._sockets.append(connection)
                thread = threading.Thread(target=self._serve, args=(connection,))
                self._threads.append(thread)
            thread.start()

    def _serve(self, accepted: socket.socket) -> None:
        with contextlib.suppress(OSError), accepted, self._secured(accepted) as connection:
            held = b""
            while True:
                step = self._peek()
                if step.phase == "accepted":
                    self._take()
                    if not self._finish(connection, step, b""):
                        return
                    continue
                request, held = self._read(connection, held)
                if request is None:
                    return
                step = Step() if request.path.startswith(SESSIONS) else self._take()
                if not self._finish(connection, step, self._execute(request) if step.phase == "executed" else b""):
                    return

    def _secured(self, connection: socket.socket) -> socket.socket:
        if self.tls is None:
            return connection
        connection.settimeout(120)
        with self._lock:
            self._sockets.remove(connection)
        secured = self.tls.wrap_socket(connection, server_side=True)
        with self._lock:
            self._sockets.append(secured)
        return secured

    def _peek(self) -> Step:
        with self._lock:
            return self._steps[0] if self._steps else Step()

    def _take(self) -> Step:
        with self._lock:
            return self._steps.popleft() if self._steps else Step()

    def _read(self, connection: socket.socket, held: bytes) -> tuple[Request | None, bytes]:
        while b"\r\n\r\n" not in held:
            data = connection.recv(1 << 16)
            if not data:
                return None, b""
            held += data
        head, _, held = held.partition(b"\r\n\r\n")
        first, *rest = head.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
        request = Request(first.split()[1], headers)
        if self._peek().phase == "head read":
            return request, held
        while len(held) < int(headers.get("content-length", 0)):
            data = connection.recv(1 << 16)
            if not data:
                return None, b""
            held += data
        length = int(headers.get("content-length", 0))
        request.body = held[:length]
        with self._lock:
            if request.path.startswith(SESSIONS):
                self.ended.append(request.path.removeprefix(SESSIONS))
            else:
                self.requests.append(request)
        self.arrived.set()
        return request, held[length:]

    def _finish(self, connection: socket.socket, step: Step, proper: bytes) -> bool:
        """Sends what the step says, and ends the connection as it says. Whether it lives on."""
        reply = proper if step.reply is None else step.reply if isinstance(step.reply, bytes) else step.reply(proper)
        connection.sendall(reply[: round(len(reply) * step.share)])
        if step.end == "stall":
            self._released.wait(PATIENCE_S)
        if step.end == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        return step.end == "keep"

    # -- the server ------------------------------------------------------------------------------------------------------

    def _execute(self, request: Request) -> bytes:
        own = [f"X-Request-Id: {request.headers['x-request-id']}"]
        if request.path == "/v1/batch":
            entries = [orjson.loads(line) for line in request.body.splitlines()]
            shared = request.headers.get("cmdlog-session", "").partition(";")[0]
            lines = [orjson.dumps(self._outcome(name_of_line(entry, shared))) for entry in entries]
            return http(200, b"\n".join([*lines, b""]), kind="application/x-ndjson", headers=own)
        if request.path.startswith("/v1/procedures/"):
            name = name_of_call(request)
            return http(200, self._outcome(name), headers=own)
        if request.path.startswith(SESSIONS):
            return "\r\n".join(["HTTP/1.1 204 X", *own, "", ""]).encode()
        return http(200, {"ready": True}, headers=own)

    def _outcome(self, key: str | None) -> dict[str, Any]:
        with self._lock:
            if key is None or key not in self._outcomes:
                self.executions += 1
                self._outcomes[key or f"keyless {self.executions}"] = self.executions
            number = self.executions if key is None else self._outcomes[key]
        return {"txn_id": str(number), "partition": 0, "result": number}
