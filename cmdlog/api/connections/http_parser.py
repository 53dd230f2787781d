"""Cutting one connection's bytes into requests: head, body, and what already belongs to the next one.

One rule: there is one reading of the bytes. llhttp parses, strictly; what two readers could understand differently (two lengths,
a length and chunks, folded lines, bare line feeds, other codings) is refused, and the bytes after a request are not looked at
before it is answered. No socket and no clock here.

A head ends with the first empty line, and so does a chunked body, after its last chunk or trailer. Bytes are given to the parser
up to there and no further: thus it is always between two requests when it has finished one.
"""

from __future__ import annotations

import re
from typing import Final, NoReturn
from urllib.parse import unquote

import httptools

from cmdlog.api.gate.problem import Problem
from cmdlog.api.native import steps

EMPTY_LINE: Final = b"\r\n\r\n"
URL_BYTES_MAX: Final = 8192
CONTENT_LENGTH: Final = b"content-length"
TRANSFER_ENCODING: Final = b"transfer-encoding"
EXPECT: Final = b"expect"
BLANKS: Final = (b" ", b"\t")
HOST: Final = b"host"
ASTERISK: Final = b"*"  # the target of OPTIONS for the server as a whole
SERVER: Final = re.compile(rb"https?://([^/?#]+)", re.IGNORECASE)  # of an absolute address
FRAMING: Final = frozenset((CONTENT_LENGTH, TRANSFER_ENCODING, EXPECT))
VERSIONS: Final = frozenset(("1.1", "1.0"))

Headers = list[tuple[bytes, bytes]]


class Request:
    """The head of a request. Header names are in lower case."""

    __slots__ = ("expects_continue", "headers", "keep_alive", "method", "path", "query", "raw_path", "version")

    def __init__(self, method: str, target: bytes, headers: Headers, *, version: str, keep_alive: bool) -> None:
        """Raises: Problem."""
        self.method, self.headers, self.version, self.keep_alive = method, headers, version, keep_alive
        self.expects_continue = False
        if not target.startswith(b"/"):
            target = _origin_form(target, headers)
        self.raw_path, _, self.query = target.partition(b"?")
        path = self.raw_path.decode("ascii")
        self.path = unquote(path) if "%" in path else path


class CallRequest(Request):
    """The head of a call that was read at once: of its headers those that mean something, and each came once."""

    __slots__ = ("picked",)

    def __init__(self, path: str, picked: dict[bytes, bytes]) -> None:
        self.method, self.version, self.keep_alive, self.expects_continue = "POST", "1.1", True, False
        self.path, self.raw_path, self.query = path, path.encode(), b""
        self.headers, self.picked = list(picked.items()), picked


