"""The log's end: where the next block goes, and the rotation into the next segment.

One rule: only the holder of the turn is in here. Numbers, positions and chain are given out one block after the other; writing
and syncing what was given out is the business of the thread that asked.

Every segment keeps one sector for a seal, so that the last block of a full segment can get its evidence without a rotation.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from cmdlog.wal.directory.sizing import block_bytes_max, fresh_bytes
from cmdlog.wal.errors import RecordsTooLarge
from cmdlog.wal.files import Files
from cmdlog.wal.format.block import SECTOR_BYTES, BlockFlag, block_bytes, encode_block
from cmdlog.wal.format.segment import SegmentHeader, decode_segment_header, encode_segment_header, segment_name
from cmdlog.wal.ids import BlockNumber
from cmdlog.wal.opening.repair import Mended
from cmdlog.wal.opening.survey import SegmentFile
from cmdlog.wal.writing.segment_pool import SegmentPool

_SEAL: Final = BlockFlag.SEAL  # looked up once: on the class that takes a third of a microsecond


PLACED: Final = 0  # stages of a block
WRITTEN: Final = 1  # in the page cache, or on its way to the disk by the direct writer
LEFT: Final = 2  # and without a sync of its own
SYNCED: Final = 3


@dataclass(slots=True)  # not frozen: one is made per block, and freezing costs 1.5 us
class PlacedBlock:
    """A block with its place, from there to its end."""

    number: int
    path: str
    offset: int
    data: bytes
    is_taken: bool  # from the source, which hears of it; else a seal
    awaited: bool = False  # its durability: it gets a sync of its own
    beside: Callable[[], None] | None = None  # waits for what must be durable elsewhere before the block counts as durable
    stage: int = PLACED
    since: float = 0.0  # when the direct writer got it, or it was left


class Tail:
    """Turn holder only, but for the plain numbers `number` and `left_bytes`, which anyone may read."""

    def __init__(self, files: Files, pool: SegmentPool, mended: Mended, generation: Callable[[], int]) -> None:
        self._files, self._pool, self.groups, self._generation = files, pool, mended.recovered.groups, generation
        self._open_count = mended.recovered.open_count
        self.segment, last = pool.newest(), mended.place.header
        self.offset, self._chain = mended.place.offset + last.total_bytes, last.checksum
        self.number: int = last.number  # of the last block given out
        self.sealed = mended.sealed
        size = self.segment.header.segment_bytes  # of every segment of this log
        self.block_bytes_max = block_bytes_max(size)
        self._records_end = size - SECTOR_BYTES  # the seal's sector is kept out
        self.left_bytes = self._records_end - self.offset  # what records may still take in this segment
        self.worth_bytes = max(SECTOR_BYTES, min(self.block_bytes_max, size // 16))  # a shorter rest is not worth a block
        self.checkpoint_bytes = block_bytes(self._checkpoints())
        self.fresh_bytes = fresh_bytes(size, self.checkpoint_bytes)  # what a new segment offers to records

    def place(self, records: Sequence[bytes], *, flags: BlockFlag, durable_upto: int) -> PlacedBlock | None:
        """Gives the records their block; the fold has seen them on return. `flags`: NONE or SEAL. None: the segment's rest is too
        short for them. Raises: RecordsTooLarge where every segment is."""
        number = self.number + 1
        data, checksum = encode_block(
            records,
            flags=flags,
            generation=self.segment.header.generation,
            number=number,
            durable_upto=durable_upto,
            chain=self._chain,
            open_count=self._open_count,
        )
        size, is_seal = len(data), flags is _SEAL
        if size > self.block_bytes_max:
            raise RecordsTooLarge(f"a block of {size} bytes; the limit with these segments is {self.block_bytes_max}")
        if size > self.left_bytes and not is_seal:
            return None
        self.groups.observe_block(number, records)
        placed = PlacedBlock(number, self.segment.path, self.offset, data, not is_seal)
        self.number, self._chain, self.sealed = number, checksum, is_seal
        self.offset += size
        self.left_bytes -= size
        return placed

    def rotate(self) -> None:
        """Moves into the next segment; the caller has made every block so far durable, and a file is ready.

        Durable on return: the new segment's head and name. Raises: WriteFailed, DiskFull.
        """
        path = self._pool.take_ready()
        assert path is not None
        before = self.segment.header
        records = self._checkpoints()
        file = self._files.open(path)
        try:
            header = SegmentHeader(
                cluster_id=before.cluster_id,
                incarnation=self._pool.instance.identity.incarnation,
                node_id=before.node_id,
                open_count=self._open_count,
                generation=self._generation(),
                previous_generation=before.generation,
                earlier_life=_earlier_life(file.pread(SECTOR_BYTES, 0)),
                sequence=before.sequence + 1,
                first_block=BlockNumber(self.number + 1),
                segment_bytes=before.segment_bytes,
                previous_chain=self._chain,
            )
            data, checksum = encode_head(header, records, durable_upto=self.number)
            if len(data) > before.segment_bytes // 2:
                raise RecordsTooLarge(f"a checkpoint of {len(data)} bytes leaves too little of a segment; use larger segments")
            file.pwrite(data, 0)
            file.fdatasync()
        finally:
            file.close()
        name = os.path.join(self._pool.log_dir, segment_name(header.sequence))
        self._files.rename(path, name)
        self._files.fsync_dir(self._pool.log_dir)
        self.segment = SegmentFile(name, header)
        self.number, self._chain, self.offset = self.number + 1, checksum, len(data)
        self.left_bytes = self._records_end - self.offset
        self.sealed = True  # the file's name vouches for its head
        self.checkpoint_bytes = len(data) - SECTOR_BYTES
        self.fresh_bytes = fresh_bytes(before.segment_bytes, self.checkpoint_bytes)
        self._pool.put_to_use(self.segment)

    def _checkpoints(self) -> list[bytes]:
        """Of old code that no batch of the log uses, as much as leaves room for records in the segment."""
        oldest_block = self._pool.oldest().header.first_block
        records = self.groups.checkpoints(oldest_block=oldest_block)
        if SECTOR_BYTES + block_bytes(records) > self.segment.header.segment_bytes // 2:
            records = self.groups.checkpoints(oldest_block=oldest_block, catalogs_kept=1)
        return records


def encode_head(header: SegmentHeader, records: Sequence[bytes], *, durable_upto: int) -> tuple[bytes, int]:
    """Header sector and checkpoint block of a segment, and the chain for the block after."""
    block, checksum = encode_block(
        records,
        flags=BlockFlag.CHECKPOINT,
        generation=header.generation,
        number=header.first_block,
        durable_upto=durable_upto,
        chain=header.previous_chain,
        open_count=header.open_count,
    )
    return encode_segment_header(header) + block, checksum


def _earlier_life(sector: bytes) -> int:
    """The generation that a recycled file holds; 0 for a file of zeros, 1 for one whose old header is unreadable."""
    if not sector.strip(b"\0"):
        return 0
    try:
        return decode_segment_header(sector).generation
    except ValueError:
        return 1
