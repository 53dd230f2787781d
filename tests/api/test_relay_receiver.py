"""Relayed requests in the node."""

from __future__ import annotations

import asyncio

from starlette.types import Message, Receive, Scope, Send

from cmdlog.api.gate.problem import Problem, body_too_large
from tests.api.relay_pair import SCOPE, Client, RelayPair, happened
from tests.api.test_relay_sender import run


def test_the_application_gets_what_the_connection_raises() -> None:
    """A body that is late or too large is judged by the code that ever did."""
    raised: list[Exception] = []

    async def read(scope: Scope, receive: Receive, send: Send) -> None:
        for _ in range(2):
            try:
                await receive()
            except (Problem, TimeoutError) as error:
                raised.append(error)

    async def scenario() -> None:
        failures: list[Exception] = [TimeoutError("late"), body_too_large(5)]

        async def fail() -> Message:
            raise failures.pop(0)

        await RelayPair(read).sender(SCOPE, fail, Client().send)

    run(scenario)
    assert [type(error) for error in raised] == [TimeoutError, Problem]


def test_what_was_asked_for_comes_once() -> None:
    """An application that stops waiting and asks again gets the same part, not the next one."""
    got: list[bytes] = []

    async def impatient(scope: Scope, receive: Receive, send: Send) -> None:
        waiting = asyncio.ensure_future(receive())
        await asyncio.sleep(0)
        waiting.cancel()
        for _ in range(2):
            got.append((await receive())["body"])

    async def scenario() -> None:
        client = Client(b"first", b"second")
        await RelayPair(impatient).sender(SCOPE, client.receive, client.send)

    run(scenario)
    assert got == [b"first", b"second"]


def test_a_process_that_is_gone_takes_its_clients_along() -> None:
    """What waits for them ends, and what is sent to them goes nowhere."""
    ends: list[str] = []

    async def watch(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        ends.append((await receive())["type"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        ends.append("sent")

    async def scenario() -> None:
        client = Client(b"a")
        pair = RelayPair(watch)
        serving = asyncio.create_task(pair.sender(SCOPE, client.receive, client.send))
        for _ in range(20):
            await asyncio.sleep(0)
        pair.receiver.end()
        await happened(lambda: len(ends) == 2)
        await serving
        assert client.sent == []

    run(scenario)
    assert ends == ["http.disconnect", "sent"]
