"""Ticks: time as consensus counts it.

One rule: no tick is lost and none is given twice. After a pause (the process was stopped, the machine was busy) the ticks that
were missed come first, before any message that waited meanwhile: a leader that slept through its term must notice before it
answers, and a follower must not take an old heartbeat for a new one.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class Ticker:
    """Gives ticks as time passes. One thread."""

    __slots__ = ("_give", "_given", "_now", "_origin_s", "_tick_s")

    def __init__(self, tick_s: float, give: Callable[[int], None], *, now: Callable[[], float] = time.monotonic) -> None:
        self._tick_s, self._give, self._now = tick_s, give, now
        self._origin_s, self._given = now(), 0

    def give_due(self) -> None:
        """Gives all ticks that are due and have not been given, as one number."""
        due = int((self._now() - self._origin_s) / self._tick_s) - self._given
        if due > 0:
            self._given += due
            self._give(due)

    @property
    def wait_s(self) -> float:
        """Until the next tick is due."""
        return max(0.0, self._origin_s + (self._given + 1) * self._tick_s - self._now())
