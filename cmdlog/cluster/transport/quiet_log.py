"""Log events that a peer or a stranger can cause as often as it likes.

One rule: each kind of event is logged when it begins and then at most once in a while, with how often it happened meanwhile. So
the log shows it, and cannot be filled by it.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import structlog

QUIET_S: Final = 60.0
KEYS_MAX: Final = 1024  # beyond, all are forgotten: what is logged once too often is no harm

logger = structlog.get_logger("cmdlog.cluster")


class QuietLog:
    """One thread."""

    def __init__(self, *, quiet_s: float = QUIET_S, now: Callable[[], float] = time.monotonic) -> None:
        self._quiet_s, self._now = quiet_s, now
        self._due_s: dict[tuple[object, ...], float] = {}  # when an event of this key is logged again
        self._kept: Counter[tuple[object, ...]] = Counter()  # not logged since

    def log(self, event: str, *key: object, level: int = logging.WARNING, **facts: Any) -> None:
        """Logs the event, unless one with the same name and key was logged lately."""
        whole, now = (event, *key), self._now()
        if now < self._due_s.get(whole, now):
            self._kept[whole] += 1
            return
        if len(self._due_s) >= KEYS_MAX:
            self._due_s.clear()
            self._kept.clear()
        self._due_s[whole] = now + self._quiet_s
        more = {"unlogged": kept} if (kept := self._kept.pop(whole, 0)) else {}
        logger.log(level, event, **facts, **more)
