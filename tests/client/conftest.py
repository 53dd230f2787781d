"""A real server for the tests that need one, and both clients for those of faults."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cmdlog.testing import Server
from tests.client.drives import Async, Drive, Sync


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`cmdlog serve` of the application that misbehaves, for every test that leaves it running."""
    running = Server("tests.node.apps.faulty:db", tmp_path_factory.mktemp("client"), partitions=2, key_window_s=3600)
    try:
        running.start()
        yield running
    finally:
        running.close()


@pytest.fixture(params=[Sync(), Async()], ids=["sync", "async"])
def drive(request: pytest.FixtureRequest) -> Drive:
    """Each test runs with both clients."""
    chosen: Drive = request.param
    return chosen
