"""Connections of clients that are slow, silent, rude or gone: each has its deadline and its limit, and none disturbs another."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from starlette.types import Receive, Scope, Send
from structlog.testing import capture_logs

from cmdlog.api import connection as connection_module
from cmdlog.api.connection import HELD_BYTES_MAX, WRITE_BYTES, Connection
from cmdlog.api.framing import Framer, Request
from cmdlog.api.problem import Problem
from cmdlog.api.roster import Roster
from cmdlog.api.service import send_problem
from cmdlog.node.settings import Settings
from tests.api.served import PATIENCE_S, Served, descriptors, eventually, read_all, served, status_of

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
    return server.inside(lambda: max((one._transport.get_write_buffer_size() for one in server.roster.open), default=0))


@pytest.fixture
def application() -> Application:
    """A new one."""
    return Application()


@pytest.fixture
def server(application: Application) -> Iterator[Served]:
    """Limits as in service, except the shortest."""
    with served(application) as server:
        yield server


# -- answering ---------------------------------------------------------------------------------------------------------


def test_connection_serves_one_request_after_another(server: Served) -> None:
    """Stated lengths and chunks, in one piece or in many, over one connection."""
    with server.connect() as client:
        for number in range(5):
            body = b"%d" % number * 1000
            client.sendall(post("/echo", body))
            assert one_answer(client) == (200, body)
            chunked = b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n"
            for at in range(0, len(chunked), 7):
                client.sendall(chunked[at : at + 7])
            assert one_answer(client) == (200, b"abcd")


@pytest.mark.slow
def test_large_answers_arrive_whole(server: Served) -> None:
    """Bodies beyond every buffer come as they were sent, also to a client that reads slowly."""
    with server.connect() as client:
        client.sendall(post("/echo", b"x" * 3_000_000))
        assert one_answer(client) == (200, b"x" * 3_000_000)
    with server.connect() as client:
        client.sendall(post("/big/20000000", headers="Connection: close\r\n"))
        assert eventually(lambda: buffered(server) > 0)
        body = read_all(client).partition(b"\r\n\r\n")[2]
    assert [len(body), body[0], body[-1]] == [20_000_000, 0, 199]


def test_http_1_0_and_close_end_the_connection(server: Served) -> None:
    """Old clients and those that ask for it find the end of the answer by the end of the connection."""
    assert server.ask(b"POST /echo HTTP/1.0\r\nContent-Length: 1\r\n\r\nx").endswith(b"connection: close\r\n\r\nx")
    assert server.ask(post("/echo", b"x", "Connection: close\r\n")).endswith(b"connection: close\r\n\r\nx")
    streamed = server.ask(b"POST /stream HTTP/1.0\r\nContent-Length: 4\r\n\r\nbody")
    assert streamed.endswith(b"\r\n\r\nbody")
    assert b"chunked" not in streamed


@pytest.mark.slow
def test_pipelined_requests_are_answered_in_order(server: Served, application: Application) -> None:
    """However many come at once: one is taken up when the one before is answered."""
    with server.connect() as client:
        client.sendall(b"".join(post("/echo", b"%d" % number) for number in range(200)))
        assert [one_answer(client) for _ in range(200)] == [(200, b"%d" % number) for number in range(200)]
        client.sendall(post("/wait", b"first") + post("/echo", b"second"))
        assert eventually(lambda: application.begun[-1] == "/wait")
        server.inside(application.gate.set)
        assert [one_answer(client)[1] for _ in range(2)] == [b"first", b"second"]
    assert application.begun[-2:] == ["/wait", "/echo"]


@pytest.mark.slow
@pytest.mark.parametrize("together", [False, True])
def test_what_is_pipelined_behind_a_slow_request_is_bounded(server: Served, application: Application, together: bool) -> None:
    """The server stops reading when enough waits: the rest stays with the client."""
    with server.connect() as client:
        if not together:
            client.sendall(post("/wait"))
        client.settimeout(0.5)
        with pytest.raises(TimeoutError):
            client.sendall(post("/wait") * together + post("/echo", b"x" * 1000) * 20_000)
        held = server.inside(lambda: max(len(one._held) for one in server.roster.open))
        assert HELD_BYTES_MAX < held <= HELD_BYTES_MAX + READ_BYTES
        client.settimeout(PATIENCE_S)
        server.inside(application.gate.set)
        for _ in range(20):
            assert one_answer(client)[0] == 200


def test_expectation_is_met_when_the_body_is_wanted(server: Served) -> None:
    """`100 Continue` is sent when the application reads; an answer without it ends the connection."""
    with server.connect() as client:
        client.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
        assert client.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"body")
        assert one_answer(client) == (200, b"body")
        client.sendall(post("/echo", b"body", "Expect: 100-continue\r\n"))  # it has not waited: there is nothing to continue
        assert one_answer(client) == (200, b"body")
    refused = server.ask(b"POST /ignore HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
    assert status_of(refused) == 401
    assert b"connection: close" in refused


def test_expectation_of_too_much_is_not_met() -> None:
    """Who asks before it sends more than a body may have is told so at once, and sends nothing; an unending stream may."""

    async def reads(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = (await receive())["body"]
        except Problem as problem:
            await send_problem(send, problem)
            return
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})

    head = b"POST %b HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
    with served(reads, call_bytes_max=100) as server:
        answer = server.ask(head % (b"/", 101))
        assert (status_of(answer), answer.count(b"HTTP/1.1")) == (413, 1)
        assert b"connection: close" in answer
        for path, size in ((b"/", 100), (b"/stream", 101)):
            with server.connect() as client:
                client.sendall(head % (path, size))
                assert client.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
                client.sendall(b"x" * size)
                assert one_answer(client) == (200, b"x" * size)


def test_half_closed_client_gets_its_answers(server: Served) -> None:
    """Who sends its requests and then an end, as netcat does, reads all answers."""
    with server.connect() as client:
        client.sendall(post("/echo", b"one") + post("/big/300000") + post("/echo", b"two") + b"POST /echo HTT")
        client.shutdown(socket.SHUT_WR)
        answers = read_all(client)
    assert answers.count(b"HTTP/1.1 200 OK") == 3
    assert answers.endswith(b"\r\n\r\ntwo")


# -- deadlines ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("sent", [b"", b"P", b"POST /echo HTTP/1.1\r\nHost: x\r\n", post("/echo")[:-1]])
def test_head_that_is_not_completed_gets_408(application: Application, sent: bytes) -> None:
    """Silent and half-sent connections end at header_timeout_s, not before and not long after."""
    with served(application, header_timeout_s=0.3) as server:
        began = time.monotonic()
        problem = problem_of(server.ask(sent))
        assert 0.25 < time.monotonic() - began < 3
        assert problem["code"] == "header_timeout"
        assert server.settled()
    assert application.begun == []


@pytest.mark.slow
def test_dripping_a_head_does_not_stretch_its_deadline(application: Application) -> None:
    """A byte now and then is not progress, nor is it in a second request, whose time begins with its first byte."""
    with served(application, header_timeout_s=0.4, keep_alive_s=5) as server, server.connect() as client:
        client.sendall(post("/echo", b"x"))
        assert one_answer(client) == (200, b"x")
        time.sleep(0.6)  # at rest a connection has another deadline
        began = time.monotonic()
        client.setblocking(False)
        for byte in post("/echo"):
            if time.monotonic() - began > 2 or problem_arrived(client):
                break
            client.send(bytes((byte,)))
            time.sleep(0.05)
        assert 0.35 < time.monotonic() - began < 2


def problem_arrived(client: socket.socket) -> bool:
    """Whether a 408 can be read."""
    try:
        return status_of(client.recv(4096)) == 408
    except BlockingIOError:
        return False


@pytest.mark.slow
def test_connection_at_rest_is_closed_without_a_word(application: Application) -> None:
    """After keep_alive_s without a request the connection ends; a client's pool expects nothing else."""
    with served(application, keep_alive_s=0.3) as server, server.connect() as client:
        client.sendall(post("/echo", b"x"))
        assert one_answer(client) == (200, b"x")
        began = time.monotonic()
        assert read_all(client) == b""
        assert 0.25 < time.monotonic() - began < 3


