"""Connections of clients that are slow, silent, many or gone: each has its deadline and its limit, and none disturbs another."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from math import inf
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from cmdlog.api.app import create_app
from cmdlog.api.connections.connection import Connection
from cmdlog.api.connections.connection_registry import ConnectionRegistry
from cmdlog.api.connections.http_parser import Headers, Request
from cmdlog.api.connections.request_cycle import WRITE_BYTES, CallCycle
from cmdlog.api.gate.route_table import INVOKE
from cmdlog.node.settings import Settings
from tests.api.echo import RESET, Application, buffered, echoes, one_answer, post, problem_of, serves
from tests.api.running import token_of, write_tokens
from tests.api.served import Served, descriptors, read_all, served, status_of
from tests.waiting import eventually

LIMIT_S = 300.0  # beside which what a test takes is nothing: the clock is moved on

# -- deadlines ---------------------------------------------------------------------------------------------------------


def open_connections(server: Served) -> int:
    """How many the server has."""
    return server.inside(lambda: len(server.registry.open))


@pytest.mark.parametrize("sent", [b"", b"P", b"POST /echo HTTP/1.1\r\nHost: x\r\n", post("/echo")[:-1]])
def test_head_that_is_not_completed_gets_408(application: Application, sent: bytes) -> None:
    """Silent and half-sent connections end at header_timeout_s, and not before."""
    with served(application, header_timeout_s=LIMIT_S) as server, server.connect() as client:
        client.sendall(sent)
        assert eventually(lambda: open_connections(server) == 1)
        server.pass_time(0.9 * LIMIT_S)
        assert not server.registry.counts
        server.pass_time(0.2 * LIMIT_S)
        assert problem_of(read_all(client))["code"] == "header_timeout"
        client.close()
        assert server.settled()
    assert application.begun == []


def test_dripping_a_head_does_not_stretch_its_deadline(application: Application) -> None:
    """A byte now and then is not progress, nor is it in a second request, whose time begins with its first byte."""
    with served(application, header_timeout_s=LIMIT_S, keep_alive_s=5 * LIMIT_S) as server, server.connect() as client:
        echoes(client, b"x")
        server.pass_time(2 * LIMIT_S)  # at rest a connection has another deadline
        for byte in post("/echo")[:9]:
            client.send(bytes((byte,)))
            server.pass_time(0.1 * LIMIT_S)
            assert not server.registry.counts
        server.pass_time(0.2 * LIMIT_S)
        assert status_of(read_all(client)) == 408


def test_connection_at_rest_is_closed_without_a_word(application: Application) -> None:
    """After keep_alive_s without a request the connection ends; a client's pool expects nothing else."""
    with served(application, keep_alive_s=LIMIT_S) as server, server.connect() as client:
        echoes(client, b"x")
        server.pass_time(0.9 * LIMIT_S)
        assert open_connections(server) == 1
        server.pass_time(0.2 * LIMIT_S)
        assert read_all(client) == b""


def test_body_has_one_deadline_however_it_drips(application: Application) -> None:
    """A byte now and then does not hold a request: all of a body comes in body_timeout_s, or none of it counts."""
    with served(application, body_timeout_s=LIMIT_S) as server, server.connect() as client:
        client.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
        assert eventually(lambda: application.begun == ["/echo"])
        for _ in range(9):
            client.send(b"x")
            server.pass_time(0.1 * LIMIT_S)
            assert server.inside(lambda: len(server.registry.tasks)) == 1
        server.pass_time(0.2 * LIMIT_S)
        assert status_of(read_all(client)) == 408


