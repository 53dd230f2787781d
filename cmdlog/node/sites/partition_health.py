"""Which partitions cannot run their batches, and why: a full volume, a broken disk, a state that does not fit.

One rule: a change is reported once, in one line of the log, however often it is tried again in between.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from cmdlog.node.outcome import CallRefused, DiskFullRefusal, NotReady
from cmdlog.node.sites.site_faults import DIVERGED, FULL

log = structlog.get_logger("cmdlog.node")


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a partition cannot run, in the words of its site."""

    kind: str  # of a `SiteFault`
    message: str
    since: float  # seconds since 1970


class PartitionHealth:
    """Those of one node. Thread-safe."""

    def __init__(self, directory: str, *, wall: Callable[[], float] = time.time) -> None:
        self._directory, self._wall = directory, wall
        self._lock = threading.Lock()
        self._of: dict[int, Trouble] = {}

    @property
    def full(self) -> bool:
        """The volume is full, as far as some partition has met it."""
        return any(trouble.kind == FULL for trouble in self.by_partition().values())

    def by_partition(self) -> Mapping[int, Trouble]:
        """Partition -> why it cannot run; those that can are not in it."""
        with self._lock:
            return dict(self._of)

    def free_bytes(self) -> int:
        """What the volume of the directory has left."""
        volume = os.statvfs(self._directory)
        return volume.f_bavail * volume.f_frsize

    def begin_trouble(self, partitions: Iterable[int], kind: str, message: str) -> None:
        """They cannot run from now on, for this reason."""
        with self._lock:
            new = [p for p in partitions if p not in self._of or self._of[p].kind not in (kind, DIVERGED)]
            self._of |= {p: Trouble(kind, message, self._wall()) for p in new}
        if new:
            where = {"path": self._directory, "free_bytes": self.free_bytes()} if kind == FULL else {}
            log.error("refusing_calls", kind=kind, partitions=new, reason=message, **where)

    def end(self, partitions: Iterable[int]) -> None:
        """They run again, but for those that diverged."""
        self._end([p for p, trouble in self.by_partition().items() if p in set(partitions) and trouble.kind != DIVERGED])

    def end_divergence(self, partition: int) -> None:
        """A majority agrees with this node after all."""
        self._end([partition])

    def _end(self, partitions: Iterable[int]) -> None:
        with self._lock:
            ended = {p: self._of.pop(p) for p in partitions if p in self._of}
        if ended:
            lasted_s = round(self._wall() - min(trouble.since for trouble in ended.values()), 3)
            log.warning("accepting_calls", partitions=list(ended), lasted_s=lasted_s)

    def refusal(self, partition: int) -> CallRefused | None:
        """What a call to the partition is refused with. A full volume is full for every partition: all states lie on it."""
        troubles = self.by_partition()
        full = next((trouble for trouble in troubles.values() if trouble.kind == FULL), None)
        if full is not None:
            return DiskFullRefusal(f"{self._directory} has {self.free_bytes()} bytes free: {full.message}")
        trouble = troubles.get(partition)
        if trouble is None or trouble.kind == DIVERGED:
            return None if trouble is None else NotReady(trouble.message)
        return NotReady(f"the site cannot run: {trouble.message}")

    def disk_full(self) -> dict[str, Any] | None:
        """For `status`: where, how much is free, since when, and who has met it; None while nobody has."""
        met = {p: trouble for p, trouble in self.by_partition().items() if trouble.kind == FULL}
        if not met:
            return None
        first = min(met.values(), key=lambda trouble: trouble.since)
        return {
            "path": self._directory,
            "free_bytes": self.free_bytes(),
            "since": round(first.since, 3),
            "partitions": sorted(met),
            "reason": first.message,
        }
