"""When a snapshot is due: a pure decision over what the log holds and which snapshots there are.

One rule: it only looks. `cmdlog.node.snapshots` does what it says.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from snapshot.catalog import Snapshot
from snapshot.retention import anchor_block


@dataclass(frozen=True, slots=True)
class LogView:
    """What of the log's ring is in use."""

    first_blocks: Sequence[int]  # of the segments in use, ascending
    segments: int  # of the whole ring

    def segments_since(self, block: int) -> int:
        """Segments that were begun after this block."""
        return len(self.first_blocks) - bisect_right(self.first_blocks, block)


def due(view: LogView, snapshots: Mapping[int, Sequence[Snapshot]], partitions: Sequence[int], *, fraction: float) -> int | None:
    """The partition whose snapshot is due, the one that holds the oldest block first; None when none is.

    A partition is due when half of `fraction` of the ring was written since its newest snapshot, so that its second-newest stays
    within `fraction` of the ring; idle partitions too. When three quarters of what is left beside `fraction` are in use as well,
    whoever holds anything but the newest segment is due.
    """
    every = max(1, int(view.segments * fraction / 2))
    crowded = len(view.first_blocks) >= view.segments * (fraction + (1 - fraction) * 3 / 4)
    for partition in sorted(partitions, key=lambda p: anchor_block(snapshots.get(p, ())) or 0):
        usable = [s.manifest.log_block for s in snapshots.get(partition, ()) if s.manifest is not None]
        if view.segments_since(max(usable, default=0)) > every:
            return partition
        if crowded and view.segments_since(anchor_block(snapshots.get(partition, ())) or 0) > 0:
            return partition
    return None
