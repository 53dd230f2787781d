"""The server of a test loses its disk; killing and restarting are in `test_testing.py`."""

from __future__ import annotations

import pytest

import cmdlog
from cmdlog.testing import StartServer

ONCE = cmdlog.RetryPolicy(attempts_max=1)


@pytest.mark.slow
def test_calls_on_a_failed_disk_are_refused_and_none_is_lost(cmdlog_server: StartServer) -> None:
    """What was acknowledged is there after the restart; what was refused or unknown was never acknowledged."""
    server = cmdlog_server("tests.node.apps.faulty:db", partitions=1)
    assert server.client.call("bump", id=1, amount=5) == 5
    server.fail_disk()
    for _ in range(2):
        with (
            pytest.raises((cmdlog.Unavailable, cmdlog.OutcomeUnknown)),
            cmdlog.Client(server.url, token="", retry=ONCE) as client,
        ):
            client.call("bump", id=1, amount=1)
    server.kill()
    server.start()
    assert server.client.call("bump", id=2, amount=1) == 1
    assert server.client.call("peek", id=1) == 5
