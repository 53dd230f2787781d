"""Busy polling: while a single caller makes one call after the other, who has its next step looks for it without sleeping.

One rule: it is bounded and gives way. A wait sleeps after `busy_poll_us` at the latest, one after a long pause at once, and each
look offers the processor to whatever else wants it.

A processor that has gone to sleep takes some 20 us to be at work again, in a virtual machine twice that, and the way of one call
has such a moment at each hop: a third of its time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final, TypeVar

from cmdlog.node.settings import Settings
from cmdlog.wal.process_limits import usable_processors

PROCESSORS_MIN: Final = 2  # with one, who looks keeps from working the one who is to bring something

T = TypeVar("T")


def busy_poll_s(settings: Settings) -> float:
    """How long a wait may look without sleeping; 0 also where this process may use only one processor."""
    return settings.busy_poll_us / 1e6 if usable_processors() >= PROCESSORS_MIN else 0.0


class BusyPoll:
    """Waits for input. Owned by one thread."""

    def __init__(
        self,
        limit_s: float,
        *,
        clock: Callable[[], float] = time.perf_counter,
        give_way: Callable[[], object] = os.sched_yield,
    ) -> None:
        self._limit_s, self._clock, self._give_way = limit_s, clock, give_way
        self._soon = False  # the last wait was short: this one may be

    def wait(self, look: Callable[[], T | None], sleep: Callable[[], T], *, alone: bool) -> T:
        """What `look` finds, or, if that is nothing for too long, what `sleep` returns.

        `alone`: what came last was of a single caller. With several, who brings something needs the processor more.
        """
        began = now = self._clock()
        if self._soon and alone:
            while now - began < self._limit_s:
                if (found := look()) is not None:
                    return found
                self._give_way()
                now = self._clock()
        found = sleep()
        self._soon = self._clock() - began < self._limit_s
        return found
