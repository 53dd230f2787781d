"""The loop of a site process."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from typing import Any, cast

import pytest

from cmdlog.node.sites.site_child import PROGRESS_BYTES
from cmdlog.node.sites.site_executor import Site
from cmdlog.node.sites.site_main import SiteProcess


class Copying:
    """A site with a capture of so many steps under way, and nothing else to do."""

    def __init__(self, steps: int, then: Callable[[], object]) -> None:
        self._left, self._then = steps, then

    @property
    def capturing(self) -> bool:
        return self._left > 0

    def step_captures(self) -> list[tuple[int, int, dict[str, Any]]]:
        self._left -= 1
        if not self._left:
            self._then()
        return []


def test_idle_site_rests_before_every_step_of_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits a moment for what it could just look for: a site that never sleeps may keep the log's syncs off a processor."""
    ours, theirs = socket.socketpair()
    process = SiteProcess(theirs, memoryview(bytearray(PROGRESS_BYTES)).cast("Q"))
    process._site = cast(Site, Copying(5, then=lambda: ours.shutdown(socket.SHUT_WR)))
    waits: list[float] = []
    real = select.select

    def watched(*given: Any) -> Any:
        waits.append(given[3])
        return real(*given)

    monkeypatch.setattr(select, "select", watched)
    with ours, theirs:
        process.run()
    assert len(waits) == 5
    assert min(waits) > 0
