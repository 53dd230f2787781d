"""What a request carries, checked at the gate: credential, origin, idempotency key, echoed transaction, body.

One rule: limits count the bytes that arrive, never what a header claims.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.types import Receive, Scope

from cmdlog.api.gate.problem import Problem, body_too_large, invalid
from cmdlog.api.gate.request_trace import REQUEST_ID, TRACEPARENT, TRACESTATE, Picked, Trace
from cmdlog.api.gate.strict_json import NotStrict, loads_strict
from cmdlog.api.gate.token_file import Credential
from cmdlog.node.outcome import Durability
from cmdlog.wal.ids import MILLIS_MAX, MILLIS_SHIFT
from procedures.idempotency.known_outcome import KEY_CHARS_MAX

INCOMING: Final = "cmdlog.incoming"  # where the scope has what the gate knows of the request
TXN_DIGITS_MAX: Final = 19
TXN_ID_MAX: Final = (MILLIS_MAX + 1 << MILLIS_SHIFT) - 1

AUTHORIZATION: Final = b"authorization"
IDEMPOTENCY_KEY: Final = b"idempotency-key"
SESSION: Final = b"cmdlog-session"
TXN: Final = b"cmdlog-txn"
ORIGIN: Final = b"origin"
HOST: Final = b"host"
FETCH_SITE: Final = b"sec-fetch-site"
PREFER: Final = b"prefer"
CONTENT_LENGTH: Final = b"content-length"
CONTENT_TYPE: Final = b"content-type"
CONTENT_ENCODING: Final = b"content-encoding"
TWICE: Final = b""  # stands for the name of a header that came more than once
LOCAL_SITE: Final = re.compile(rb"(localhost|[0-9.]+|\[[0-9a-fA-F:.]+\])(:[0-9]+)?")
LOOPBACK: Final = re.compile(rb"(localhost|127(\.[0-9]{1,3}){3}|\[::1\])(:[0-9]+)?", re.IGNORECASE)
OWN_SITES: Final = (b"none", b"same-origin", b"same-site")  # none: no page asked for it
TRACE_CONTEXT: Final = (TRACEPARENT, TRACESTATE)
READ: Final = frozenset((
    AUTHORIZATION, IDEMPOTENCY_KEY, SESSION, TXN, ORIGIN, HOST, FETCH_SITE, CONTENT_TYPE, CONTENT_ENCODING, PREFER, REQUEST_ID,
    *TRACE_CONTEXT,
))  # fmt: skip
FIRST_COUNTS: Final = (REQUEST_ID, *TRACE_CONTEXT)
JSON: Final = b"application/json"
BODY_TYPES: Final = frozenset(
    (JSON, b"application/x-ndjson", b"application/ndjson", b"application/jsonl", b"application/x-www-form-urlencoded")
)
PREFERENCE: Final = re.compile(rb'(?:"(?:[^"\\]|\\.)*"|[^,"])+')  # an element of a list: commas within quotes are not its end
PREFER_BYTES_MAX: Final = 1024  # of what is looked at: a list of preferences is short
DURABILITIES: Final[Mapping[bytes, Durability]] = {b"sync": "sync", b"async": "async"}
CONSISTENCIES: Final = frozenset(("linearizable", "stale"))
CHARSET: Final = re.compile(rb'charset\s*=\s*"?([^";\s]*)"?', re.IGNORECASE)


@dataclass(slots=True)  # not frozen: one is made per request, and freezing costs 0.5 us
class Incoming:
    """A request that has passed the gate."""

    path: str
    caller: Credential
    headers: Picked
    trace: Trace
    query: bytes = b""  # of its address


def pick_headers(scope: Scope) -> Picked:
    """The headers that mean something here. One that comes twice is noted under `TWICE`; two credentials are none.

    `Prefer` is a list, and may come in parts (RFC 7240, section 2); of several request ids or trace contexts the first counts.
    """
    picked: Picked = {}
    for name, value in scope["headers"]:
        if name in READ:
            if name not in picked:
                picked[name] = value
            elif name == PREFER:
                picked[name] += b"," + value
            elif name not in FIRST_COUNTS:
                picked[TWICE] = name
                picked[name] = value if name != AUTHORIZATION else b""
    return picked


def check_twice(picked: Picked) -> None:
    """Refuses a header that comes twice: which of them counts must not be guessed. Raises: Problem."""
    if TWICE in picked:
        raise invalid([(picked[TWICE].decode(), "is given more than once")])


def check_origin(picked: Picked, *, authenticated: bool) -> None:
    """Refuses requests that a browser sends for another site: without credentials, loopback is open to every page it shows.

    A page's own name can be made to resolve to loopback (DNS rebinding): without a credential only localhost and addresses pass.
    """
    origin = picked.get(ORIGIN)
    if origin is None:
        return
    site = origin.partition(b"://")[2]
    if site != picked.get(HOST) or not (authenticated or LOCAL_SITE.fullmatch(site)):
        raise Problem("forbidden", "the Origin header names another site")


def check_host(picked: Picked) -> None:
    """Refuses what a page of another site asks for: for servers that need no credential. Raises: Problem.

    A page's own name can be made to resolve to loopback (DNS rebinding); the browser then takes our answers for that page's, and
    sends no Origin with a GET. HTTP/1.0 may come without a name; no browser speaks it.

    A page that asks for the true name could not read the answer, but hold what is scarce: browsers state its site in
    Sec-Fetch-Site. One from another port of this machine passes: its owner needs no browser to connect.
    """
    if picked.get(FETCH_SITE, OWN_SITES[0]) not in OWN_SITES:
        raise Problem(
            "forbidden",
            "the request comes from a page of another site, and the server has no token file; open the address directly",
        )
    host = picked.get(HOST)
    if host is not None and not _is_loopback(host):
        raise Problem(
            "forbidden", "the Host header is not a loopback address; without a token file only loopback addresses are served"
        )


@lru_cache(maxsize=64)  # a client sends the same one again and again
def _is_loopback(host: bytes) -> bool:
    return LOOPBACK.fullmatch(host) is not None


def check_content(picked: Picked) -> None:
    """Refuses a body that is no plain JSON by its own account. Raises: Problem.

    Compressed bodies are refused, not unpacked: so the limits count the very bytes that were sent, and there is no bomb. The
    type of forms passes: it is what `curl -d` and urllib send by default. The body is read as JSON in any case.
    """
    kind = picked.get(CONTENT_TYPE, JSON)
    if kind != JSON:
        _check_type(kind)
    coding = picked.get(CONTENT_ENCODING)
    if coding is not None and coding.strip().lower() not in (b"", b"identity"):
        raise Problem("unsupported_encoding", "send the body as it is, without Content-Encoding")


def _check_type(kind: bytes) -> None:
    name, _, parameters = kind.partition(b";")
    charset = CHARSET.search(parameters)
    if name.strip().lower() not in BODY_TYPES or (charset and charset[1].lower() not in (b"utf-8", b"utf8", b"us-ascii")):
        raise Problem("unsupported_media_type", "send the body as application/json (of /v1/batch: application/x-ndjson) in UTF-8")


def idempotency_key(value: bytes | None) -> str:
    """The key as text, "" when there is none."""
    if value is None:
        return ""
    if not 0 < len(value) <= KEY_CHARS_MAX or not all(0x20 < byte < 0x7F for byte in value):
        raise invalid([("Idempotency-Key", f"must have 1 to {KEY_CHARS_MAX} visible ASCII characters")])
    return value.decode()


def echoed_txn(value: bytes | None) -> int | None:
    """The transaction id that the caller has seen last."""
    if value is None:
        return None
    if not (value.isdigit() and len(value) <= TXN_DIGITS_MAX and int(value) <= TXN_ID_MAX):
        raise invalid([("Cmdlog-Txn", "must be a transaction id: a decimal number of 63 bits")])
    return int(value)


def preferred_durability(value: bytes | None, offered: Collection[Durability]) -> Durability | None:
    """What `Prefer: durability=sync` or `=async` asks for, where the node offers it.

    What is not understood or offered is ignored, and the answer then lacks `Preference-Applied`.
    """
    wanted = None if value is None else DURABILITIES.get(_preference(value, b"durability"))
    return wanted if wanted in offered else None


def prefers_redirect(value: bytes | None) -> bool:
    """Whether `Prefer: redirect=leader` asks a node that does not lead to answer 307 with the place of the one that does."""
    return value is not None and _preference(value, b"redirect") == b"leader"


def _preference(value: bytes, wanted: bytes) -> bytes:
    """The value of a preference, b"" without one.

    As RFC 7240 wants it: names and values in either case, quoted or not, beside other preferences and with parameters; of several
    the first one counts.
    """
    for preference in PREFERENCE.findall(value[:PREFER_BYTES_MAX]):
        name, _, word = preference.partition(b";")[0].partition(b"=")
        if name.strip().lower() == wanted:
            found: bytes = word.strip().strip(b'"').lower()
            return found
    return b""


def wants_stale(query: bytes) -> bool:
    """Whether the address has `consistency=stale`: the caller takes what any replica has. Raises: Problem."""
    if not query:
        return False
    given = [value for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True) if name == "consistency"]
    if len(given) > 1 or not CONSISTENCIES.issuperset(given):
        raise invalid([("consistency", "must be `linearizable` or `stale`, once")])
    return given == ["stale"]


async def read_body(scope: Scope, receive: Receive, *, limit_bytes: int) -> bytes:
    """The whole body. Raises: Problem (too_large, body_timeout); ConnectionError when the client is gone.

    One that is stated to be too large is not waited for, nor is the rest of one that has become so: the connection takes what
    its client still sends. It also limits how long a body may take: its `receive` raises TimeoutError.
    """
    if stated_bytes(scope) > limit_bytes:
        raise body_too_large(limit_bytes)
    parts: list[bytes] = []
    size = 0
    try:
        while True:
            # The client has left; there is more than is taken; or a part has come, maybe the last one.
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ConnectionError("the client left before its request was complete")
            part: bytes = message.get("body", b"")
            size += len(part)
            if size > limit_bytes:
                raise body_too_large(limit_bytes)
            parts.append(part)
            if not message.get("more_body", False):
                break
    except TimeoutError as error:
        raise Problem("body_timeout", str(error)) from None
    return parts[0] if len(parts) == 1 else b"".join(parts)


def stated_bytes(scope: Scope) -> int:
    """Length of the body by its head, where the parser has let but one pass; 0 of a chunked one."""
    return next((int(value) for name, value in scope["headers"] if name == CONTENT_LENGTH), 0)


def json_object(body: bytes) -> dict[str, Any]:
    """The body as an object. Raises: Problem."""
    try:
        value = loads_strict(body, around=1)
    except NotStrict as error:
        raise invalid([("body", str(error))]) from None
    if type(value) is not dict:
        raise invalid([("body", "must be a JSON object")])
    return value
