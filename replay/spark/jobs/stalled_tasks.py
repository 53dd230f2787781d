"""Which running task has reported nothing for long, and where it runs: Spark waits for a worker that hangs, however long.

One rule: it only looks. A task may be silent for a good reason, such as a large snapshot that is restored: people decide.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

STALLED_S: Final = 30.0  # many times what lies between two reports of a task that replays


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """What a running attempt has reported last."""

    calls: int
    process: str = ""  # and its machine


class StalledTasks:
    """Owned by one thread."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._seen: dict[str, tuple[TaskProgress, float, str]] = {}  # by task: the report, when it came, and the same for people

    def find(self, running: Mapping[str, TaskProgress]) -> str:
        """A sentence about the one that has been silent for longest, the same at each look; "" where none has for long."""
        now, clock = self._now(), time.strftime("%H:%M:%S UTC", time.gmtime())
        for key, report in running.items():
            if key not in self._seen or self._seen[key][0] != report:
                self._seen[key] = report, now, clock
        silent = [(self._seen[key][1], key) for key in running if now - self._seen[key][1] >= STALLED_S]
        if not silent:
            return ""
        report, _, since = self._seen[min(silent)[1]]
        return (
            f"task {min(silent)[1]} has reported nothing since {since}, {report.process or 'on an executor'}; "
            "if it hangs, kill that process, and Spark runs the task again"
        )
