"""What a log's fixed sizes have to hold, so that it always gets out of being full.

One rule: asked before anything is made, by whatever makes a node: a new one, or one of another number of partitions. A size that
cannot work is refused with the smallest one that does.

A full log gets out by snapshots, which need no room in it: when every anchor has moved into the newest segment, the others are
free. So a ring works when a head (header and checkpoint) leaves room in a segment, one record of code fits in a block, and all
segments but the newest have room for a call beside the reserve.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cmdlog.wal.directory.instance import BadSettings
from cmdlog.wal.format.block import HEADER, SECTOR_BYTES, padded
from cmdlog.wal.format.segment import SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN

BLOCK_BYTES_MAX: Final = 4 << 20  # one write; longer ones only add latency
BLOCK_SHARE_MAX: Final = 4  # a block takes at most this part of a segment, so that little is wasted at its end
PARTITION_BYTES: Final = 512  # of a partition in a segment's checkpoint, and four times its share of what a block keeps free
SKIP_BYTES: Final = 512  # of a partition when a multi-partition call is skipped: hard state, skip, commit mark
CALL_BYTES_MIN: Final = 1024  # of parameters: the least that a ring must always take


@dataclass(frozen=True, slots=True)
class RingSize:
    """Sizes of a log, and what it has to hold."""

    partitions: int
    segments: int
    segment_bytes: int
    reserve_bytes: int
    code_bytes: int = 0  # of the longest record of code, environment and configuration
    state_bytes: int = 0  # of the newest two versions of them in a checkpoint

    def problem(self) -> str:
        """Why a log of these sizes would not get out of being full; "" when it would."""
        head_bytes = padded(HEADER.bytes + self.state_bytes + self.partitions * PARTITION_BYTES)
        if self.partitions * PARTITION_BYTES > self.segment_bytes // 4:
            return f"too little for {self.partitions} partitions"
        if padded(HEADER.bytes + self.code_bytes) > block_bytes_max(self.segment_bytes):
            return f"too little for the application's code, {self.code_bytes} bytes compressed"
        if SECTOR_BYTES + head_bytes > self.segment_bytes // 2:
            return f"too little for the head of a segment, {SECTOR_BYTES + head_bytes} bytes of partitions and code"
        reserve_bytes = reserve_for(self.partitions, self.segment_bytes, self.reserve_bytes)
        room_bytes = (self.segments - 1) * fresh_bytes(self.segment_bytes, head_bytes) - reserve_bytes
        if room_bytes < CALL_BYTES_MIN + self.partitions * PARTITION_BYTES:
            return f"too little for a call beside a reserve of {reserve_bytes} bytes in {self.segments} segments"
        return ""

    def check(self) -> None:
        """Raises: BadSettings with the smallest segment that works."""
        if problem := self.problem():
            raise BadSettings(f"segment_bytes {self.segment_bytes} is {problem}: {self._least_bytes()} at least")

    def _least_bytes(self) -> int:
        for segment_bytes in range(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX + 1, SECTOR_BYTES):
            ring = RingSize(self.partitions, self.segments, segment_bytes, self.reserve_bytes, self.code_bytes, self.state_bytes)
            if not ring.problem():
                return segment_bytes
        return SEGMENT_BYTES_MAX


def block_bytes_max(segment_bytes: int) -> int:
    """Largest block that records may fill."""
    return min(BLOCK_BYTES_MAX, segment_bytes // BLOCK_SHARE_MAX // SECTOR_BYTES * SECTOR_BYTES)


def fresh_bytes(segment_bytes: int, checkpoint_bytes: int) -> int:
    """What a new segment offers to records, less what the last block may leave unused at its end."""
    return segment_bytes * 15 // 16 - 2 * SECTOR_BYTES - checkpoint_bytes


def skip_bytes(partitions: int) -> int:
    """What of the reserve is kept for the skip of a call that hangs: without it, such a call would stop every start."""
    return padded(HEADER.bytes + partitions * SKIP_BYTES) + SECTOR_BYTES  # and a seal


def reserve_for(partitions: int, segment_bytes: int, wanted_bytes: int) -> int:
    """At least what a skip takes."""
    return min(max(wanted_bytes, skip_bytes(partitions)), segment_bytes // 2)
