"""Whether this node should lead: what its partitions, its sites, its log and its take-over say.

One rule: it only looks, once a second. What may pass by itself counts when it was there two looks in a row, so that a restart of
a site moves no leadership.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Final

import structlog

from cmdlog.cluster.leader_fitness import FIT, Unfitness
from cmdlog.member.leading.directory_lineage import DirectoryLineage
from cmdlog.member.leading.leadership import Leadership, Standing
from cmdlog.node.sites.partition_health import PartitionHealth
from cmdlog.node.sites.site_faults import DIVERGED, FULL
from cmdlog.node.sites.site_progress import SiteStall

STALL_S: Final = 2.0  # of a site that is stopped, does not read, or is gone
STILL_LOOKS: Final = 5  # without progress of a take-over, until another node may try
STUCK_LOOKS: Final = 30  # for which a node that did not come through stays the last choice

log = structlog.get_logger("cmdlog.cluster")

Progress = tuple[str, int]  # the step of a take-over, and a number that grows while it moves


class FitnessChecks:
    """One thread, the one that brings time."""

    def __init__(
        self,
        troubles: PartitionHealth,
        lineage: DirectoryLineage,
        leadership: Leadership,
        *,
        stalls: Callable[[float], Collection[SiteStall]],
        is_full: Callable[[], bool],
        progress: Callable[[], Progress],
    ) -> None:
        """`stalls` of sites at a reading of the monotonic clock; `is_full`: the log, or its volume, has no room for a call;
        `progress` of a take-over under way."""
        self._troubles, self._lineage, self._leadership = troubles, lineage, leadership
        self._stalls, self._is_full, self._progress = stalls, is_full, progress
        self._diverged: frozenset[int] = frozenset()
        self._before = FIT
        self._seen: Progress = "", 0
        self._still = self._stuck = 0

    def find_reasons(self) -> Unfitness:
        """Why the node should not lead; another look."""
        kinds, stalls = {trouble.kind for trouble in self._troubles.by_partition().values()}, self._stalls(time.monotonic())
        now = FIT
        if FULL in kinds or self._is_full():
            now |= Unfitness.LOG_FULL
        if kinds - {FULL, DIVERGED} or any(stall.kind != "running" and stall.seconds >= STALL_S for stall in stalls):
            now |= Unfitness.STUCK
        reasons, self._before = now & self._before, now
        if DIVERGED in kinds or self._lineage.met_later:
            reasons |= Unfitness.DIVERGED
        return reasons | self._look_at_takeover(at_work=any(stall.kind == "running" for stall in stalls))

    def has_other_divergences(self) -> bool:
        """Whether other partitions diverge than when this was asked last."""
        before = self._diverged
        self._diverged = frozenset(p for p, of in self._troubles.by_partition().items() if of.kind == DIVERGED)
        return self._diverged != before

    def _look_at_takeover(self, *, at_work: bool) -> Unfitness:
        """`at_work`: a site runs something long, a migration say. It would on another node, too."""
        self._stuck = max(self._stuck - 1, 0)
        seen = self._progress() if self._leadership.standing is Standing.TAKING_OVER else ("", 0)
        self._still = self._still + 1 if seen == self._seen and seen[0] and not at_work else 0
        self._seen = seen
        if self._still == STILL_LOOKS:
            log.error("takeover_stuck", step=seen[0], remedy="leadership goes to another node, if there is one")
            self._stuck = STUCK_LOOKS
        return Unfitness.STUCK if self._stuck else FIT
