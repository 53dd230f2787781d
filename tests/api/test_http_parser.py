"""Cutting bytes into requests: every way of arriving gives the same reading, and doubtful bytes give none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cmdlog.api.connections.http_parser import URL_BYTES_MAX, HttpParser
from cmdlog.api.gate.problem import Problem

HEAD = b"POST /a?b=c HTTP/1.1\r\nHost: x\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
UPGRADE = HEAD + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"


@dataclass
class Read:
    """What a connection's bytes were taken for."""

    requests: list[tuple[str, str, bytes, list[tuple[bytes, bytes]], bytes]] = field(default_factory=list)
    code: str = ""  # why nothing more was read
    unfinished: bool = False


def parser(*, head_bytes_max: int = 16384, headers_max: int = 100) -> HttpParser:
    """One with the limits of the server."""
    return HttpParser(head_bytes_max=head_bytes_max, headers_max=headers_max)


def read(pieces: list[bytes], one: HttpParser | None = None) -> Read:
    """Feeds the pieces as a connection would."""
    found, one = Read(), one or parser()
    for piece in pieces:
        rest = piece
        while rest:
            try:
                rest = one.feed(rest)
            except Problem as problem:
                found.code = problem.code
                return found
            if one.complete:
                request = one.request
                assert request is not None
                found.requests.append((request.method, request.path, request.query, request.headers, one.take_body()))
                one.start_next()
                found.unfinished = False
            else:
                found.unfinished = True
    return found


def with_body(body: bytes) -> bytes:
    """A request with a stated length."""
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


def in_chunks(*chunks: bytes) -> bytes:
    """A request in chunks."""
    return CHUNKED + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


def test_request_is_taken_apart() -> None:
    """Method, path, query, headers in lower case, body."""
    found = read([with_body(b"body")])
    assert found.requests == [("POST", "/a", b"b=c", [(b"host", b"x"), (b"content-length", b"4")], b"body")]
    assert not found.unfinished


def test_bytes_behind_a_request_are_given_back_untouched() -> None:
    """What is no longer the request's is the next one's, whatever it looks like."""
    one = parser()
    for first in (
        with_body(b"{}"),
        in_chunks(b"a", b"bc"),
        HEAD + b"\r\n",
        UPGRADE + b"Content-Length: 2\r\n\r\n{}",
        UPGRADE + b"\r\n",
    ):
        assert one.feed(first + b"GET / rubbish") == b"GET / rubbish"
        assert one.complete
        one.start_next()