class HttpParser:
    """The requests of one connection, one at a time: `feed` until `complete`, then `start_next`.

    Invariant: of a body at most what one `feed` brought is held beyond what the reader takes; of a head `head_bytes_max`.
    """

    __slots__ = (
        "_body",
        "_chunked",
        "_discard",
        "_framing",
        "_head_bytes_max",
        "_headers",
        "_headers_max",
        "_hosts",
        "_left",
        "_overhead",
        "_parser",
        "_problem",
        "_tail",
        "_target",
        "_unparsed",
        "body_bytes",
        "complete",
        "request",
    )

    def __init__(self, *, head_bytes_max: int, headers_max: int) -> None:
        self._head_bytes_max, self._headers_max = head_bytes_max, headers_max
        self._parser = httptools.HttpRequestParser(self)
        self.start_next()

    def close(self) -> None:
        """No more bytes. llhttp's parser knows this one: without this both would stay until the collector comes."""
        del self._parser

    def start_next(self) -> None:
        """Forgets the request that is complete."""
        self.request: Request | None = None  # once its head is complete
        self.complete = False  # head and body
        self._discard = False  # the body is not read
        self.body_bytes = 0  # that came so far
        self._body: bytes | bytearray = b""
        self._target = b""
        self._headers: Headers = []
        self._framing: dict[bytes, bytes] = {}
        self._hosts = 0
        self._left = 0  # bytes of a body of stated length that are still to come
        self._chunked = False
        self._unparsed = False  # the body does not go through the parser
        self._overhead = 0  # bytes that are no body, since the head began or since the last byte of a body
        self._tail = b""  # the last bytes of the piece before, which may begin an empty line
        self._problem: Problem | None = None  # why a callback stopped the parser

    @property
    def waiting(self) -> int:
        """Bytes of the body that are not taken yet."""
        return len(self._body)

    def take_body(self) -> bytes:
        """The part of the body that has arrived since the last time."""
        body, self._body = self._body, b""
        return body if type(body) is bytes else bytes(body)

    def discard_body(self) -> None:
        """The rest of the body is counted and dropped."""
        self._discard, self._body = True, b""

    def feed(self, data: bytes) -> bytes:
        """Takes bytes to the end of the request at hand; returns those after it. Raises: Problem; then nothing more is read."""
        while data and not self.complete:
            left = self._left
            size = (left if left < len(data) else len(data)) if left else self._to_empty_line(data)
            piece, data = (data, b"") if size == len(data) else (data[:size], data[size:])
            if not left:
                self._take_unknown(piece)
                continue
            self._left = left - size
            if self._unparsed:
                self.on_body(piece)
                self.complete = not self._left
            else:
                self._parse(piece)
        return data

    def take_call(self, data: bytes, read: frozenset[bytes]) -> CallRequest | None:
        """A call whose request is `data`, all of it and no more: it is complete then. None: `feed` has to take the bytes.

        Args:
            read: names of the headers that mean something.
        """
        if steps is None or self._overhead or self.request is not None:
            return None
        found = steps.read_call(data, self._head_bytes_max, self._headers_max, read)
        if found is None:
            return None
        path, picked, self._body = found
        self.request = request = CallRequest(path, picked)
        self.body_bytes, self.complete = len(self._body), True
        return request

    def _take_unknown(self, piece: bytes) -> None:
        """A piece of a head, or of a chunked body."""
        limit = self._head_bytes_max
        self._overhead += len(piece)
        if self.request is None and self._overhead > limit:
            self._parse(piece[: limit - self._overhead])  # for it may be the address that is too long
            raise Problem("headers_too_large", f"the request's head has more than {limit} bytes", limit_bytes=limit)
        self._parse(piece)
        if self._overhead > limit:
            raise _bad("chunk extensions and trailers are too large")

    def _to_empty_line(self, data: bytes) -> int:
        """Bytes up to the end of the next empty line, or all."""
        tail = self._tail
        at = (tail + data).find(EMPTY_LINE) if tail else data.find(EMPTY_LINE)
        if at >= 0:
            self._tail = b""
            return at + len(EMPTY_LINE) - len(tail)
        self._tail = (tail + data)[-3:] if len(data) < 3 else data[-3:]
        return len(data)

    def _parse(self, piece: bytes) -> None:
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            self._decline_upgrade()
        except httptools.HttpParserCallbackError:
            if self._problem is None:
                raise  # a defect of ours
            raise self._problem from None
        except httptools.HttpParserError as error:
            raise _bad(str(error)) from None

    def _decline_upgrade(self) -> None:
        """Another protocol is offered and not taken: the request counts as it is, but the parser has left its body out."""
        if self._chunked or self.request is None or self.request.method == "CONNECT":
            raise _bad("protocol upgrades are not supported")
        self._unparsed = True
        self.complete = not self._left

    # -- the parser's callbacks ------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.request is not None:
            self._stop(_bad("the request did not end where its framing says"))

    def on_url(self, part: bytes) -> None:
        self._target += part
        if len(self._target) > URL_BYTES_MAX:
            self._stop(_url_too_long())

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in FRAMING:
            self._framing[name] = value.rstrip()  # the parser has refused a second length and a second coding
        elif name == HOST and self.request is None:  # a trailer names nothing
            self._hosts += 1
        self._headers.append((name, value if value[-1:] not in BLANKS else value.rstrip()))

    def on_headers_complete(self) -> None:
        parser, framing = self._parser, self._framing
        version = parser.get_http_version()
        method = parser.get_method().decode("ascii")
        if version not in VERSIONS:
            self._stop(_bad(f"HTTP/{version} is not supported"))
        if self._hosts != 1 and (self._hosts or version == "1.1"):
            self._stop(_bad("a request must have exactly one Host header"))  # RFC 9112, section 3.2
        try:
            keep_alive = version == "1.1" and parser.should_keep_alive()
            request = Request(method, self._target, self._headers, version=version, keep_alive=keep_alive)
        except Problem as problem:
            self._stop(problem)
        if framing:
            coding = framing.get(TRANSFER_ENCODING)
            if coding is not None and (coding.lower() != b"chunked" or version == "1.0"):
                self._stop(_bad("the only supported Transfer-Encoding is chunked, with HTTP/1.1"))
            self._chunked = coding is not None
            self._left = int(framing.get(CONTENT_LENGTH, b"0"))
            request.expects_continue = framing.get(EXPECT, b"").lower() == b"100-continue" and version != "1.0"
        if len(self._headers) > self._headers_max:
            self._stop(Problem("headers_too_large", f"the request has more than {self._headers_max} headers"))
        self.request = request
        self._headers = []  # for trailers, which no one reads: nothing is added once a request has passed the gate
        self._overhead = 0

    def on_body(self, part: bytes) -> None:
        self.body_bytes += len(part)
        self._overhead = 0
        if self._discard:
            return
        if not self._body:
            self._body = part
            return
        if type(self._body) is bytes:
            self._body = bytearray(self._body)  # many small chunks are held without an object for each
        self._body += part

    def on_message_complete(self) -> None:
        self.complete = not self._parser.should_upgrade()

    def _stop(self, problem: Problem) -> NoReturn:
        """Ends the parsing from within a callback."""
        self._problem = problem
        raise problem


def _origin_form(target: bytes, headers: Headers) -> bytes:
    """Path and query of an address that names a server too, as proxies send them. Raises: Problem.

    The gate checks the Host header, so that has to name the same server; where HTTP/1.0 has none, the address gives it. RFC 9112
    lets the address overrule the header: who checks one and uses the other would be deceived.
    """
    try:
        url = httptools.parse_url(target)
    except httptools.HttpParserInvalidURLError:
        raise _bad("the request target is not valid for this server") from None
    if target != ASTERISK:
        server = SERVER.match(target)
        if server is None:
            raise _bad("the request target is not valid for this server")
        host = next((value for name, value in headers if name == HOST), None)
        if host is None:
            headers.append((HOST, server[1]))
        elif host.lower() != server[1].lower():
            raise _bad("the request target and the Host header name different servers")
    return (url.path or b"/") + (b"?" + url.query if url.query else b"")


def _url_too_long() -> Problem:
    return Problem("url_too_long", f"the request target has more than {URL_BYTES_MAX} bytes", limit_bytes=URL_BYTES_MAX)


def _bad(why: str) -> Problem:
    return Problem("bad_request", why)
