"""How far a recovery is: as a whole and by partition.

One rule: it adds up what the partitions report and passes it on at a limited rate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from cmdlog.work_progress import count_progress
from replay.plan.node_plan import Plan
from replay.results import WorkPace

DISPLAY_EVERY_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class RecoveryProgress(WorkPace):
    """Progress of a recovery."""

    partitions: Mapping[int, WorkPace] = field(default_factory=dict)  # those that have calls to replay
    waiting: str = ""  # why some partition does not get on


class RecoveryMeter:
    """Adds up the progress of the partitions."""

    def __init__(self, plan: Plan, began: float, tell: Callable[[RecoveryProgress], None]) -> None:
        self._began, self._tell = began, tell
        self._totals = {part.partition: part.calls for part in plan.partitions if part.calls}
        self._total = sum(self._totals.values())
        self._before: dict[int, int] = {}
        self._paces: dict[int, WorkPace] = {p: WorkPace(0, total, 0.0) for p, total in self._totals.items()}
        self._reported_at = 0.0

    def resume_partition(self, partition: int, left: int) -> None:
        """Only so many calls of the partition are still to be replayed: an earlier process did the others."""
        self._before[partition] = max(0, self._totals.get(partition, 0) - left)
        self.count_calls(partition, 0)

    def count_calls(self, partition: int, calls: int) -> None:
        """This run has replayed so many calls of the partition."""
        count_progress()
        now, before = time.monotonic(), self._before.get(partition, 0)
        if partition in self._totals:
            total = self._totals[partition]  # what an earlier run did is an estimate
            self._paces[partition] = WorkPace(min(total, before + calls), total, now - self._began, before)
        done = sum(pace.done for pace in self._paces.values())
        if now - self._reported_at >= DISPLAY_EVERY_S or done >= self._total:
            self._reported_at = now
            self._tell(RecoveryProgress(done, self._total, now - self._began, sum(self._before.values()), dict(self._paces)))

    def end(self) -> None:
        """Every partition is at its end."""
        elapsed = time.monotonic() - self._began
        self._paces = {p: WorkPace(total, total, elapsed, self._before.get(p, 0)) for p, total in self._totals.items()}
        self._tell(RecoveryProgress(self._total, self._total, elapsed, sum(self._before.values()), dict(self._paces)))