@pytest.mark.parametrize(("part", "lasts"), [(b"x", False), (b"x" * 20, True)], ids=["a byte", "a line"])
def test_stream_lasts_while_it_brings_something(application: Application, part: bytes, lasts: bool) -> None:
    """A route whose bodies have no end ends at silence, and a byte now and then is silence; a line now and then is not."""
    with served(application, body_timeout_s=LIMIT_S) as server, server.connect() as client:
        client.sendall(b"POST /stream HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert eventually(lambda: application.begun == ["/stream"])
        for _ in range(15):
            with contextlib.suppress(ConnectionError):
                client.sendall(b"%x\r\n%b\r\n" % (len(part), part))
            server.pass_time(LIMIT_S / 4)
        assert server.inside(lambda: bool(server.registry.tasks)) is lasts


def test_time_that_the_application_takes_is_nobodys_delay(application: Application) -> None:
    """While the application does not wait for the body, the body is not late."""
    with served(application, body_timeout_s=LIMIT_S) as server, server.connect() as client:
        client.sendall(post("/wait", b"body"))
        assert eventually(lambda: application.begun == ["/wait"])
        server.pass_time(3 * LIMIT_S)
        server.inside(application.gate.set)
        assert one_answer(client) == (200, b"body")


# -- slow readers ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_client_that_does_not_read_is_cut(application: Application) -> None:
    """A large answer is held back, bounded, and given up after write_timeout_s."""
    with served(application, write_timeout_s=LIMIT_S) as server, server.connect() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(post("/big/100000000"))
        assert eventually(lambda: server.inside(lambda: any(one.write_deadline < inf for one in server.registry.open)))
        assert 0 < buffered(server) <= 2 * WRITE_BYTES
        server.pass_time(0.9 * LIMIT_S)
        assert open_connections(server) == 1
        assert 0 < buffered(server) <= 2 * WRITE_BYTES
        server.pass_time(0.2 * LIMIT_S)
        assert server.registry.counts["slow_reader"] == 1
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

    def write_eof(self) -> None: ...


async def test_rest_of_a_body_is_no_new_request_when_the_answer_is_taken_late(application: Application) -> None:
    """An early answer that fills the buffer: what comes of the body meanwhile is dropped, and the request is not begun again."""
    registry = ConnectionRegistry(application, Settings(), connections_max=10)
    wire, protocol = Wire(), Connection(registry, asyncio.get_running_loop())
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
    assert application.begun == ["/ignore", "/echo"]
    assert wire.written[1].endswith(b"next")


# -- many connections --------------------------------------------------------------------------------------------------


async def test_call_under_way_keeps_its_connection(application: Application) -> None:
    """Below ASGI, too: a newcomer is refused, and the call is answered."""
    under_way: list[CallCycle] = []

    class Quick:
        reads: frozenset[bytes] = frozenset()

        def takes(self, request: Request, body_bytes: int) -> bool:
            return True

        def begin_call(self, request: Request, body: bytes, cycle: CallCycle) -> None:
            cycle.attribute("one")
            under_way.append(cycle)

    registry = ConnectionRegistry(application, Settings(), connections_max=1, quick=Quick())
    wires = [Wire(), Wire()]
    for wire in wires:
        wire.protocol = Connection(registry, asyncio.get_running_loop())
    first, newcomer = wires
    first.protocol.connection_made(first)
    for number in range(2):  # the second by a connection whose credential is known
        first.protocol.data_received(post("/echo"))
        if number:
            newcomer.protocol.connection_made(newcomer)
        under_way[number].answer(200, [(b"content-length", b"0")], b"")
        first.protocol.resume_writing()
    assert [data.split(b" ")[1] for wire in wires for data in wire.written] == [b"200", b"200", b"503"]
    for wire in wires:
        wire.protocol.connection_lost(None)


def test_new_connection_takes_the_place_of_a_silent_one(application: Application) -> None:
    """Those that never sent a request go first, the oldest first; those that were answered stay."""
    with served(application, connections_max=4) as server:
        with server.connect() as known, server.connect() as first, server.connect() as second, server.connect() as third:
            for client in (known, first):
                echoes(client)
            for client in (second, third):
                client.sendall(b"POST /echo HTTP")
            assert eventually(lambda: server.inside(lambda: len(server.registry.open)) == 4)
            with server.connect() as fresh:
                echoes(fresh, b"served")
                assert read_all(second) == b""
                for client in (known, first):
                    echoes(client, b"still")
            third.sendall(b"/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx")
            assert one_answer(third) == (200, b"x")
        assert server.settled()


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
        serves(server)
        for client in workers:
            client.close()
        assert server.settled()


# -- shares of them ----------------------------------------------------------------------------------------------------

LATE = b"POST /echo HTTP/1.1\r\nHost: x\r\nAuthorization: %b\r\nContent-Length: 9\r\n\r\n"


def credential(headers: Headers) -> str:
    """By the header alone."""
    return dict(headers).get(b"authorization", b"nobody").decode()


def begin_late(server: Served, application: Application, name: bytes, *, open_files: contextlib.ExitStack) -> socket.socket:
    """A client whose body does not come; its request has begun when this returns."""
    client = open_files.enter_context(server.connect())
    begun = len(application.begun)
    client.sendall(LATE % name)
    assert eventually(lambda: len(application.begun) == begun + 1)
    return client


def test_connection_whose_body_is_latest_makes_room(application: Application) -> None:
    """However it drips; its client learns so, and the bodies of others still may come."""
    with served(application, connections_max=4) as server, contextlib.ExitStack() as opened:
        first = begin_late(server, application, b"one", open_files=opened)
        server.pass_time(1.0)
        others = [begin_late(server, application, b"one", open_files=opened) for _ in range(3)]
        first.sendall(b"1")
        serves(server)
        assert problem_of(read_all(first))["code"] == "body_timeout"
        for client in others:
            client.sendall(b"123456789")
            assert one_answer(client) == (200, b"123456789")
        assert server.registry.counts["evicted"] == 1


def test_credential_with_more_than_its_share_makes_room(application: Application) -> None:
    """Late bodies of one credential cost no other one its connections, not even those at rest."""
    with served(application, connections_max=4, name_of=credential) as server, contextlib.ExitStack() as opened:
        resting = opened.enter_context(server.connect())
        echoes(resting, headers="Authorization: two\r\n")
        first = begin_late(server, application, b"one", open_files=opened)
        server.pass_time(1.0)
        for _ in range(7):
            begin_late(server, application, b"one", open_files=opened)
        assert status_of(read_all(first)) == 408
        echoes(resting, b"still", "Authorization: two\r\n")


def test_no_credential_has_all_connections_at_work(application: Application) -> None:
    """Requests that are being answered make no room, so the last eighth is kept from a credential that has all others."""
    with served(application, connections_max=8, name_of=credential) as server, contextlib.ExitStack() as opened:
        busy = [opened.enter_context(server.connect()) for _ in range(7)]
        for client in busy:
            client.sendall(post("/wait", b"done", "Authorization: one\r\n"))
        assert eventually(lambda: len(application.begun) == 7)
        refused = server.ask(post("/wait", b"more", "Authorization: one\r\n"))
        assert problem_of(refused)["code"] == "too_many_connections"
        with server.connect() as other:
            echoes(other, b"served", "Authorization: two\r\n")
        server.inside(application.gate.set)
        for client in busy:
            assert one_answer(client) == (200, b"done")


def test_calls_count_for_their_credential(node: Any, tmp_path: Path) -> None:
    """Those that are answered below ASGI, too: refused while others of the credential are under way, and served after them."""
    app = create_app(node, Settings(token_file=write_tokens(tmp_path, token_of("one", INVOKE), token_of("two", INVOKE))))
    node.hold = True

    def call(name: str) -> bytes:
        return post("/v1/procedures/put", b'{"item": 7}', f"Authorization: Bearer {name}\r\n")

    with (
        served(app, quick=app.quick, connections_max=8, name_of=app.name_of) as server,
        contextlib.ExitStack() as opened,
    ):
        busy = []
        for number in range(1, 8):
            busy.append(opened.enter_context(server.connect()))
            busy[-1].sendall(call("one"))
            assert eventually(lambda number=number: len(node.waiting) == number)  # type: ignore[misc]
        refused = opened.enter_context(server.connect())
        refused.sendall(call("one"))
        assert one_answer(refused)[0] == 503
        other = opened.enter_context(server.connect())
        other.sendall(call("two"))
        assert eventually(lambda: len(node.waiting) == 8)
        server.inside(node.release)
        assert [one_answer(client)[0] for client in (*busy, other)] == 8 * [200]


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
            lambda: server.inside(lambda: bool(server.registry.open)) and application.begun == ([path] if path else [])
        )
        if reset:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        client.close()
        if path != "/half/waits" or reset:
            server.inside(application.gate.set)
        assert eventually(lambda: not server.registry.open)
        server.inside(application.gate.set)
        assert server.settled()
        assert eventually(lambda: descriptors() == files)
        serves(server)
    assert logs == []


