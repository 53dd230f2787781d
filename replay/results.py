"""The result of replaying one partition, and how far such work is."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(slots=True)
class PartitionResult:
    """The result of replaying one partition."""

    partition: int
    entries: int = 0
    calls: int = 0
    batches: int = 0
    digests: int = 0  # batches whose results were compared with the live run's
    distrusted: int = 0  # batches that were not, since the log's digests are of a state that other nodes did not have
    distrust: str = ""  # … and since when, in which log
    index: int = 0
    term: int = 0
    checksum: int = 0
    txn_id: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class WorkPace:
    """How much of something (calls, rows) is done, of how much, and how fast."""

    done: int
    total: int
    elapsed_s: float  # of this run
    before: int = 0  # of `done`, that an earlier run did

    @property
    def rate(self) -> float:
        """Per second so far."""
        return (self.done - self.before) / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def percent(self) -> float:
        return min(100.0, 100.0 * self.done / self.total) if self.total else 100.0

    @property
    def left_s(self) -> float | None:
        """Estimate; None before anything was measured."""
        return max(0, self.total - self.done) / self.rate if self.rate > 0 else None