@pytest.mark.slow
def test_body_has_one_deadline_however_it_drips(application: Application) -> None:
    """A byte now and then does not hold a request: all of a body comes in body_timeout_s, or none of it counts."""
    with served(application, body_timeout_s=0.4) as server, server.connect() as client:
        began = time.monotonic()
        client.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
        client.setblocking(False)
        while time.monotonic() - began < 3 and not problem_arrived(client):
            client.send(b"x")
            time.sleep(0.05)
        assert 0.35 < time.monotonic() - began < 2


@pytest.mark.slow
def test_stream_lasts_while_it_brings_something(application: Application) -> None:
    """A route whose bodies have no end ends at silence, and a byte now and then is silence; a line now and then is not."""
    head = b"POST /stream HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    for part, lasts in ((b"x", False), (b"x" * 20, True)):
        with served(application, body_timeout_s=0.4) as server, server.connect() as client:
            began = time.monotonic()
            client.sendall(head)
            while server.inside(lambda: bool(server.roster.tasks)) or time.monotonic() - began < 0.1:
                if time.monotonic() - began > 1.5:
                    break
                client.sendall(b"%x\r\n%b\r\n" % (len(part), part))
                time.sleep(0.1)
            assert (time.monotonic() - began > 1.5) is lasts


@pytest.mark.slow
def test_time_that_the_application_takes_is_nobodys_delay(application: Application) -> None:
    """While the application does not wait for the body, the body is not late."""
    with served(application, body_timeout_s=0.2) as server, server.connect() as client:
        client.sendall(post("/wait", b"body"))
        time.sleep(0.6)
        server.inside(application.gate.set)
        assert one_answer(client) == (200, b"body")


