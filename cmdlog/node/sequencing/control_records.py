"""Control records that ride along: digests, snapshot marks, and the commit marks of all streams.

One rule: notes cost no sync of their own while calls bring blocks; an idle node gives them one. Owned by the sequencer's lock.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from cmdlog.node.sequencing.partition_pipeline import PartitionPipeline
from cmdlog.wal.format.block import HEADER, RECORD_ALIGN, SECTOR_BYTES
from cmdlog.wal.format.record import encode_commit_mark
from cmdlog.wal.ids import TxnId

MARKS_EVERY_S: Final = 0.05  # commit marks and closed TxnIds of all streams, while the log is written

Note = tuple[bytes, Callable[[], None] | None]  # a control record, and what is called when it is durable


class ControlRecords:
    """What waits for the next block. `due` asks for a block though no calls bring one."""

    __slots__ = ("_marks_at", "_room_bytes", "_waiting", "due")

    def __init__(self, *, room_bytes: Callable[[], int]) -> None:
        self._room_bytes = room_bytes  # that the log has for them: they never take the last of its reserve
        self._waiting: deque[Note] = deque()
        self._marks_at = 0.0
        self.due = False

    @property
    def fit(self) -> bool:
        """Whether the log has room for a block of them."""
        return self._room_bytes() >= SECTOR_BYTES

    @property
    def wanted(self) -> bool:
        """They are due, and have room."""
        return self.due and self.fit

    def put(self, record: bytes, done: Callable[[], None] | None) -> None:
        self._waiting.append((record, done))

    def find_due(self, streams: Iterable[PartitionPipeline]) -> bool:
        """Whether anything has to be written to the log; it is `due` then."""
        self.due = bool(self._waiting) or any(stream.marked_index < stream.durable_index for stream in streams)
        return self.due

    def take_records(self, block_bytes: int) -> list[Note]:
        """Those for the next block, in half of its room, or one in all of it; the rest follows in a block after.

        One that the rest of the segment is too short for waits: nothing that could wait for a free segment is taken.
        """
        taken: list[Note] = []
        log_bytes = self._room_bytes() if self._waiting else 0
        if log_bytes < SECTOR_BYTES:
            return taken
        room_bytes = min(block_bytes, log_bytes - HEADER.bytes)
        if len(self._waiting[0][0]) > room_bytes:
            return taken
        total, bytes_max = 0, min(block_bytes // 2, room_bytes)
        while self._waiting and (not taken or total + len(self._waiting[0][0]) <= bytes_max):
            taken.append(self._waiting.popleft())
            total += len(taken[-1][0]) + RECORD_ALIGN
        return taken

    def put_back(self, notes: list[Note]) -> None:
        """The block that they were taken for was not made."""
        self._waiting.extendleft(reversed(notes))

    def taken(self) -> None:
        """A block has them; what is left wants the next one."""
        self.due = bool(self._waiting)

    def commit_marks(self, streams: Iterable[PartitionPipeline], *, closed: TxnId) -> list[bytes]:
        """Of every stream, every MARKS_EVERY_S while blocks are written, and once more when the node is idle.

        A one-voter group has committed what is durable, so marks add nothing new: they are there for readers of the log.
        """
        now = time.monotonic()
        if not self.due and now - self._marks_at < MARKS_EVERY_S:
            return []
        self._marks_at = now
        marks = []
        for stream in streams:
            stream.mark_committed()
            marks.append(
                encode_commit_mark(partition=stream.partition, term=stream.term, commit=stream.durable_index, closed_txn=closed)
            )
        return marks
