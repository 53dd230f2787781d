"""What a number of partitions asks of a log's fixed sizes.

One rule: asked before anything is made, by whoever makes a node: a new one, or one of another number of partitions.
"""

from __future__ import annotations

from typing import Final

from cmdlog.wal.block import SECTOR_BYTES
from cmdlog.wal.instance import BadSettings

PARTITION_BYTES: Final = 512  # of a partition in a segment's checkpoint, and four times its share of what a block keeps free


def check_room(partitions: int, segment_bytes: int) -> None:
    """Raises: BadSettings when a segment is too small for so many partitions."""
    if partitions * PARTITION_BYTES > segment_bytes // 4:
        least = 4 * PARTITION_BYTES * partitions
        raise BadSettings(f"segment_bytes {segment_bytes} is too little for {partitions} partitions: {least} at least")


def reserve_for(partitions: int, segment_bytes: int, wanted_bytes: int) -> int:
    """At least what it takes to get out of a full log: two snapshots of every partition, a mark and a seal each."""
    marks = 2 * (partitions + 2) * 2 * SECTOR_BYTES
    return max(wanted_bytes, min(marks, segment_bytes // 2))
