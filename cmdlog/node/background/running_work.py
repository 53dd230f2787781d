"""Background work of a node that is under way, and which of it makes no progress.

One rule: whatever runs beside the calls is tracked here from its begin to its end, and counts each piece that it has done
(`cmdlog.work_progress`); what its child processes count is counted as well. Work that has counted nothing for a minute is
stalled: status, metrics and the log show it. Nothing is ended for that: a slow disk may still come to an end.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import structlog

from cmdlog.work_progress import hear_progress

STALLED_AFTER_S: Final = 60.0  # without progress

WorkKind = Literal["snapshot", "archive", "drill", "deploy", "takeover", "scrub", "state_check"]

log = structlog.get_logger("cmdlog.node")


@dataclass(frozen=True, slots=True)
class StalledWork:
    """Work that has made no progress for `seconds`."""

    kind: WorkKind
    what: str
    step: str
    seconds: float

    def as_stall(self) -> dict[str, Any]:
        """In the form of a site that makes no progress (`StatusOverview.stalls`); no partition waits for it."""
        return {
            "site": None,
            "kind": self.kind,
            "seconds": round(self.seconds, 3),
            "partitions": [],
            "partition": None,
            "procedure": "",
            "txn_id": None,
            "message": f"{self.what}{self.step and f', {self.step}'}: no progress for {self.seconds:.0f} s",
        }


class Work:
    """One piece of work. Its own thread counts, any thread looks."""

    def __init__(self, kind: WorkKind, what: str, now: Callable[[], float]) -> None:
        self.kind, self.what, self.step = kind, what, ""
        self._now, self._moved_at = now, now()
        self.is_reported = False  # the log says that it is stalled

    def enter(self, step: str) -> None:
        """The next step begins: what it waits for or does, in a few words."""
        self.step = step
        self.advance()

    def advance(self) -> None:
        """Something was done."""
        self._moved_at = self._now()

    def describe(self) -> StalledWork:
        """How long nothing was done."""
        return StalledWork(self.kind, self.what, self.step, self._now() - self._moved_at)

    def mark_reported(self, *, is_stalled: bool) -> bool:
        """Whether that is news for the log."""
        is_news, self.is_reported = is_stalled != self.is_reported, is_stalled
        return is_news


class RunningWork:
    """Of one node. Any thread."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        """`now` is a monotonic clock."""
        self._now = now
        self._lock = threading.Lock()
        self._works: list[Work] = []

    @contextlib.contextmanager
    def track(self, kind: WorkKind, what: str) -> Iterator[Work]:
        """Within it, this thread does that work; `what` names it for people."""
        work = Work(kind, what, self._now)
        with self._lock:
            self._works.append(work)
        try:
            with hear_progress(work.advance):
                yield work
        finally:
            with self._lock:
                self._works.remove(work)
            if work.is_reported:
                log.info("work_ended", work=kind, what=what)

    def stalled(self) -> list[StalledWork]:
        """Work that makes no progress, the longest first."""
        found = [found for work in self._under_way() if (found := work.describe()).seconds >= STALLED_AFTER_S]
        return sorted(found, key=lambda found: -found.seconds)

    def report_stalled(self) -> None:
        """One line of the log when work is stalled, and one when it resumes."""
        for work in self._under_way():
            found = work.describe()
            is_stalled = found.seconds >= STALLED_AFTER_S
            if work.mark_reported(is_stalled=is_stalled):
                if is_stalled:
                    log.error("work_stalled", work=found.kind, what=found.what, step=found.step, seconds=round(found.seconds, 1))
                else:
                    log.info("work_resumed", work=found.kind, what=found.what, step=found.step)

    def _under_way(self) -> list[Work]:
        with self._lock:
            return list(self._works)
