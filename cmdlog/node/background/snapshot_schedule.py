"""When a snapshot is due, and of which partition: a pure decision over what the log holds and which snapshots there are.

One rule: it only looks. `cmdlog.node.snapshots.snapshotter` does what it says.

    log bytes   half of `fraction` of the ring was written since the partition's newest snapshot, so that its second-newest stays
                within `fraction`; idle partitions too, or one of them would hold the whole log. When three quarters of what is
                left beside `fraction` are in use as well, or a call may be refused, every holder of anything but the newest
                segment is due
    budget      the replay of what newest snapshots do not hold would take BUDGET_SHARE of the recovery budget that restoring
                leaves; the partition with the longest replay goes first
    age         the newest snapshot is older than `age_max_s`, and the partition has executed something since
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from snapshot.catalog import Snapshot
from snapshot.retention import anchor_block

BUDGET_SHARE: Final = 0.5  # the next image takes time too, in which the log grows on
LOG_BYTES_MIN: Final = (
    16 << 10
)  # of log for each snapshot; a snapshot takes so long that writes wait for those of a smaller share
REPLAY_MIN_S: Final = 1.0  # below it a snapshot would gain nothing that an operator notices


@dataclass(frozen=True, slots=True)
class LogView:
    """What of the log's ring is in use."""

    first_blocks: Sequence[int]  # of the segments in use, ascending
    segments: int  # of the whole ring
    full: bool = False  # a call may be refused for want of room

    @property
    def fill(self) -> float:
        return len(self.first_blocks) / self.segments

    def segments_since(self, block: int) -> int:
        """Segments that were begun after this block."""
        return len(self.first_blocks) - bisect_right(self.first_blocks, block)


@dataclass(frozen=True, slots=True)
class Forecast:
    """Per partition, how long the parts of a recovery would take, seconds."""

    replay_s: Mapping[int, float] = field(default_factory=dict)
    restore_s: Mapping[int, float] = field(default_factory=dict)
    workers: int = 1

    @property
    def total_s(self) -> float:
        """Partitions are spread over the workers: as long as the longest one, or as all of them together take."""
        return _spread([s + self.restore_s.get(p, 0.0) for p, s in self.replay_s.items()], self.workers)

    @property
    def restoring_s(self) -> float:
        return _spread(list(self.restore_s.values()), self.workers)

    @property
    def replaying_s(self) -> float:
        return _spread(list(self.replay_s.values()), self.workers)


@dataclass(frozen=True, slots=True)
class SnapshotPolicy:
    """What the settings ask for; 0 switches `age_max_s` and `budget_s` off."""

    fraction: float  # of the ring
    age_max_s: float = 0.0
    budget_s: float = 0.0


class Due(NamedTuple):
    partition: int
    why: str  # log, budget, age


def due(
    policy: SnapshotPolicy, view: LogView, snapshots: Mapping[int, Sequence[Snapshot]], partitions: Sequence[int], *,
    forecast: Forecast | None = None, ages_s: Mapping[int, float] | None = None,
) -> Due | None:  # fmt: skip
    """The snapshot that is to be taken next; None when none is due.

    `ages_s`: of the newest snapshot of each partition that has executed something since.
    """
    if (partition := _due_by_log(policy, view, snapshots, partitions)) is not None:
        return Due(partition, "log")
    if policy.budget_s and forecast is not None and forecast.replay_s:
        longest = max(forecast.replay_s, key=lambda p: (forecast.replay_s[p], -p))
        left_s = max(policy.budget_s - forecast.restoring_s, 0.0)
        if forecast.replay_s[longest] >= REPLAY_MIN_S and forecast.replaying_s > BUDGET_SHARE * left_s:
            return Due(longest, "budget")
    if policy.age_max_s and ages_s:
        oldest = max(ages_s, key=lambda p: (ages_s[p], -p))
        if ages_s[oldest] > policy.age_max_s:
            return Due(oldest, "age")
    return None


def segments_between(segments: int, fraction: float) -> int:
    """How many segments are written between two snapshots of a partition, at most."""
    return max(1, int(segments * fraction / 2))


def segments_wanted(partitions: int, segments: int, segment_bytes: int, fraction: float) -> int:
    """The least number of segments, from `segments` on, with which writes seldom wait for the snapshots of all partitions."""
    wanted = segments
    while segments_between(wanted, fraction) * segment_bytes < partitions * LOG_BYTES_MIN:
        wanted += 1
    return wanted


def urgency(policy: SnapshotPolicy, view: LogView, forecast: Forecast) -> float:
    """How pressing truncation is: 0 not at all, 1 with the log at its soft limit or the forecast at the budget, more beyond."""
    by_budget = forecast.total_s / policy.budget_s if policy.budget_s else 0.0
    return max(view.fill / policy.fraction, by_budget)


def _due_by_log(
    policy: SnapshotPolicy, view: LogView, snapshots: Mapping[int, Sequence[Snapshot]], partitions: Sequence[int]
) -> int | None:
    """The holder of the oldest block is considered first."""
    every = segments_between(view.segments, policy.fraction)
    crowded = view.full or len(view.first_blocks) >= view.segments * (policy.fraction + (1 - policy.fraction) * 3 / 4)
    for partition in sorted(partitions, key=lambda p: anchor_block(snapshots.get(p, ())) or 0):
        usable = [s.manifest.log_block for s in snapshots.get(partition, ()) if s.manifest is not None]
        if view.segments_since(max(usable, default=0)) > every:
            return partition
        if crowded and view.segments_since(anchor_block(snapshots.get(partition, ())) or 0) > 0:
            return partition
    return None


def _spread(times: Sequence[float], workers: int) -> float:
    return max(max(times, default=0.0), sum(times) / max(1, min(workers, len(times) or 1)))
