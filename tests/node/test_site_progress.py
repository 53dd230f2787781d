"""What is said about sites that make no progress."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from cmdlog.node.sites.site_progress import describe_stall, is_stopped
from tests.waiting import wait_for


@pytest.mark.parametrize(
    ("kind", "partitions", "procedure", "sentence"),
    [
        ("running", [3], "reserve", "partition 3: reserve has been running for 4.2 s"),
        ("running", [3], "", "partition 3: no progress for 4.2 s: one call runs"),
        ("stopped", [0, 2], "", "partitions 0, 2: no progress for 4.2 s: the site's process is stopped"),
        ("stopped", [0], "reserve", "partition 0: no progress for 4.2 s, at reserve: the site's process is stopped"),
        ("restarting", [1], "", "partition 1: no progress for 4.2 s: the site's process has ended, and a successor starts"),
    ],
)
def test_stall_is_a_sentence(kind: str, partitions: list[int], procedure: str, sentence: str) -> None:
    """Partitions, procedure and seconds, and what is known of the process."""
    assert describe_stall(kind, 4.21, partitions, procedure) == sentence


def test_process_that_a_signal_stopped_is_recognised() -> None:
    """Stopped, continued, and of a process that is gone nothing is said."""
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            assert not is_stopped(process.pid)
            os.kill(process.pid, signal.SIGSTOP)
            wait_for(lambda: is_stopped(process.pid))
            os.kill(process.pid, signal.SIGCONT)
            wait_for(lambda: not is_stopped(process.pid))
        finally:
            process.kill()
    assert not is_stopped(process.pid)
