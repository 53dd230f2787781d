"""A relayed request on the wire: its scope once, then what its application receives and sends, part by part.

One rule: each `receive` and `send` of the node's application is one question to the process that has the client, and the next
one waits for its answer. So a slow reader, a body that is late and a client that is gone are seen by the application as ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import orjson
from starlette.types import Message, Scope

from cmdlog.api.gate.problem import Problem

PART_BYTES_MAX: Final = 1 << 20  # of a body, in one frame
TEXTS: Final = ("method", "path", "scheme", "http_version")
BYTES: Final = ("raw_path", "query_string")
START: Final = b"s"
MORE: Final = b"m"
LAST: Final = b"l"
GONE: Final = b"g"
LATE: Final = b"t"
PROBLEM: Final = b"p"
DEFECT: Final = b"d"
DONE: Final = b"o"


def encode_scope(scope: Scope) -> bytes:
    """A request's head."""
    told: dict[str, Any] = {name: scope[name] for name in TEXTS}
    told |= {name: scope[name].decode("latin-1") for name in BYTES}
    told["headers"] = _texts(scope["headers"])
    return orjson.dumps({**told, "client": scope["client"], "server": scope["server"]})


def decode_scope(body: bytes) -> Scope:
    """The inverse."""
    told = orjson.loads(body)
    fixed = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "root_path": ""}
    ends = {name: tuple(told[name]) if told[name] else None for name in ("client", "server")}
    return {
        **fixed,
        **{name: told[name] for name in TEXTS},
        **{name: told[name].encode("latin-1") for name in BYTES},
        "headers": _pairs(told["headers"]),
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
    if isinstance(error, Problem):
        return PROBLEM + orjson.dumps([error.code, error.detail, error.more])
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
    if kind == PROBLEM:
        code, detail, more = orjson.loads(text)
        raise Problem(code, detail, **more)
    if kind == LATE:
        raise TimeoutError(text.decode())
    if kind == DEFECT:
        raise RuntimeError(text.decode())


def _texts(headers: Any) -> list[tuple[str, str]]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]


def _pairs(headers: Any) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
