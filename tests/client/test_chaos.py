"""Thousands of keyed calls through a proxy that kills connections and delivers twice: the sums are exact."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from cmdlog.client import AsyncClient, AutoBatch, Client, RetryPolicy
from cmdlog.results import Result
from cmdlog.testing import Server
from tests.client.chaos import ChaosProxy
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

PATIENT = RetryPolicy(connect_s=5.0, attempt_s=10.0, backoff_first_s=0.002, backoff_max_s=0.05, attempts_max=10_000)
OPTIONS: dict[str, Any] = {"token": "", "retry": PATIENT, "timeout_s": 100.0}


def counter_of(server: Server, counter: int) -> int:
    """What the server holds, asked for without the proxy."""
    value: int = server.client.call("peek", id=counter)
    return value


def test_threads_with_single_calls(server: Server) -> None:
    """400 calls of four threads, most of them interrupted at some phase: each result once, the sum exact."""
    with ChaosProxy(server.url, seed=1, life_bytes=1500, duplicates=0.2) as proxy, Client(proxy.url, **OPTIONS) as client:
        told: list[int] = []

        def run() -> None:
            for _ in range(100):
                told.append(client.call("bump", id=77_001, amount=1))

        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert sorted(told) == list(range(1, 401))
        assert proxy.killed > 50
        assert proxy.duplicated > 5
    assert counter_of(server, 77_001) == 400


def test_batch(server: Server) -> None:
    """800 lines of one batch whose requests break: resumed again and again, each once, in order."""
    with ChaosProxy(server.url, seed=2, life_bytes=10_000, duplicates=0.3) as proxy, Client(proxy.url, **OPTIONS) as client:
        answers = list(client.batch(("bump", {"id": 77_002, "amount": 1}) for _ in range(800)))
        assert [answer.value if isinstance(answer, Result) else answer for answer in answers] == list(range(1, 801))
        assert proxy.killed > 5
    assert counter_of(server, 77_002) == 800


def test_tasks_that_share_requests(server: Server) -> None:
    """800 calls of forty tasks that share requests: each caller gets its own result, once."""

    async def run(url: str) -> list[int]:
        told: list[int] = []
        async with AsyncClient(url, auto_batch=AutoBatch(streams=2), **OPTIONS) as client:

            async def caller() -> None:
                for _ in range(20):
                    told.append(await client.call("bump", id=77_003, amount=1))

            await asyncio.gather(*(caller() for _ in range(40)))
        return told

    with ChaosProxy(server.url, seed=3, life_bytes=10_000, duplicates=0.3) as proxy:
        assert sorted(asyncio.run(run(proxy.url))) == list(range(1, 801))
        assert proxy.killed > 5
    assert counter_of(server, 77_003) == 800
