"""A real server for the tests that need one, and both clients for those of faults."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from types import ModuleType

import pytest

from cmdlog.client import AsyncClient, Client, async_client, client
from cmdlog.testing import Server
from tests.client.drives import Drive


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`cmdlog serve` of the application that misbehaves, for every test that leaves it running."""
    running = Server("tests.node.apps.faulty:db", tmp_path_factory.mktemp("client"), partitions=2, key_window_s=3600)
    try:
        running.start()
        yield running
    finally:
        running.close()


@pytest.fixture(params=[Client, AsyncClient], ids=["sync", "async"])
def drive(request: pytest.FixtureRequest) -> Drive:
    """Each test runs with both clients."""
    return Drive(request.param)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits of the clients, which take no time. Other threads of this process sleep as they did."""
    waited = list[float]()

    async def pause(seconds: float) -> None:
        waited.append(seconds)
        await asyncio.sleep(0)

    monkeypatch.setattr(client, "time", _changed(time, sleep=waited.append))
    monkeypatch.setattr(async_client, "asyncio", _changed(asyncio, sleep=pause))
    return waited


def _changed(module: ModuleType, **names: object) -> ModuleType:
    """The module as the importer of the result sees it, with other things under these names."""
    seen = ModuleType(module.__name__)
    vars(seen).update(vars(module) | names)
    return seen
