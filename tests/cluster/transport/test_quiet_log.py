"""Events that others cause are logged at once, and then once in a while."""

from __future__ import annotations

import logging

from structlog.testing import capture_logs

from cmdlog.cluster.transport.quiet_log import KEYS_MAX, QuietLog
from tests.cluster.transport.test_peer_transport import Clock


def test_an_event_is_logged_once_in_a_while() -> None:
    """With how often it was not; other keys have a time of their own."""
    clock = Clock()
    quiet = QuietLog(quiet_s=60, now=clock)
    with capture_logs() as logged:
        for _ in range(5):
            quiet.log("peer_refused", 2, node=2)
        quiet.log("peer_refused", 3, level=logging.INFO, node=3)
        clock.now_s += 61
        quiet.log("peer_refused", 2, node=2)
        clock.now_s += 61
        quiet.log("peer_refused", 2, node=2)
    assert [(entry["node"], entry["log_level"], entry.get("unlogged")) for entry in logged] == [
        (2, "warning", None),
        (3, "info", None),
        (2, "warning", 4),
        (2, "warning", None),
    ]


def test_keys_are_bounded() -> None:
    """Whoever makes up keys costs a bounded memory."""
    quiet = QuietLog(now=Clock())
    with capture_logs() as logged:
        for number in range(2 * KEYS_MAX):
            quiet.log("peer_frame_refused", number)
    assert len(logged) == 2 * KEYS_MAX
    assert len(quiet._due_s) <= KEYS_MAX
