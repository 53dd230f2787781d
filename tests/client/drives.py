"""Both clients behind the same methods, so that each test of a fault runs with both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from cmdlog.client import AsyncClient, Client, RetryPolicy

QUICK = RetryPolicy(backoff_first_s=0.001, backoff_max_s=0.01)  # patient with each attempt: a busy machine is no silence
HASTY = replace(QUICK, attempt_s=0.1)  # of servers that fall silent


class Drive:
    """One of the two clients. `run` has a client do some work; all others are kinds of it."""

    def __init__(self, kind: type[Client | AsyncClient]) -> None:
        self._kind = kind

    def run(self, url: str | Sequence[str], work: Callable[[Any], Any], **given: Any) -> Any:
        """What the work gives: a value, or what a task waits for."""
        options: Any = {"retry": QUICK, **given}
        if self._kind is Client:
            with Client(url, **options) as client:
                return _listed(work(client))

        async def run() -> Any:
            async with AsyncClient(url, **options) as client:
                return await _settled(work(client))

        return asyncio.run(run())

    def call(self, url: str | Sequence[str], *, key: str | None = "k", **given: Any) -> Any:
        return self.run(url, lambda client: client.invoke("bump", {"id": 1}, idempotency_key=key), **given).value

    def batch(self, url: str | Sequence[str], calls: list[Any], **given: Any) -> list[Any]:
        answers: list[Any] = self.run(url, lambda client: client.batch(calls), **given)
        return answers

    def read(self, url: str | Sequence[str], **given: Any) -> Any:
        return self.run(url, lambda client: client.status(), **given)

    def calls(self, url: str | Sequence[str], count: int, **given: Any) -> list[Any]:
        """One after another, by one client."""
        results: list[Any] = self.run(url, lambda client: (client.call("bump", id=number) for number in range(count)), **given)
        return results

    def together(self, url: str | Sequence[str], count: int, **given: Any) -> list[Any]:
        """All at once."""

        def call(client: Any, number: int) -> Any:
            return client.call("bump", id=number, idempotency_key=f"k{number}")

        def work(client: Any) -> Any:
            if isinstance(client, Client):
                with ThreadPoolExecutor(count) as threads:
                    return list(threads.map(partial(call, client), range(count)))
            return asyncio.gather(*(call(client, number) for number in range(count)))

        results: list[Any] = self.run(url, work, **given)
        return results


def _listed(found: Any) -> Any:
    return list(found) if isinstance(found, Iterator) else found


async def _settled(found: Any) -> Any:
    """A task's value, or the values that tasks or an asynchronous generator give one after another."""
    if isinstance(found, AsyncIterator):
        return [one async for one in found]
    return [await one for one in found] if isinstance(found, Iterator) else await found
