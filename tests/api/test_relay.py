"""A relayed request on the wire."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from cmdlog.api.processes.process_link import LinkFrameKind
from cmdlog.api.processes.relay import (
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
from tests.api.relay_pair import Client, RelayPair, happened

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
    with pytest.raises(TimeoutError, match="too long"):
        decode_received(encode_failure(TimeoutError("it took too long")))
    with pytest.raises(RuntimeError, match="ValueError: odd"):
        decode_sent(encode_failure(ValueError("odd")))


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the path and the body, part by part."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    more = True
    while more:
        message = await receive()
        more = message["more_body"]
        await send({"type": "http.response.body", "body": message["body"], "more_body": more})


async def test_a_request_is_answered_by_the_node() -> None:
    """Its body and its answer pass in parts, in order, and several requests do not mix."""
    pair = RelayPair(echo)
    clients = [Client(b"a%d" % n, b"b", b"c") for n in range(3)]
    await asyncio.gather(*[pair.sender(SCOPE, client.receive, client.send) for client in clients])
    assert [client.answer for client in clients] == [b"a%dbc" % n for n in range(3)]
    assert all(client.sent[0]["status"] == 200 for client in clients)


async def test_a_slow_reader_holds_the_application_back() -> None:
    """No part is sent before the one before it was taken: what is not read is not kept."""
    pair, client = RelayPair(echo), Client(b"a", b"b")
    client.takes.clear()
    serving = asyncio.create_task(pair.sender(SCOPE, client.receive, client.send))
    for _ in range(20):
        await asyncio.sleep(0)
    assert pair.kinds.count(LinkFrameKind.PART) == 1
    client.takes.set()
    await serving
    assert client.answer == b"ab"


async def test_a_request_that_is_cancelled_is_gone_for_the_node() -> None:
    """A stopping server cuts what takes too long; the application gets the end of its client."""
    seen: list[str] = []

    async def wait(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        seen.append((await receive())["type"])

    pair, client = RelayPair(wait), Client(b"a")
    serving = asyncio.create_task(pair.sender(SCOPE, client.receive, client.send))
    for _ in range(20):
        await asyncio.sleep(0)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    await happened(lambda: seen)
    assert seen == ["http.disconnect"]


async def test_a_link_that_is_over_leaves_answers_unfinished() -> None:
    """So their connections end; a request that comes later gets none."""
    pair, client = RelayPair(echo), Client(b"a", b"b")
    client.takes.clear()
    serving = asyncio.create_task(pair.sender(SCOPE, client.receive, client.send))
    for _ in range(20):
        await asyncio.sleep(0)
    pair.sender.end()
    await serving
    await pair.sender(SCOPE, client.receive, client.send)
    assert client.sent == []


async def test_the_application_gets_what_the_connection_raises() -> None:
    """A body that is late is judged by the code that ever did."""
    raised: list[Exception] = []

    async def read(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await receive()
        except TimeoutError as error:
            raised.append(error)

    async def fail() -> Message:
        raise TimeoutError("late")

    await RelayPair(read).sender(SCOPE, fail, Client().send)
    assert [type(error) for error in raised] == [TimeoutError]


async def test_what_was_asked_for_comes_once() -> None:
    """An application that stops waiting and asks again gets the same part, not the next one."""
    got: list[bytes] = []

    async def impatient(scope: Scope, receive: Receive, send: Send) -> None:
        waiting = asyncio.ensure_future(receive())
        await asyncio.sleep(0)
        waiting.cancel()
        for _ in range(2):
            got.append((await receive())["body"])

    client = Client(b"first", b"second")
    await RelayPair(impatient).sender(SCOPE, client.receive, client.send)
    assert got == [b"first", b"second"]


async def test_a_process_that_is_gone_takes_its_clients_along() -> None:
    """What waits for them ends, and what is sent to them goes nowhere."""
    ends: list[str] = []

    async def watch(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        ends.append((await receive())["type"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        ends.append("sent")

    client = Client(b"a")
    pair = RelayPair(watch)
    serving = asyncio.create_task(pair.sender(SCOPE, client.receive, client.send))
    for _ in range(20):
        await asyncio.sleep(0)
    pair.receiver.end()
    await happened(lambda: len(ends) == 2)
    await serving
    assert client.sent == []
    assert ends == ["http.disconnect", "sent"]
