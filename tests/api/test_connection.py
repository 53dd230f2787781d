"""Requests and answers on one connection: their order, what is no request, what comes uncalled for, and how a connection ends."""

from __future__ import annotations

import contextlib
import socket

import pytest
from starlette.types import Receive, Scope, Send
from structlog.testing import capture_logs

from cmdlog.api.connections import connection as connection_module
from cmdlog.api.connections.connection import HELD_BYTES_MAX
from cmdlog.api.connections.http_parser import Request
from cmdlog.api.connections.request_cycle import CallCycle
from cmdlog.api.gate.problem import Problem
from cmdlog.api.gate.request import read_body
from cmdlog.api.routes.service import send_problem
from tests.api.echo import READ_BYTES, Application, echoes, one_answer, post, problem_of
from tests.api.served import Served, read_all, served, status_of
from tests.waiting import PATIENCE_S, eventually, wait_for

# -- answering ---------------------------------------------------------------------------------------------------------


def test_connection_serves_one_request_after_another(server: Served) -> None:
    """Stated lengths and chunks, in one piece or in many, over one connection."""
    with server.connect() as client:
        for number in range(5):
            body = b"%d" % number * 1000
            echoes(client, body)
            chunked = b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n"
            for at in range(0, len(chunked), 7):
                client.sendall(chunked[at : at + 7])
            assert one_answer(client) == (200, b"abcd")


def test_http_1_0_and_close_end_the_connection(server: Served) -> None:
    """Old clients and those that ask for it find the end of the answer by the end of the connection."""
    assert server.ask(b"POST /echo HTTP/1.0\r\nContent-Length: 1\r\n\r\nx").endswith(b"connection: close\r\n\r\nx")
    assert server.ask(post("/echo", b"x", "Connection: close\r\n")).endswith(b"connection: close\r\n\r\nx")
    streamed = server.ask(b"POST /stream HTTP/1.0\r\nContent-Length: 4\r\n\r\nbody")
    assert streamed.endswith(b"\r\n\r\nbody")
    assert b"chunked" not in streamed


@pytest.mark.slow
@pytest.mark.parametrize("together", [False, True])
def test_what_is_pipelined_behind_a_slow_request_is_bounded(server: Served, application: Application, together: bool) -> None:
    """The server stops reading when enough waits: the rest stays with the client."""
    with server.connect() as client:
        if not together:
            client.sendall(post("/wait"))
        left = memoryview(post("/wait") * together + post("/echo", b"x" * 1000) * 20_000)
        client.setblocking(False)

        def held() -> int:
            return server.inside(lambda: max((len(one._held) for one in server.registry.open), default=0))

        def enough_waits() -> bool:
            nonlocal left
            with contextlib.suppress(BlockingIOError):
                left = left[client.send(left) :]
            return held() > HELD_BYTES_MAX

        wait_for(enough_waits, every_s=0.001)
        with contextlib.suppress(BlockingIOError):
            while left:
                left = left[client.send(left) :]
        assert left, "the rest stays with the client"
        assert HELD_BYTES_MAX < held() <= HELD_BYTES_MAX + READ_BYTES
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


async def reads_100(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the body, which has at most 100 bytes on every path but one."""
    try:
        stream = scope["path"] == "/stream"
        body = (await receive())["body"] if stream else await read_body(scope, receive, limit_bytes=100)
    except Problem as problem:
        await send_problem(send, problem)
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


def test_expectation_of_too_much_is_not_met() -> None:
    """Who asks before it sends more than the route takes is refused at once, and sends nothing; an unending stream may."""
    head = b"POST %b HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
    with served(reads_100, call_bytes_max=64) as server:
        answer = server.ask(head % (b"/", 101))
        assert (status_of(answer), answer.count(b"HTTP/1.1")) == (413, 1)
        assert b"connection: close" in answer
        for path, size in ((b"/", 100), (b"/stream", 101)):
            with server.connect() as client:
                client.sendall(head % (path, size))
                assert client.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
                client.sendall(b"x" * size)
                assert one_answer(client) == (200, b"x" * size)


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 1000000\r\n\r\n",
        b"Content-Length: 40000000\r\n\r\nthe first of it",
        b"Transfer-Encoding: chunked\r\n\r\n65\r\n" + b"x" * 101 + b"\r\nF4240\r\n",
    ],
    ids=["stated", "begun", "chunked"],
)
def test_body_that_is_too_large_is_refused_before_it_has_come(head: bytes) -> None:
    """By its stated length, or once its chunks pass the limit; the client may send on and read its answer afterwards."""
    with served(reads_100) as server:
        with server.connect() as client:
            client.sendall(b"POST / HTTP/1.1\r\nHost: x\r\n" + head)
            assert problem_of(read_all(client))["code"] == "too_large"
        with server.connect() as client:
            client.sendall(b"POST / HTTP/1.1\r\nHost: x\r\n" + head)
            for _ in range(9):
                client.sendall(b"x" * 100_000)
            assert problem_of(read_all(client))["limit_bytes"] == 100


def test_half_closed_client_gets_its_answers(server: Served) -> None:
    """Who sends its requests and then an end, as netcat does, reads all answers."""
    with server.connect() as client:
        client.sendall(post("/echo", b"one") + post("/big/300000") + post("/echo", b"two") + b"POST /echo HTT")
        client.shutdown(socket.SHUT_WR)
        answers = read_all(client)
    assert answers.count(b"HTTP/1.1 200 OK") == 3
    assert answers.endswith(b"\r\n\r\ntwo")


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
    assert server.registry.counts[code] == 1
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

        def left_behind() -> bool:
            with contextlib.suppress(ConnectionError):
                client.sendall(endless)
            return server.inside(lambda: not server.registry.open)

        assert eventually(left_behind)
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
        assert eventually(lambda: bool(server.registry.open))
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                client.sendall(b"x" * 10_000)
        assert server.settled()


# -- defects and the end -----------------------------------------------------------------------------------------------


def test_quick_answer_with_a_line_end_ends_the_connection(application: Application) -> None:
    """A defect below ASGI leaves nobody waiting: the connection ends, and the loop is told what happened."""

    class Quick:
        reads: frozenset[bytes] = frozenset()

        def takes(self, request: Request, body_bytes: int) -> bool:
            return True

        def begin_call(self, request: Request, body: bytes, cycle: CallCycle) -> None:
            cycle.answer(200, [(b"x", b"a\r\nset-cookie: b")], body)

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
        echoes(resting)
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