# -- limits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"nonsense\r\n\r\n", 400, "bad_request"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "bad_request"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "bad_request"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx", 400, "bad_request"),
        (b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414, "url_too_long"),
        (b"GET /" + b"x" * 3_000_000, 414, "url_too_long"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 101 + b"\r\n", 431, "headers_too_large"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"b" * 3_000_000, 431, "headers_too_large"),
    ],
)
def test_what_is_no_request_gets_a_code(server: Served, application: Application, sent: bytes, status: int, code: str) -> None:
    """Bad bytes are answered, also to a client that is still sending, and never reach the application; the end is orderly."""
    with server.connect() as client:
        client.sendall(sent)
        raw = b""
        while part := client.recv(4096):  # a reset would raise
            raw += part
    problem = problem_of(raw)
    assert (problem["status"], problem["code"]) == (status, code)
    assert application.begun == []
    assert server.roster.counts[code] == 1
    assert server.settled()


def test_bad_request_behind_good_ones_is_answered_last(server: Served) -> None:
    """What was pipelined before nonsense is answered first."""
    answers = server.ask(post("/echo", b"one") + post("/echo", b"two") + b"nonsense\r\n\r\n")
    first, second, third = answers.split(b"HTTP/1.1 ")[1:]
    assert (first[-3:], second[-3:], third[:3]) == (b"one", b"two", b"400")