@pytest.mark.slow
@pytest.mark.parametrize(
    "request_bytes",
    [
        with_body(b"0123456789"),
        with_body(b"\r\n\r\n\r\n"),
        with_body(b""),
        in_chunks(b"abc", b"\r\n\r\n", b"d" * 20),
        CHUNKED + b"3;name=value\r\nabc\r\n0\r\nTrailer: t\r\n\r\n",
        UPGRADE + b"Content-Length: 7\r\n\r\n\r\n\r\nabc",
        b"\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
def test_every_cut_gives_the_same_reading(request_bytes: bytes) -> None:
    """Two such requests in a row, cut in two at every place and byte by byte, are the same two requests."""
    both = request_bytes * 2
    whole = read([both])
    assert len(whole.requests) == 2
    assert whole.requests[0] == whole.requests[1]
    assert not whole.unfinished
    for at in range(1, len(both)):
        assert read([both[:at], both[at:]]) == whole, at
    assert read([both[at : at + 1] for at in range(len(both))]) == whole


REQUESTS = st.one_of(
    st.binary(max_size=40).map(with_body),
    st.lists(st.binary(min_size=1, max_size=20), max_size=4).map(lambda chunks: in_chunks(*chunks)),
    st.binary(max_size=9).map(lambda body: UPGRADE + b"Content-Length: %d\r\n\r\n" % len(body) + body),
)


@pytest.mark.slow
@given(st.lists(REQUESTS, min_size=1, max_size=5), st.data())
@settings(max_examples=50, deadline=None)
def test_any_cutting_of_any_requests_gives_the_same_reading(requests: list[bytes], data: st.DataObject) -> None:
    """However many requests come in however many pieces: as many come out, in order, with their bodies."""
    stream = b"".join(requests)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    found = read(pieces)
    assert found == read([stream])
    assert len(found.requests) == len(requests)
    assert not found.unfinished


def test_bodies_are_what_was_sent() -> None:
    """Stated lengths and chunks of any size bring the same bytes."""
    body = bytes(range(256)) * 40
    for size in (1, 7, 4096):
        chunks = [body[at : at + size] for at in range(0, len(body), size)]
        assert read([in_chunks(*chunks)]).requests[0][4] == body
    assert read([with_body(body)]).requests[0][4] == body


SMUGGLED = {
    "length and chunks": b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and length": b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
    "two lengths": b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "the same length twice": b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "list of lengths": b"Content-Length: 3, 3\r\n\r\nabc",
    "signed length": b"Content-Length: +3\r\n\r\nabc",
    "negative length": b"Content-Length: -3\r\n\r\nabc",
    "no length": b"Content-Length: \r\n\r\n",
    "hexadecimal length": b"Content-Length: 0x3\r\n\r\nabc",
    "length beyond 64 bits": b"Content-Length: 18446744073709551616\r\n\r\n",
    "other coding": b"Transfer-Encoding: gzip\r\n\r\n",
    "coding before chunks": b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "coding behind chunks": b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "no coding": b"Transfer-Encoding: identity\r\n\r\n",
    "nearly chunks": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunks twice": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "vertical tab": b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "space before the colon": b"Content-Length : 3\r\n\r\nabc",
    "folded line": b"A: b\r\n c\r\n\r\n",
    "bare line feed": b"A: b\nContent-Length: 3\r\n\r\nabc",
    "bare carriage return": b"A: b\rc\r\n\r\n",
    "empty line of one line feed": b"\n",
    "zero byte": b"A: b\0c\r\n\r\n",
    "no name": b": b\r\n\r\n",
    "no colon": b"Abc\r\n\r\n",
    "chunk size that is none": b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "chunk size beyond 64 bits": b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
    "chunk that is longer": b"Transfer-Encoding: chunked\r\n\r\n1\r\nxy\r\n0\r\n\r\n",
    "chunk size with a line feed": b"Transfer-Encoding: chunked\r\n\r\n1\nx\r\n0\r\n\r\n",
    "chunk size with a space": b"Transfer-Encoding: chunked\r\n\r\n1 \r\nx\r\n0\r\n\r\n",
    "upgrade with chunks": b"Connection: Upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("rest", SMUGGLED.values(), ids=SMUGGLED.keys())
def test_what_two_readers_could_take_differently_is_refused(rest: bytes) -> None:
    """No request comes out of bytes whose framing is doubtful, in one piece or byte by byte."""
    stream = HEAD + rest
    for pieces in ([stream], [stream[at : at + 1] for at in range(len(stream))]):
        found = read(pieces)
        assert (found.code, found.requests) == ("bad_request", [])


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense",
        b"get / HTTP/1.1",
        b"FOO / HTTP/1.1",
        b" GET / HTTP/1.1",
        b"GET / HTTP/1.1 ",
        b"GET /\xc3\xa9 HTTP/1.1",
        b"GET /a\tb HTTP/1.1",
        b"GET /a\0b HTTP/1.1",
        b"GET /",
        b"GET / HTTP/2.0",
        b"GET / HTTP/1.2",
        b"PRI * HTTP/2.0",
        b"CONNECT host:1 HTTP/1.1",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_first_line_that_is_none_is_refused(line: bytes) -> None:
    """Other protocols, versions and forms get a code, not a guess."""
    assert read([line + b"\r\nHost: x\r\n\r\n"]).code == "bad_request"


def test_chunks_of_http_1_0_are_refused() -> None:
    """HTTP/1.0 knows no chunks: whoever stands between would read the body otherwise."""
    assert read([b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"]).code == "bad_request"


def test_address_of_a_proxy_and_escapes_are_understood() -> None:
    """An absolute address means its path; escapes are decoded once."""
    paths = {
        b"http://x/a?b": "/a",
        b"HTTPS://X": "/",
        b"/a%2520b": "/a%20b",
        b"/%ff": "/\ufffd",
        b"//a": "//a",
        b"*": "*",
    }
    for target, path in paths.items():
        assert read([b"GET " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n"]).requests[0][1] == path


def test_head_beyond_its_limits_is_refused() -> None:
    """Too many bytes, too many headers and too long an address have a code each; right at the limit all is well."""
    room = 2048 - len(HEAD) - len(b"A: \r\n\r\n")
    for size, code in ((room, ""), (room + 1, "headers_too_large"), (100_000, "headers_too_large")):
        stream = HEAD + b"A: " + b"x" * size + b"\r\n\r\n"
        for pieces in ([stream], [stream[at : at + 100] for at in range(0, len(stream), 100)]):
            assert read(pieces, parser(head_bytes_max=2048)).code == code
    for count, code in ((8, ""), (9, "headers_too_large")):
        stream = b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * count + b"\r\n"
        assert read([stream], parser(headers_max=9)).code == code
    for size, code in ((URL_BYTES_MAX, ""), (URL_BYTES_MAX + 1, "url_too_long"), (1 << 20, "url_too_long")):
        stream = b"GET /" + b"x" * (size - 1) + b" HTTP/1.1\r\nHost: x\r\n\r\n"
        for pieces in ([stream], [stream[at : at + 1000] for at in range(0, len(stream), 1000)]):
            assert read(pieces).code == code


def fed_until_refused(one: HttpParser, pieces: Iterable[bytes]) -> tuple[int, str]:
    """Bytes that were taken before the refusal, and its code."""
    fed = 0
    for piece in pieces:
        try:
            one.feed(piece)
        except Problem as problem:
            return fed, problem.code
        fed += len(piece)
    return fed, ""


@pytest.mark.parametrize("endless", [b"\r\n", b"A: b\r\n"])
def test_head_that_never_ends_is_refused_at_the_limit(endless: bytes) -> None:
    """Empty lines before a request, and headers without end, cost at most the limit."""
    begin = HEAD if endless.startswith(b"A") else b""
    fed, code = fed_until_refused(parser(head_bytes_max=2048), [begin, *[endless] * 10_000])
    assert code == "headers_too_large"
    assert 2048 - len(endless) < fed <= 2048


@pytest.mark.parametrize(("begin", "endless"), [(b"1;", b"x" * 100), (b"0\r\n", b"A: b\r\n" * 20)])
def test_chunk_extensions_and_trailers_are_bounded(begin: bytes, endless: bytes) -> None:
    """Bytes of chunked bodies that are no body cannot go on for ever."""
    fed, code = fed_until_refused(parser(head_bytes_max=2048), [CHUNKED + begin, *[endless] * 10_000])
    assert code == "bad_request"
    assert fed <= 2048 + len(CHUNKED)


def test_many_small_chunks_are_no_overhead() -> None:
    """A body in chunks of one byte is read to its end, and held as one piece."""
    one = parser(head_bytes_max=1024)
    assert one.feed(in_chunks(*[b"x"] * 5000)) == b""
    assert one.complete
    assert one.take_body() == b"x" * 5000


def test_trailers_add_nothing_to_the_head() -> None:
    """What the gate has seen is all there is: a credential or a host behind the body is not taken over."""
    found = read([CHUNKED + b"1\r\nx\r\n0\r\nAuthorization: Bearer x\r\nHost: y\r\n\r\n", with_body(b"{}")])
    assert [headers for _, _, _, headers, _ in found.requests] == [
        [(b"host", b"x"), (b"transfer-encoding", b"chunked")],
        [(b"host", b"x"), (b"content-length", b"2")],
    ]


def test_blanks_around_values_are_left_out() -> None:
    """A value is the same with blanks before and behind it."""
    found = read([b"GET / HTTP/1.1\r\nHost: x\r\nA: \t b c \t\r\nContent-Length: 0 \r\n\r\n"])
    assert found.requests[0][3] == [(b"host", b"x"), (b"a", b"b c"), (b"content-length", b"0")]


def test_offer_of_another_protocol_is_passed_over() -> None:
    """A request that offers h2c or a websocket is served as it is, with its body; what follows is served too."""
    found = read([UPGRADE + b"Content-Length: 2\r\n\r\n{}" + with_body(b"next")])
    assert [body for *_, body in found.requests] == [b"{}", b"next"]


def test_body_that_nobody_reads_is_counted_and_dropped() -> None:
    """After its answer a request's body takes no memory."""
    one = parser()
    one.feed(HEAD + b"Content-Length: 100000\r\n\r\n" + b"x" * 100)
    one.discard_body()
    one.feed(b"x" * 90_000)
    assert (one.waiting, one.body_bytes, one.complete) == (0, 90_100, False)
    assert one.feed(b"x" * 9_900 + b"rest") == b"rest"
    assert one.complete


MUTATED = st.tuples(
    st.sampled_from([with_body(b"body"), in_chunks(b"a", b"bc"), UPGRADE + b"\r\n"]),
    st.lists(st.tuples(st.integers(0, 200), st.binary(max_size=3)), max_size=4),
)
Mutated = tuple[bytes, list[tuple[int, bytes]]]
GARBAGE: st.SearchStrategy[Mutated] = st.one_of(st.binary(max_size=300).map(lambda data: (data, [])), MUTATED)


def read_or_refused(mutated: Mutated, size: int) -> None:
    """Requests, a code, or a wait for more; never another error, and the same in pieces of this size."""
    stream, changes = mutated
    for at, put in changes:
        stream = stream[:at] + put + stream[at + 1 :]
    whole = read([stream])
    cut = read([stream[at : at + size] for at in range(0, len(stream), size)])
    assert (whole.requests, whole.code) == (cut.requests, cut.code)


@pytest.mark.slow
@given(GARBAGE, st.integers(1, 50))
@settings(max_examples=80, deadline=None)
def test_garbage_is_read_or_refused(mutated: Mutated, size: int) -> None:
    """Whatever bytes come, they are understood or refused, and cutting them changes nothing."""
    read_or_refused(mutated, size)


@pytest.mark.fuzz
@given(GARBAGE, st.integers(1, 50))
@settings(max_examples=50_000, deadline=None)
def test_garbage_is_read_or_refused_for_minutes(mutated: Mutated, size: int) -> None:
    """The same with more of it."""
    read_or_refused(mutated, size)


@pytest.mark.parametrize(
    ("version", "hosts", "code"),
    [
        (b"1.1", [], "bad_request"),
        (b"1.1", [b"x"], ""),
        (b"1.1", [b""], ""),  # of an address without a server
        (b"1.1", [b"x", b"x"], "bad_request"),
        (b"1.1", [b"x", b"y"], "bad_request"),
        (b"1.0", [], ""),
        (b"1.0", [b"x"], ""),
        (b"1.0", [b"x", b"y"], "bad_request"),
    ],
)
@pytest.mark.parametrize("target", [b"/", b"http://x/"])
def test_request_has_one_host(version: bytes, hosts: list[bytes], code: str, target: bytes) -> None:
    """RFC 9112, section 3.2: none in HTTP/1.1, or two, is an error of the request, whatever they say."""
    head = b"GET %b HTTP/%b\r\n" % (target, version) + b"".join(b"hOsT: %b\r\n" % host for host in hosts)
    disagree = target != b"/" and hosts == [b""]
    assert read([head + b"\r\n"]).code == ("bad_request" if disagree else code)


@pytest.mark.parametrize(
    "target",
    [
        b"http://y/", b"http://x:80/", b"http://x.y/", b"http://u@x/", b"http://y?x", b"http://y#@x/", b"http://x%2f/", b"https://y/",
        b"ftp://x/", b"//x/", b"x", b"x:80", b"http:///", b"http://", b"http:/x", b"http://x\\@y/", b"**",
    ],
)  # fmt: skip
def test_address_of_another_server_is_refused(target: bytes) -> None:
    """The server in the address and the Host header are the same, whatever case they are in, or there is no request."""
    found = read([b"GET " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n"])
    assert found.code == "bad_request" or found.requests[0][1] == target.decode() == "//x/"


def test_server_of_an_address_is_checked_as_host_is() -> None:
    """HTTP/1.0 may leave out the header: the gate then gets the server of the address in its place."""
    found = read([b"GET http://evil.example:1/a HTTP/1.0\r\n\r\n"])
    assert found.requests[0][3] == [(b"host", b"evil.example:1")]


def test_each_request_of_a_connection_has_its_own_host() -> None:
    """One that came before does not count, and neither does one behind a chunked body."""
    good = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    assert read([good + good]).code == ""
    assert read([good + b"GET / HTTP/1.1\r\n\r\n"]).code == "bad_request"
    trailer = CHUNKED + b"0\r\nHost: y\r\n\r\n"
    assert [len(read([trailer + good]).requests), read([trailer + good]).code] == [2, ""]
