"""Both clients behind the same methods, so that each test of a fault runs with both."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from cmdlog.client import AsyncClient, Client, RetryPolicy

QUICK = RetryPolicy(backoff_first_s=0.001, backoff_max_s=0.01)  # patient with each attempt: a busy machine is no silence
HASTY = replace(QUICK, attempt_s=0.1)  # of servers that fall silent


class Sync:
    """The synchronous client."""

    def call(self, url: str | Sequence[str], *, key: str | None = "k", **given: Any) -> Any:
        with Client(url, **{"retry": QUICK, **given}) as client:
            return client.invoke("bump", {"id": 1}, idempotency_key=key).value

    def batch(self, url: str | Sequence[str], calls: list[Any], **given: Any) -> list[Any]:
        with Client(url, **{"retry": QUICK, **given}) as client:
            return list(client.batch(calls))

    def read(self, url: str | Sequence[str], **given: Any) -> Any:
        with Client(url, **{"retry": QUICK, **given}) as client:
            return client.status()

    def calls(self, url: str | Sequence[str], count: int, **given: Any) -> list[Any]:
        """One after another, by one client."""
        with Client(url, **{"retry": QUICK, **given}) as client:
            return [client.call("bump", id=number) for number in range(count)]

    def together(self, url: str | Sequence[str], count: int, **given: Any) -> list[Any]:
        """All at once."""
        with Client(url, **{"retry": QUICK, **given}) as client, ThreadPoolExecutor(count) as threads:
            return list(threads.map(lambda number: client.call("bump", id=number, idempotency_key=f"k{number}"), range(count)))


class Async:
    """The asynchronous one, behind the same methods."""

    def call(self, url: str | Sequence[str], *, key: str | None = "k", **given: Any) -> Any:
        async def run() -> Any:
            async with AsyncClient(url, **{"retry": QUICK, **given}) as client:
                return (await client.invoke("bump", {"id": 1}, idempotency_key=key)).value

        return asyncio.run(run())

    def batch(self, url: str | Sequence[str], calls: list[Any], **given: Any) -> list[Any]:
        async def run() -> list[Any]:
            async with AsyncClient(url, **{"retry": QUICK, **given}) as client:
                return [answer async for answer in client.batch(calls)]

        return asyncio.run(run())

    def read(self, url: str | Sequence[str], **given: Any) -> Any:
        async def run() -> Any:
            async with AsyncClient(url, **{"retry": QUICK, **given}) as client:
                return await client.status()

        return asyncio.run(run())

    def calls(self, url: str | Sequence[str], count: int, **given: Any) -> list[Any]:
        async def run() -> list[Any]:
            async with AsyncClient(url, **{"retry": QUICK, **given}) as client:
                return [await client.call("bump", id=number) for number in range(count)]

        return asyncio.run(run())

    def together(self, url: str | Sequence[str], count: int, **given: Any) -> list[Any]:
        async def run() -> list[Any]:
            async with AsyncClient(url, **{"retry": QUICK, **given}) as client:
                calls = (client.call("bump", id=number, idempotency_key=f"k{number}") for number in range(count))
                return list(await asyncio.gather(*calls))

        return asyncio.run(run())


Drive = Sync | Async
