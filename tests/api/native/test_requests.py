"""The gate's steps in C: whatever they read, the parser and the Python beside them read alike."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cmdlog.api.connections.http_parser import CallRequest, HttpParser
from cmdlog.api.gate import strict_json
from cmdlog.api.gate.problem import Problem
from cmdlog.api.gate.request import READ, TWICE, pick_headers
from cmdlog.api.gate.request_trace import Picked
from cmdlog.api.native import steps
from cmdlog.api.routes.service import LARGE_BODY_BYTES
from cmdlog.node.slot_map import make_routes
from procedures import InvalidParameters
from procedures.samples import bank

pytestmark = pytest.mark.skipif(steps is None, reason="no C compiler")

HEAD_BYTES_MAX = 512
HEADERS_MAX = 8
START = b"POST /v1/procedures/"
PLAIN = START + b"transfer HTTP/1.1\r\nHost: localhost:8642\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%b\r\n%b"

Call = tuple[str, Picked, bytes]


def parser() -> HttpParser:
    """One with small limits."""
    return HttpParser(head_bytes_max=HEAD_BYTES_MAX, headers_max=HEADERS_MAX)


def read_in_c(data: bytes) -> Call | None:
    """Path, headers and body; None: left to the parser."""
    found: Call | None = steps.read_call(data, HEAD_BYTES_MAX, HEADERS_MAX, READ)
    return found


def read_by_framer(data: bytes) -> Call | None:
    """The same of a request that the parser takes as a whole, and that a call may be; else None."""
    one = parser()
    try:
        left = one.feed(data)
    except Problem:
        return None
    request = one.request
    if left or request is None or not one.complete:
        return None
    plain = (request.method, request.version, request.query, request.keep_alive, request.expects_continue)
    picked = pick_headers({"headers": request.headers})
    if plain != ("POST", "1.1", b"", True, False) or TWICE in picked:
        return None
    return request.path, picked, one.take_body()


def call(body: bytes = b"{}", more: bytes = b"") -> bytes:
    """A request as clients send it, with further headers."""
    return PLAIN % (len(body), more, body)


# -- what is read --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        call(),
        call(b""),
        call(b'{"item": 1}', b"Authorization: Bearer abc\r\nUser-Agent: x/1 (y; z)\r\nAccept: */*\r\n"),
        call(b"{}", b"Connection: keep-alive\r\n"),
        call(b"{}", b"cmdlog-session:  0190b6f1-0000-7000-8000-000000000000; number=1; floor=0  \r\nX-Empty:\r\n"),
        START + b"a-B_9 HTTP/1.1\r\ncontent-length:2\r\nHOST: x\r\n\r\n{}",
    ],
)
def test_ordinary_call_is_read_at_once(data: bytes) -> None:
    """Path, the headers that mean something, and the body, as the parser reads them."""
    found = read_in_c(data)
    assert found is not None
    assert found == read_by_framer(data)


@pytest.mark.parametrize(
    "data",
    [
        call()[:-1],
        call() + b"x",
        call(b"{}", b"Content-Length: 2\r\n"),
        call(b"{}", b"Host: other\r\n"),
        call(b"{}", b"Idempotency-Key: a\r\nIdempotency-Key: b\r\n"),
        call(b"{}", b"Transfer-Encoding: chunked\r\n"),
        call(b"{}", b"Expect: 100-continue\r\n"),
        call(b"{}", b"Upgrade: h2c\r\nConnection: upgrade\r\n"),
        call(b"{}", b"Connection: close\r\n"),
        call(b"{}", b"X: a\r\n b\r\n"),
        call(b"{}", b"X: a\tb\r\n"),
        call(b"{}", b"X: \xff\r\n"),
        call(b"{}", b"X : a\r\n"),
        call(b"{}", b"X: a\n"),
        call(b"{}", b"A: 1\r\n" * HEADERS_MAX),
        call(b"{}", b"A: %b\r\n" % (b"1" * HEAD_BYTES_MAX)),
        call().replace(b"HTTP/1.1", b"HTTP/1.0"),
        call().replace(b"POST", b"post"),
        call().replace(b"transfer", b"transfer?a=1"),
        call().replace(b"transfer", b"trans%66er"),
        call().replace(b"transfer", b"t" * 300),
        call().replace(b"Host: localhost:8642\r\n", b""),
        call().replace(b"Content-Length: 2", b"Content-Length: 02"),
        call().replace(b"Content-Length: 2", b"Content-Length: +2"),
        call().replace(b"Content-Length: 2\r\n", b""),
        b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n",
        b"",
        START,
    ],
)
def test_everything_else_is_left_to_the_framer(data: bytes) -> None:
    """However legal: what is not the ordinary form, not whole, or followed by more bytes."""
    assert read_in_c(data) is None


PIECES = (
    b"Host: a\r\n", b"host:b\r\n", b"Content-Length: 2\r\n", b"content-length: 3\r\n", b"Connection: keep-alive\r\n",
    b"Connection: close\r\n", b"Transfer-Encoding: chunked\r\n", b"Idempotency-Key: k\r\n", b"Prefer: a\r\n", b"X: y\r\n",
    b"traceparent: t\r\n", b"Origin: http://a\r\n", b" folded\r\n", b"Bad Name: x\r\n", b"NoColon\r\n", b"\r\n",
    b"TE: trailers\r\n",
)  # fmt: skip


@given(
    path=st.text("abz09_-/%?~", max_size=6),
    headers=st.lists(st.sampled_from(PIECES), max_size=7),
    body=st.binary(max_size=5),
    change=st.none() | st.tuples(st.integers(0, 400), st.binary(min_size=1, max_size=2)),
)
@settings(max_examples=100)
def test_no_request_is_read_in_two_ways(path: str, headers: list[bytes], body: bytes, change: tuple[int, bytes] | None) -> None:
    """Of random requests, whole or with a byte changed: what is read at once, the parser takes for the same call."""
    data = b"%b%b HTTP/1.1\r\n%b\r\n%b" % (START, path.encode(), b"".join(headers), body)
    if change is not None:
        at, put = change
        data = data[:at] + put + data[at + len(put) :]
    found = read_in_c(data)
    if found is not None:
        assert found == read_by_framer(data)


@given(cut=st.integers(0, 200), put=st.integers(0, 255))
def test_one_changed_byte_of_an_ordinary_call_is_read_alike_or_left(cut: int, put: int) -> None:
    """Any byte at any place."""
    data = bytearray(call(b'{"a": 1}', b"Authorization: Bearer abc\r\nConnection: keep-alive\r\n"))
    assume(cut < len(data))
    data[cut] = put
    found = read_in_c(bytes(data))
    if found is not None:
        assert found == read_by_framer(bytes(data))


def test_framer_is_complete_after_a_call_and_takes_the_next() -> None:
    """A call that was read at once is a request like any other to its connection."""
    one = parser()
    for number in range(3):
        request = one.take_call(call(b"%d" % number), READ)
        assert isinstance(request, CallRequest)
        assert one.complete
        assert (one.request, one.take_body(), one.waiting) == (request, b"%d" % number, 0)
        one.start_next()
        assert one.feed(call(b"{}")) == b""
        one.start_next()


def test_a_head_that_has_begun_is_not_begun_again() -> None:
    """Bytes that look like a call, within another request's head, belong to that."""
    one = parser()
    assert one.feed(b"POST /x HTTP/1.1\r\n") == b""
    assert one.take_call(call(), READ) is None


