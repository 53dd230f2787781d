"""A relayed request on the wire."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.types import Message

from cmdlog.api.gate.problem import Problem, body_too_large
from cmdlog.api.processes.relay_frames import (
    PART_BYTES_MAX,
    decode_part,
    decode_received,
    decode_scope,
    decode_sent,
    encode_failure,
    encode_parts,
    encode_received,
    encode_scope,
)

SCOPE: dict[str, Any] = {
    "type": "http",
    "asgi": {"version": "3.0", "spec_version": "2.3"},
    "http_version": "1.1",
    "method": "GET",
    "scheme": "https",
    "path": "/v1/ümlaut",
    "raw_path": b"/v1/%C3%BCmlaut",
    "query_string": b"a=%FF\xff",
    "root_path": "",
    "headers": [(b"x-any", bytes(range(32, 256))), (b"x-any", b"twice")],
    "client": ("127.0.0.1", 4711),
    "server": None,
}


def test_a_scope_is_read_as_it_was_written() -> None:
    """Bytes of any value, headers that come twice, and ends that are unknown."""
    assert decode_scope(encode_scope(SCOPE)) == SCOPE


@pytest.mark.parametrize(
    "message",
    [
        {"type": "http.request", "body": b"", "more_body": False},
        {"type": "http.request", "body": b"part", "more_body": True},
        {"type": "http.disconnect"},
    ],
)
def test_what_is_received_is_read_as_it_was_written(message: Message) -> None:
    """The body's parts, its end, and the client's."""
    assert decode_received(encode_received(message)) == message


def test_an_answer_is_cut_into_parts() -> None:
    """Its head, and a body of any size, whose last part alone is the last."""
    start: Message = {"type": "http.response.start", "status": 200, "headers": [(b"a", b"\xe9")]}
    assert [decode_part(part) for part in encode_parts(start)] == [start]
    size = 2 * PART_BYTES_MAX + 1
    for more in (True, False):
        parts = [decode_part(p) for p in encode_parts({"type": "http.response.body", "body": b"x" * size, "more_body": more})]
        assert [len(part["body"]) for part in parts] == [PART_BYTES_MAX, PART_BYTES_MAX, 1]
        assert [part["more_body"] for part in parts] == [True, True, more]
    (empty,) = (decode_part(part) for part in encode_parts({"type": "http.response.body"}))
    assert empty == {"type": "http.response.body", "body": b"", "more_body": False}


def test_what_is_raised_there_is_raised_here() -> None:
    """As what it was, where the application's code tells them apart."""
    with pytest.raises(Problem) as problem:
        decode_received(encode_failure(body_too_large(7)))
    assert problem.value.members() == body_too_large(7).members()
    with pytest.raises(TimeoutError, match="too long"):
        decode_received(encode_failure(TimeoutError("it took too long")))
    with pytest.raises(RuntimeError, match="ValueError: odd"):
        decode_sent(encode_failure(ValueError("odd")))
