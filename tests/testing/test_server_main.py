"""A server's process has the clock of its test."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

import cmdlog
from cmdlog.testing import SettableClock, StartServer

NEW_YEAR = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.slow
def test_servers_follow_the_clock(cmdlog_server: StartServer, cmdlog_clock: SettableClock) -> None:
    """A process of its own sees each step at once, and so does the next one after a kill."""
    cmdlog_clock.set(NEW_YEAR)
    server = cmdlog_server("tests.testing.apps.lease:db", partitions=1)
    assert server.client.call("time_of", item=1) == NEW_YEAR.isoformat().replace("+00:00", "Z")
    server.client.call("take", item=1, minutes=15)
    with pytest.raises(cmdlog.Aborted):
        server.client.call("take", item=1, minutes=15)
    server.kill()
    cmdlog_clock.advance(minutes=15)
    server.start()
    assert server.client.call("take", item=1, minutes=15).startswith("2030-01-01T00:30:00")
