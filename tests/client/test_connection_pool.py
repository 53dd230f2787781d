"""Connections: how many, and what a caller hears who gets none."""

from __future__ import annotations

import asyncio
import threading

import pytest

from cmdlog.client import AsyncClient, Client
from cmdlog.errors import Unreachable
from tests.client.scripted import ScriptedServer, Step
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

STALL = Step("body read", "stall")


def test_threads_wait_for_a_free_connection() -> None:
    """One connection serves two threads in turn; who gets none in its time surely was not executed."""
    with ScriptedServer([STALL]) as server, Client(server.url, connections_max=1, token="") as client:
        holder = threading.Thread(target=lambda: client.invoke("bump", {"id": 1}, timeout_s=PATIENCE_S))
        holder.start()
        assert server.arrived.wait(PATIENCE_S)
        with pytest.raises(Unreachable, match="no connection was free"):
            client.invoke("bump", {"id": 1}, idempotency_key=None, timeout_s=0.2)
        server.release()
        holder.join(PATIENCE_S)
        assert client.call("bump", id=1) == 2
        assert server.executions == 2


def test_tasks_wait_for_a_free_connection() -> None:
    """So it is with tasks; a caller that is cancelled gives its connection back."""

    async def run(server: ScriptedServer) -> None:
        async with AsyncClient(server.url, connections_max=1, token="") as client:
            holder = asyncio.create_task(client.call("bump", id=1))
            assert await asyncio.to_thread(server.arrived.wait, PATIENCE_S)
            with pytest.raises(Unreachable, match="no"):
                await client.invoke("bump", {"id": 1}, idempotency_key=None, timeout_s=0.2)
            holder.cancel()
            assert await client.call("bump", id=1) == 1

    with ScriptedServer([STALL]) as server:
        asyncio.run(run(server))


def test_closed_client_says_so() -> None:
    """A call after the end is the program's mistake, and told as that."""
    with ScriptedServer() as server:
        client = Client(server.url, token="")
        assert client.call("bump", id=1) == 1
        client.close()
        client.close()
        with pytest.raises(RuntimeError, match="closed"):
            client.call("bump", id=1)


def test_client_of_another_event_loop_says_so() -> None:
    """Neither a call nor `close` ends in an error of httpx that a loop is closed."""

    async def call(client: AsyncClient) -> int:
        return int(await client.call("bump", id=1))

    with ScriptedServer([]) as server, asyncio.Runner() as first:
        client = AsyncClient(server.url, token="")
        assert first.run(call(client)) == 1
        for late in (call, AsyncClient.close):
            with asyncio.Runner() as other, pytest.raises(RuntimeError, match=r"one for each asyncio\.run\(\)"):
                other.run(late(client))
        first.run(client.close())
        assert server.executions == 1
