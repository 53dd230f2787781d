"""Requests that the node answers, seen from the process that has their clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from cmdlog.api.processes.link_frames import LinkFrameKind
from tests.api.relay_pair import SCOPE, Client, RelayPair, happened
from tests.waiting import PATIENCE_S


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the path and the body, part by part."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    more = True
    while more:
        message = await receive()
        more = message["more_body"]
        await send({"type": "http.response.body", "body": message["body"], "more_body": more})


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """In a loop of its own, with a bound for a test that fails."""
    asyncio.run(asyncio.wait_for(work(), PATIENCE_S))


def test_a_request_is_answered_by_the_node() -> None:
    """Its body and its answer pass in parts, in order, and several requests do not mix."""

    async def scenario() -> None:
        pair = RelayPair(echo)
        clients = [Client(b"a%d" % n, b"b", b"c") for n in range(3)]
        await asyncio.gather(*[pair.sender(SCOPE, client.receive, client.send) for client in clients])
        assert [client.answer for client in clients] == [b"a%dbc" % n for n in range(3)]
        assert all(client.sent[0]["status"] == 200 for client in clients)

    run(scenario)


def test_a_slow_reader_holds_the_application_back() -> None:
    """No part is sent before the one before it was taken: what is not read is not kept."""

    async def scenario() -> None:
        pair, client = RelayPair(echo), Client(b"a", b"b")
        client.takes.clear()
        serving = asyncio.create_task(pair.sender(SCOPE, client.receive, client.send))
        for _ in range(20):
            await asyncio.sleep(0)
        assert pair.kinds.count(LinkFrameKind.PART) == 1
        client.takes.set()
        await serving
        assert client.answer == b"ab"

    run(scenario)


def test_a_request_that_is_cancelled_is_gone_for_the_node() -> None:
    """A stopping server cuts what takes too long; the application gets the end of its client."""
    seen: list[str] = []

    async def wait(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        seen.append((await receive())["type"])

    async def scenario() -> None:
        pair, client = RelayPair(wait), Client(b"a")
        serving = asyncio.create_task(pair.sender(SCOPE, client.receive, client.send))
        for _ in range(20):
            await asyncio.sleep(0)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        await happened(lambda: seen)
        assert seen == ["http.disconnect"]

    run(scenario)


def test_a_link_that_is_over_leaves_answers_unfinished() -> None:
    """So their connections end; a request that comes later gets none."""

    async def scenario() -> None:
        pair, client = RelayPair(echo), Client(b"a", b"b")
        client.takes.clear()
        serving = asyncio.create_task(pair.sender(SCOPE, client.receive, client.send))
        for _ in range(20):
            await asyncio.sleep(0)
        pair.sender.end()
        await serving
        await pair.sender(SCOPE, client.receive, client.send)
        assert client.sent == []

    run(scenario)