def test_broken_chunks_are_answered_unless_the_answer_has_begun(server: Served, application: Application) -> None:
    """A body that turns out to be none: 400, or the end of an answer under way; the handler hears that nobody is left."""
    head = b" HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"
    assert problem_of(server.ask(b"POST /echo" + head + b"zz\r\n"))["code"] == "bad_request"
    assert application.begun == []
    with server.connect() as client:
        client.sendall(b"POST /echo" + head)
        assert eventually(lambda: application.begun == ["/echo"])
        client.sendall(b"zz\r\n")
        assert problem_of(read_all(client))["code"] == "bad_request"
    with server.connect() as client:
        client.sendall(b"POST /stream" + head)
        assert client.recv(10) == b"HTTP/1.1 2"
        client.sendall(b"zz\r\n")
        assert not read_all(client).endswith(b"0\r\n\r\n")
    assert application.left == ["/echo", "/stream"]
    assert server.settled()


@pytest.mark.slow
def test_refused_client_that_stays_is_left(application: Application, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has read its refusal and does not close is not waited for, in whatever phase it was refused."""
    monkeypatch.setattr(connection_module, "LINGER_S", 0.3)
    with served(application) as server, server.connect() as in_head, server.connect() as in_body:
        in_head.sendall(b"nonsense\r\n\r\n")
        in_body.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        assert eventually(lambda: application.begun == ["/echo"])
        in_body.sendall(b"zz\r\n")
        for client in (in_head, in_body):
            assert problem_of(read_all(client))["code"] == "bad_request"
        assert server.settled()


@pytest.mark.slow
def test_answer_before_the_body_leaves_the_connection_usable(server: Served) -> None:
    """A body that nobody reads is taken to its end, and the next request is served."""
    with server.connect() as client:
        for size in (10, 200_000):
            client.sendall(post("/ignore", b"x" * size) + post("/echo", b"next"))
            assert one_answer(client) == (401, b"not read")
            assert one_answer(client) == (200, b"next")


@pytest.mark.slow
@pytest.mark.parametrize("endless", [b"5\r\nxxxxx\r\n" * 1000, b""])
def test_answer_before_a_body_that_never_ends(application: Application, monkeypatch: pytest.MonkeyPatch, endless: bytes) -> None:
    """Whoever goes on sending, or never sends, is left behind after a moment; what it sends takes no memory."""
    monkeypatch.setattr(connection_module, "LINGER_S", 0.3)
    with served(application) as server, server.connect() as client:
        client.sendall(b"POST /ignore HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert one_answer(client) == (401, b"not read")
        began = time.monotonic()
        while time.monotonic() - began < 5 and server.inside(lambda: bool(server.roster.open)):
            try:
                client.sendall(endless)
            except ConnectionError:
                break
        assert time.monotonic() - began < 4
        assert server.settled()


@pytest.mark.slow
@pytest.mark.parametrize(
    "begun",
    [b"POST /ignore HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n", b"nonsense\r\n\r\n"],
    ids=["answered", "refused"],
)
def test_what_comes_after_the_last_answer_is_bounded(
    application: Application, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    """However patient the server is with a client that still sends: after so many bytes it is not."""
    monkeypatch.setattr(connection_module, "LINGER_S", 60)
    monkeypatch.setattr(connection_module, "LINGER_BYTES_MAX", 100_000)
    with served(application) as server, server.connect() as client:
        client.sendall(begun)
        assert eventually(lambda: bool(server.roster.open))
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                client.sendall(b"x" * 10_000)
        assert server.settled()


# -- slow readers ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_client_that_does_not_read_is_cut(application: Application) -> None:
    """A large answer is held back, bounded, and given up after write_timeout_s."""
    with served(application, write_timeout_s=0.5) as server, server.connect() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(post("/big/100000000"))
        began = time.monotonic()
        peak = 0
        while server.inside(lambda: bool(server.roster.tasks)) or time.monotonic() - began < 0.2:
            peak = max(peak, buffered(server))
            assert time.monotonic() - began < 5
        assert 0 < peak <= 2 * WRITE_BYTES
        assert server.roster.counts["slow_reader"] == 1
        assert server.settled()


@pytest.mark.slow
def test_answers_that_nobody_reads_stop_the_requests(application: Application) -> None:
    """A client that sends and never reads costs two buffers, whatever it sends, and then its connection."""
    with served(application, write_timeout_s=0.5) as server, server.connect() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peak, gone = 0, False
        for _ in range(1000):
            try:
                client.sendall(post("/echo", b"x" * 10_000) * 10)
            except ConnectionError:
                gone = True
                break
            peak = max(peak, buffered(server))
        assert gone
        assert peak <= 2 * WRITE_BYTES
        assert server.settled()


@pytest.mark.slow
def test_quick_answers_that_nobody_reads_stop_the_requests(application: Application) -> None:
    """Answers that are given at once are bounded too, also when each request comes by itself."""

    class Quick:
        def takes(self, request: Request) -> bool:
            return True

        def begin(self, request: Request, body: bytes, answer: Any) -> None:
            answer(200, [(b"content-length", b"%d" % WRITE_BYTES)], b"x" * WRITE_BYTES)

    with served(application, quick=Quick(), write_timeout_s=0.5) as server, server.connect() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peak, began = 0, time.monotonic()
        assert eventually(lambda: bool(server.roster.open))
        while server.inside(lambda: bool(server.roster.open)):
            with contextlib.suppress(ConnectionError):
                client.sendall(post("/echo"))
            peak = max(peak, buffered(server))
            assert time.monotonic() - began < PATIENCE_S
        assert peak <= 3 * WRITE_BYTES
        assert server.settled()


class Wire:
    """A transport that takes nothing: after the first write its buffer is full."""

    def __init__(self) -> None:
        self.protocol: Any = None
        self.written: list[bytes] = []
        self.gone = False

    def write(self, data: bytes) -> None:
        self.written.append(data)
        self.protocol.pause_writing()

    async def wrote(self, count: int) -> None:
        """Returns when so many answers were written."""
        for _ in range(1000):
            if len(self.written) >= count:
                return
            await asyncio.sleep(0)
        raise AssertionError(self.written)

    def close(self) -> None:
        self.gone = True

    abort = close

    def is_closing(self) -> bool:
        return self.gone

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return ("127.0.0.1", 1)

    def set_write_buffer_limits(self, high: int) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


def test_rest_of_a_body_is_no_new_request_when_the_answer_is_taken_late(application: Application) -> None:
    """An early answer that fills the buffer: what comes of the body meanwhile is dropped, and the request is not begun again."""

    async def run() -> Wire:
        roster = Roster(application, Settings(), connections_max=10)
        wire, protocol = Wire(), Connection(roster, asyncio.get_running_loop())
        wire.protocol = protocol
        protocol.connection_made(wire)  # type: ignore[arg-type]
        protocol.data_received(b"POST /ignore HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n")
        await wire.wrote(1)
        protocol.data_received(b"01234")
        protocol.resume_writing()
        protocol.data_received(b"56789" + post("/echo", b"next"))
        protocol.resume_writing()
        await wire.wrote(2)
        protocol.connection_lost(None)
        return wire

    wire = asyncio.run(run())
    assert application.begun == ["/ignore", "/echo"]
    assert wire.written[1].endswith(b"next")


# -- many connections --------------------------------------------------------------------------------------------------


def test_new_connection_takes_the_place_of_a_silent_one(application: Application) -> None:
    """Those that never sent a request go first, the oldest first; those that were answered stay."""
    with served(application, connections_max=4) as server:
        with server.connect() as known, server.connect() as first, server.connect() as second, server.connect() as third:
            for client in (known, first):
                client.sendall(post("/echo", b"x"))
                one_answer(client)
            for client in (second, third):
                client.sendall(b"POST /echo HTTP")
            assert eventually(lambda: server.inside(lambda: len(server.roster.open)) == 4)
            with server.connect() as fresh:
                fresh.sendall(post("/echo", b"served"))
                assert one_answer(fresh) == (200, b"served")
                assert read_all(second) == b""
                for client in (known, first):
                    client.sendall(post("/echo", b"still"))
                    assert one_answer(client) == (200, b"still")
            third.sendall(b"/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx")
            assert one_answer(third) == (200, b"x")
        assert server.settled()


def test_unauthenticated_connections_stay_strangers(application: Application) -> None:
    """An answer of 401 earns no place: such connections go before one that was let in, though it has rested longer."""
    with served(application, connections_max=2) as server, server.connect() as good, server.connect() as bad:
        good.sendall(post("/echo", b"x"))
        one_answer(good)
        bad.sendall(post("/ignore/401"))
        one_answer(bad)
        with server.connect() as fresh:
            fresh.sendall(post("/echo", b"served"))
            assert one_answer(fresh) == (200, b"served")
            assert read_all(bad) == b""
            good.sendall(post("/echo", b"still"))
            assert one_answer(good) == (200, b"still")


def test_connection_is_turned_away_when_all_are_at_work(application: Application) -> None:
    """Nobody who is being answered makes room: the newcomer gets 503 with Retry-After, and a place later."""
    with served(application, connections_max=3) as server:
        workers = [server.connect() for _ in range(3)]
        for client in workers:
            client.sendall(post("/wait", b"done"))
        assert eventually(lambda: len(application.begun) == 3)
        refused = server.ask(post("/echo"))
        assert problem_of(refused)["code"] == "too_many_connections"
        assert b"retry-after: 1\r\n" in refused
        server.inside(application.gate.set)
        for client in workers:
            assert one_answer(client) == (200, b"done")
        with server.connect() as fresh:
            fresh.sendall(post("/echo", b"served"))
            assert one_answer(fresh) == (200, b"served")
        for client in workers:
            client.close()
        assert server.settled()


@pytest.mark.slow
def test_flood_of_connections_keeps_within_the_limit(application: Application) -> None:
    """Three hundred half-sent connections on a server for fifty: a good client is served at every moment."""
    with served(application, connections_max=50) as server, server.connect() as good:
        flood = []
        for _ in range(300):
            flood.append(server.connect())
            flood[-1].sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\n")
            good.sendall(post("/echo", b"good"))
            assert one_answer(good) == (200, b"good")
        assert server.inside(lambda: len(server.roster.open)) <= 50
        assert server.roster.counts["evicted"] >= 250
        for client in flood:
            client.close()


# -- clients that leave ------------------------------------------------------------------------------------------------

PHASES = {
    "in the head": ("", b"POST /echo HT"),
    "after the head": ("/echo", b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n"),
    "in the body": ("/echo", b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nbody"),
    "in a stream": ("/stream", b"POST /stream HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"),
    "before the answer": ("/wait", post("/wait", b"body")),
    "in the answer": ("/big/100000000", post("/big/100000000")),
    "in an unfinished answer": ("/half/waits", post("/half/waits")),
    "between pipelined requests": ("/wait", post("/wait") + post("/echo")),
    "after an answer without its body": ("/ignore", b"POST /ignore HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n"),
}


@pytest.mark.slow
@pytest.mark.parametrize("reset", [True, False], ids=["reset", "closed"])
@pytest.mark.parametrize("phase", PHASES)
def test_client_that_leaves_leaves_nothing_behind(application: Application, phase: str, reset: bool) -> None:
    """In whatever phase: no connection, task or descriptor stays, nothing is logged as a defect, and others are served."""
    path, sent = PHASES[phase]
    with served(application) as server, capture_logs() as logs:
        files = descriptors()
        client = server.connect()
        client.sendall(sent)
        assert eventually(
            lambda: server.inside(lambda: bool(server.roster.open)) and application.begun == ([path] if path else [])
        )
        if reset:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        client.close()
        if path != "/half/waits" or reset:
            server.inside(application.gate.set)
        assert eventually(lambda: not server.roster.open)
        server.inside(application.gate.set)
        assert server.settled()
        assert eventually(lambda: descriptors() == files)
        with server.connect() as other:
            other.sendall(post("/echo", b"served"))
            assert one_answer(other) == (200, b"served")
    assert logs == []


@pytest.mark.slow
def test_connections_that_ended_are_forgotten_at_once(application: Application) -> None:
    """Nothing of a closed connection waits for the collector of cycles: parsers hold memory that it does not see."""
    import gc

    def alive() -> int:
        return sum(isinstance(one, (Connection, Framer)) for one in gc.get_objects())

    with served(application) as server:
        gc.collect()
        gc.disable()
        try:
            before = server.inside(alive)
            for _ in range(50):
                assert status_of(server.ask(post("/echo", b"x", "Connection: close\r\n"))) == 200
                with server.connect() as client:
                    client.sendall(b"POST /echo HT")
            assert server.settled()
            assert eventually(lambda: server.inside(alive) <= before + 4)  # the last one may be held by a frame
        finally:
            gc.enable()


def test_peer_that_vanishes_is_found_by_the_kernel(server: Served) -> None:
    """A machine that is gone without a word is probed; what it does not acknowledge in write_timeout_s ends the connection."""
    with server.connect() as client:
        client.sendall(post("/echo"))
        one_answer(client)
        kept, silence_ms = server.inside(
            lambda: [
                next(iter(server.roster.open))._transport.get_extra_info("socket").getsockopt(*option)
                for option in ((socket.SOL_SOCKET, socket.SO_KEEPALIVE), (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
            ]
        )
    assert (bool(kept), silence_ms) == (True, 30_000)


# -- defects and the end -----------------------------------------------------------------------------------------------


def test_quick_answer_with_a_line_end_ends_the_connection(application: Application) -> None:
    """A defect below ASGI leaves nobody waiting: the connection ends, and the loop is told what happened."""

    class Quick:
        def takes(self, request: Request) -> bool:
            return True

        def begin(self, request: Request, body: bytes, answer: Any) -> None:
            answer(200, [(b"x", b"a\r\nset-cookie: b")], body)

    with served(application, quick=Quick()) as server:
        assert server.ask(post("/echo")) == b""
        assert server.settled()
        assert eventually(lambda: len(server.complaints) == 1)
        server.complaints.clear()


@pytest.mark.parametrize("path", ["/half/fails", "/half/ends", "/defect/3", "/defect/9", "/header"])
def test_answer_that_is_not_whole_does_not_look_like_one(server: Served, path: str) -> None:
    """A handler that fails, stops, miscounts or lets a line end into a header: the connection ends, if need be in an answer."""
    with capture_logs() as logs:
        raw = server.ask(post(path))
        old = server.ask(post(path).replace(b"HTTP/1.1", b"HTTP/1.0"))
    body = raw.partition(b"\r\n\r\n")[2]
    assert not raw.endswith(b"0\r\n\r\n")
    assert b"set-cookie" not in raw
    assert len(body) <= 9
    assert all("secret" not in str(line) for line in logs)
    assert [line["event"] for line in logs] == ([] if path == "/half/ends" else ["request_failed"] * 2)
    assert status_of(old) in (0, 200)
    assert server.settled()


def test_orderly_stop_answers_what_is_under_way(application: Application) -> None:
    """A stopping server closes what rests, answers what is under way with `close`, and takes nothing more."""
    with served(application) as server, server.connect() as resting, server.connect() as working, server.connect() as half:
        resting.sendall(post("/echo", b"x"))
        one_answer(resting)
        half.sendall(b"POST /ec")
        working.sendall(post("/wait", b"answered") + post("/echo", b"never"))
        assert eventually(lambda: application.begun == ["/echo", "/wait"])
        server._server.should_exit = True
        assert read_all(resting) == b""
        assert read_all(half) == b""
        server.inside(application.gate.set)
        raw = read_all(working)
        assert raw.endswith(b"connection: close\r\n\r\nanswered")
    assert application.begun == ["/echo", "/wait"]