# -- lines of a batch ----------------------------------------------------------------------------------------------------

ROUTES = make_routes(bank.db)
LINES = (
    b'{"procedure":"transfer","params":{"branch":1,"source":2,"target":3,"amount":4}}',
    b' { "params" : {"branch":1, "source":2,"target":3,"amount":4}, "procedure":"transfer" , "number": 7} ',
    b'{"procedure":"set_rate","params":{"name":"a:b","basis_points":1}}',
    b'{"procedure":"set_rate","params":{"name":"a","basis_points":1},"number":0}',
)


def parsed(line: bytes) -> tuple[str, list[Any], Any] | None:
    """What a line says, by the gate's Python, if that is a call and maybe a number; else None."""
    try:
        entry = strict_json.loads_strict(line)
    except strict_json.NotStrict:
        return None
    if type(entry) is not dict or not {"procedure", "params"} <= entry.keys() <= {"procedure", "params", "number"}:
        return None
    route = ROUTES.get(entry["procedure"]) if type(entry["procedure"]) is str else None
    try:
        return None if route is None else (route.name, route.procedure.bind(entry["params"]), entry.get("number"))
    except InvalidParameters:
        return None


def read_line(line: bytes | None) -> tuple[str, list[Any], Any] | None:
    """The same in C; None: left to the Python."""
    found = steps.read_line(line, ROUTES, orjson.loads)
    return None if found is None else (found[0].name, found[1], found[2])


@pytest.mark.parametrize("line", [*LINES, LINES[2].replace(b"a:b", b"\\u003a" + b"a" * 4096)])
def test_ordinary_line_is_read_at_once(line: bytes) -> None:
    """Procedure and bound parameters, with a number or without."""
    found = read_line(line)
    assert found is not None
    assert found == parsed(line)


@pytest.mark.parametrize(
    "line",
    [
        None, b"", b"{", b"[]", b"{}", LINES[0] + b"x", LINES[0][:-1],
        b'{"procedure":"transfer","procedure":"transfer","params":{}}',
        b'{"procedure":"transfer","params":{"branch":1,"branch":2,"source":2,"target":3,"amount":4}}',
        b'{"procedure":"transfer","params":{"branch":1,"source":2,"target":3,"amount":4},"key":"k"}',
        b'{"procedure":"transfer","params":{"branch":1,"source":2,"target":3,"amount":4},"number":true}',
        b'{"procedure":"transfer","params":{"branch":1,"source":2,"target":3,"amount":4},"session":"s"}',
        b'{"procedure":"transfer","params":{"branch":1,"source":2,"target":3,"amount":4},"floor":1}',
        b'{"procedure":"transfer","params":{"branch":1,"source":2,"target":3,"amount":9223372036854775808}}',
        b'{"procedure":"transfer","params":{"branch":1,"source":2,"target":3,"amount":"4"}}',
        b'{"procedure":"none","params":{}}', b'{"procedure":["transfer"],"params":{}}', b'{"procedure":"transfer","params":null}',
        b'{"procedure":"set_rate","params":{"name":"\\u0000","basis_points":1}}',
        b'{"procedure":"set_rate","params":{"name":[%b],"basis_points":1}}' % (b"[" * 64 + b"]" * 64),
        LINES[2] + b" " * LARGE_BODY_BYTES,
    ],
)  # fmt: skip
def test_every_other_line_is_left_to_the_python(line: bytes | None) -> None:
    """What is wrong, long, or says more than its call and a number."""
    assert read_line(line) is None


@given(line=st.sampled_from(LINES), at=st.integers(0, 110), put=st.binary(min_size=1, max_size=3), over=st.booleans())
@settings(max_examples=100)
def test_no_line_is_read_in_two_ways(line: bytes, at: int, put: bytes, over: bool) -> None:
    """With bytes changed or put in anywhere: what is read at once says the same to the Python."""
    changed = line[:at] + put + line[at + len(put) if over else at :]
    found = read_line(changed)
    if found is not None:
        assert found == parsed(changed)
