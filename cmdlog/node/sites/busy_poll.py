"""Busy polling: while a single caller makes one call after the other, who has its next step looks for it without sleeping.

One rule: it is bounded and gives way. A wait sleeps after `busy_poll_us` at the latest, one after a long pause at once, and each
look offers the processor to whatever else wants it. If something did, nobody looks for a while: who spins while others work is
the last to be run when there is something to do, and one that sleeps the first.

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
STOLEN_S: Final = 0.001  # a processor that was given away for longer is wanted by others
REST_MIN_S, REST_MAX_S = 0.001, 1.0  # without looking after that, doubled each time
CALM_RESTS: Final = 10  # so many times the last rest without its like: the next one is the shortest again

T = TypeVar("T")


def busy_poll_s(settings: Settings) -> float:
    """How long a wait may look without sleeping; 0 also where this process may use only one processor."""
    return settings.busy_poll_us / 1e6 if usable_processors() >= PROCESSORS_MIN else 0.0


class Spinning:
    """Whether looking without sleeping is worth it at present. Owned by one thread."""

    def __init__(
        self,
        limit_s: float,
        *,
        clock: Callable[[], float] = time.perf_counter,
        give_way: Callable[[], object] = os.sched_yield,
    ) -> None:
        self.limit_s, self.clock, self._give_way = limit_s, clock, give_way
        self._ends_at = self._rests_until = 0.0
        self._rest_s = REST_MIN_S

    def start(self) -> bool:
        """A wait begins; whether it may look."""
        now = self.clock()
        self._ends_at = now + self.limit_s
        return self.limit_s > 0 and now >= self._rests_until

    def give_way(self) -> bool:
        """A look has found nothing: others may have the processor; whether there may be one more look then."""
        now = self.clock()
        if now >= self._ends_at:
            return False
        self._give_way()
        if (back := self.clock()) - now <= STOLEN_S:
            return True
        calm = now - self._rests_until > CALM_RESTS * self._rest_s
        self._rest_s = REST_MIN_S if calm else min(2 * self._rest_s, REST_MAX_S)
        self._rests_until = back + self._rest_s
        return False


class BusyPoll:
    """Waits for input. Owned by one thread."""

    def __init__(self, spinning: Spinning) -> None:
        self._spinning = spinning
        self._soon = False  # the last wait was short: this one may be

    def wait(self, look: Callable[[], T | None], sleep: Callable[[], T], *, alone: bool) -> T:
        """What `look` finds, or, if that is nothing for too long, what `sleep` returns.

        `alone`: what came last was of a single caller. With several, who brings something needs the processor more.
        """
        spinning = self._spinning
        began = spinning.clock()
        if self._soon and alone and spinning.start():
            while True:
                if (found := look()) is not None:
                    return found
                if not spinning.give_way():
                    break
        found = sleep()
        self._soon = spinning.clock() - began < spinning.limit_s
        return found
