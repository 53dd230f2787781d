"""Connections: how many, and what a caller hears who gets none."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cmdlog.client import AsyncClient, Call, Client
from cmdlog.client.connection_pool import _Turn
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


class Interrupted(Exception):
    """What a program's signal handler raises."""


@contextmanager
def interrupting(moment: threading.Event) -> Iterator[None]:
    """Inside, a signal handler raises in this thread at the moment."""
    main = threading.get_ident()

    def interrupt(*_: object) -> None:
        raise Interrupted

    def send_signal() -> None:
        assert moment.wait(PATIENCE_S)
        signal.pthread_kill(main, signal.SIGUSR1)

    before, sender = signal.signal(signal.SIGUSR1, interrupt), threading.Thread(target=send_signal)
    sender.start()
    try:
        yield
    finally:
        sender.join(PATIENCE_S)
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("shape", ["call", "batch", "auto_batch"])
def test_interrupted_caller_leaves_no_poisoned_connection(shape: str) -> None:
    """A signal handler raises while a request is under way: the next calls get a connection, and an answer of their own."""
    with (
        ScriptedServer([STALL]) as server,
        Client(server.url, connections_max=1, token="", auto_batch=shape == "auto_batch") as client,
    ):
        calls = [Call("bump", {"id": 1})] * (5 if shape == "batch" else 1)
        with interrupting(server.arrived), pytest.raises(Interrupted):
            _ = list(client.batch(calls)) if shape == "batch" else client.invoke(calls[0])
        server.release()
        before = server.executions
        assert [client.invoke("bump", {"id": 1}, timeout_s=PATIENCE_S).value for _ in range(3)] == [
            before + 1,
            before + 2,
            before + 3,
        ]


def test_turn_in_a_reference_cycle_is_given_back() -> None:
    """As an exception and its own frame may be one, after an interrupt; the collector has no other reason to run."""
    with ScriptedServer() as server, Client(server.url, connections_max=1, token="") as client:
        turn = _Turn()
        client._pools[0]._await_turn(turn, PATIENCE_S)
        cycle: list[object] = [turn]
        cycle.append(cycle)
        gc.disable()
        try:
            del turn, cycle
            assert client.invoke("bump", {"id": 1}, timeout_s=PATIENCE_S).value
        finally:
            gc.enable()


def test_cancelled_task_leaves_no_poisoned_connection() -> None:
    """However far its request was."""

    async def run(server: ScriptedServer) -> None:
        async with AsyncClient(server.url, connections_max=1, token="") as client:
            assert await client.call("bump", id=1) == 1
            for turns in range(20):
                task = asyncio.create_task(client.call("bump", id=1))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            known = server.executions
            assert await client.call("bump", id=1) > known - 20

    with ScriptedServer() as server:
        asyncio.run(run(server))