def test_peer_that_vanishes_is_found_by_the_kernel(server: Served) -> None:
    """A machine that is gone without a word is probed; what it does not acknowledge in write_timeout_s ends the connection."""
    with server.connect() as client:
        client.sendall(post("/echo"))
        one_answer(client)
        kept, silence_ms = server.inside(
            lambda: [
                next(iter(server.registry.open))._transport.get_extra_info("socket").getsockopt(*option)
                for option in ((socket.SOL_SOCKET, socket.SO_KEEPALIVE), (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
            ]
        )
    assert (bool(kept), silence_ms) == (True, 30_000)


def test_unauthenticated_connections_stay_strangers(application: Application) -> None:
    """An answer of 401 earns no place: such connections go before one that was accepted, though it has rested longer."""
    with served(application, connections_max=2) as server, server.connect() as good, server.connect() as bad:
        echoes(good)
        bad.sendall(post("/ignore/401"))
        one_answer(bad)
        with server.connect() as fresh:
            echoes(fresh, b"served")
            assert read_all(bad) == b""
            echoes(good, b"still")


@pytest.mark.slow
def test_quick_answers_that_nobody_reads_stop_the_requests(application: Application) -> None:
    """Answers that are given at once are bounded too, also when each request comes by itself."""

    class Quick:
        reads: frozenset[bytes] = frozenset()

        def takes(self, request: Request, body_bytes: int) -> bool:
            return True

        def begin_call(self, request: Request, body: bytes, exchange: CallCycle) -> None:
            exchange.answer(200, [(b"content-length", b"%d" % WRITE_BYTES)], b"x" * WRITE_BYTES)

    with served(application, quick=Quick(), write_timeout_s=0.5) as server, server.connect() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peaks = [0]
        assert eventually(lambda: bool(server.registry.open))

        def cut() -> bool:
            with contextlib.suppress(ConnectionError):
                client.sendall(post("/echo"))
            peaks.append(buffered(server))
            return open_connections(server) == 0

        assert eventually(cut, every_s=0.001)
        assert max(peaks) <= 3 * WRITE_BYTES
        assert server.settled()


def test_connection_at_rest_makes_room_before_a_late_body(application: Application) -> None:
    """Of one credential, what costs its client least goes first."""
    with served(application, connections_max=2) as server, contextlib.ExitStack() as opened:
        late = begin_late(server, application, b"one", open_files=opened)
        resting = opened.enter_context(server.connect())
        echoes(resting)
        serves(server)
        assert read_all(resting) == b""
        late.sendall(b"123456789")
        assert one_answer(late) == (200, b"123456789")
