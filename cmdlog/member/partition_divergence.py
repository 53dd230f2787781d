"""What a member does about a partition whose state is another one than the other nodes have.

One rule: it is known durably before anything follows from it, and stays known: such a partition is not applied any further, takes
no calls, and keeps the node from leading, also after a restart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from cmdlog.cluster.executed_marks import ExecutedMarks
from cmdlog.node.site_events import SiteEvents
from cmdlog.wal.divergence_file import DivergenceFile, PartitionDivergence

KEEP: Final = (
    'calls that were acknowledged may be in this directory alone: keep a copy of it, see CLUSTER.md, "A disk that went back", '
    "then `cmdlog cluster replace`"
)
COMPARE: Final = "`cmdlog diff DIR1 DIR2` on copies of two nodes' directories names table and key"

log = structlog.get_logger("cmdlog.cluster")


class Divergences:
    """Under the driver's lock."""

    def __init__(self, file: DivergenceFile, desk: SiteEvents, *, describe: Callable[[int, int], str]) -> None:
        """`describe` names an entry of a partition with its calls."""
        self._file, self._desk, self._describe = file, desk, describe

    def restore_divergences(self, marks: ExecutedMarks) -> None:
        """What was known before the start."""
        for partition, of in self._file.by_partition().items():
            marks.set_diverged(partition, of.index)
            self._desk.begin_divergence(partition, of.reason)

    def begin_divergence(self, partition: int, index: int) -> None:
        """The batch did something else here than on the leader, or on a majority."""
        what = self._describe(partition, index)
        why = f"partition {partition} diverged at {what}: it changed other rows, or had other results, than on other nodes"
        self._file.add_divergence(partition, PartitionDivergence(index, f"{why}; {COMPARE}"))
        log.error("replica_diverged", partition=partition, index=index, reason=why, remedy=COMPARE)
        self._desk.begin_divergence(partition, f"{why}; {COMPARE}")

    def begin_contradiction(self, partition: int, index: int) -> None:
        """The leader has not what is committed here at that index: a disk went back, here or of those that elected it."""
        why = f"partition {partition} has committed entry {index}, which the leader has not: some node's disk went back in time"
        self._file.add_divergence(partition, PartitionDivergence(index, f"{why}; {KEEP}"))
        log.error("history_diverged", partition=partition, index=index, reason=why, remedy=KEEP)
        self._desk.begin_divergence(partition, f"{why}; {KEEP}")

    def end_divergence(self, partition: int, index: int) -> None:
        """A majority had the same digest: it is the leader that diverged."""
        self._file.remove_divergence(partition)
        log.warning("leader_diverged", partition=partition, index=index)
        self._desk.end_divergence(partition)
