"""For the tests of applications: throw-away databases, a real server to kill, and the proof that what was done replays.

Enable the fixtures in the topmost conftest.py:

    pytest_plugins = ["cmdlog.testing"]

    def test_reserving_takes_from_stock(cmdlog_embedded):
        shop = cmdlog_embedded(shop_db)                  # cmdlog.Embedded, in a folder of its own
        shop.call("put", item=1, count=10)
        assert shop.call("reserve", item=1, count=3) == 7
        assert_replays(shop)

    def test_a_reservation_expires(cmdlog_embedded, cmdlog_clock):
        cmdlog_clock.set(datetime(2030, 1, 1, tzinfo=UTC))   # tx.now, from now on
        shop = cmdlog_embedded(shop_db)
        shop.call("hold", item=1)
        cmdlog_clock.advance(minutes=15)
        assert shop.call("is_free", item=1)

    def test_an_order_survives_a_crash(cmdlog_server):
        server = cmdlog_server(shop_db)                  # `cmdlog serve` as a process, on a free port of loopback
        server.client.call("put", item=1, count=10)
        server.kill()                                    # or fail_disk()
        server.start()
        assert server.client.call("reserve", item=1, count=3) == 7

    @given(calls=histories(shop_db))
    def test_whatever_is_called_replays(calls):          # needs hypothesis
        assert_history_replays(shop_db, calls)

One rule: whatever a test does, its databases are closed and its processes are gone when it is over, also when it is killed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from cmdlog.node.assembly import Outside
from cmdlog.node.embedded.embedded import Embedded, open_embedded_on
from cmdlog.testing.machine import SettableClock, UnsyncedFiles
from cmdlog.testing.proof import assert_replays
from cmdlog.testing.server import DEFAULTS, SMALL, Server
from procedures import Database

if TYPE_CHECKING:
    from cmdlog.testing.history import assert_history_replays as assert_history_replays
    from cmdlog.testing.history import histories as histories

__all__ = [
    "SMALL",
    "OpenEmbedded",
    "Server",
    "SettableClock",
    "StartServer",
    "assert_history_replays",
    "assert_replays",
    "cmdlog_clock",
    "cmdlog_embedded",
    "cmdlog_server",
    "histories",
]


class OpenEmbedded(Protocol):
    """What `cmdlog_embedded` is."""

    def __call__(self, db: Database, *, folder: str | os.PathLike[str] | None = None, **settings: Any) -> Embedded: ...


class StartServer(Protocol):
    """What `cmdlog_server` is."""

    def __call__(self, app: str | Database, *, folder: str | os.PathLike[str] | None = None, **settings: Any) -> Server: ...


@pytest.fixture
def cmdlog_clock() -> Iterator[SettableClock]:
    """The time of this test's databases and servers. It runs with real time until the test sets it."""
    clock = SettableClock()
    try:
        yield clock
    finally:
        clock.word.close()


@pytest.fixture
def cmdlog_embedded(tmp_path: Path, cmdlog_clock: SettableClock) -> Iterator[OpenEmbedded]:
    """Opens throw-away databases in this process; `folder` (below tmp_path) opens the same one again.

    Nothing is synced: another process reads what was written, but no power cut is survived.
    """
    opened: list[Embedded] = []

    def open_one(db: Database, *, folder: str | os.PathLike[str] | None = None, **settings: Any) -> Embedded:
        directory = tmp_path / (folder or f"embedded-{len(opened)}")
        opened.append(open_embedded_on(Outside(UnsyncedFiles(), cmdlog_clock.source()), directory, db, {**DEFAULTS, **settings}))
        return opened[-1]

    try:
        yield open_one
    finally:
        for database in opened:
            database.close()


@pytest.fixture
def cmdlog_server(tmp_path: Path, cmdlog_clock: SettableClock) -> Iterator[StartServer]:
    """Starts `cmdlog serve` processes; of a Database, or of `module:attribute`."""
    servers: list[Server] = []

    def start(app: str | Database, *, folder: str | os.PathLike[str] | None = None, **settings: Any) -> Server:
        servers.append(Server(app, tmp_path / (folder or f"server-{len(servers)}"), clock=cmdlog_clock, **settings))
        servers[-1].start()
        return servers[-1]

    try:
        yield start
    finally:
        for server in servers:
            server.close()


def __getattr__(name: str) -> Any:
    """What needs hypothesis is imported when it is asked for."""
    if name not in ("assert_history_replays", "histories"):
        raise AttributeError(f"module 'cmdlog.testing' has no attribute {name!r}")
    from cmdlog.testing import history  # noqa: PLC0415

    return getattr(history, name)
