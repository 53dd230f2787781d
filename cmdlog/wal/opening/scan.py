"""Walks one segment's bytes: the chain of good blocks from its head, and whatever else is there.

One rule: it looks, it does not judge. What the end of the chain means is decided in `restart.py`.

The walk ends at the first place that does not hold the next block: next number, this generation, the chain of the block before,
good checksums. After that place every sector is tried for a header of this life, because one that says `durable_upto >= b`
proves that block b had been acknowledged.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from cmdlog.wal.format.block import (
    HEADER,
    MAGIC,
    SECTOR_BYTES,
    BadBlock,
    BlockFlag,
    BlockHeader,
    check_body,
    decode_header,
    is_zero,
)
from cmdlog.wal.format.record import RECORD, BadRecord, Record, RecordKind, decode_body, decode_record
from cmdlog.wal.format.segment import SegmentHeader
from cmdlog.wal.ids import BlockNumber, Lsn

_SEAL: Final = int(BlockFlag.SEAL)
_CHECKPOINT: Final = int(BlockFlag.CHECKPOINT)


class EndKind(enum.Enum):
    """What is where the next block would be."""

    FULL = "the segment ends here"
    ZERO = "zeros"
    LEFTOVER = "bytes of the file's earlier life"
    BAD = "bytes that are no good block, of this life or in a file that was zeros"
    STALE = "a good block of an earlier opening of the log"
    MISPLACED = "a good block that does not belong here"
    NEWER = "a block of a newer format"


@dataclass(frozen=True, slots=True)
class BlockAt:
    """A block and its offset in the segment's file."""

    header: BlockHeader
    offset: int


@dataclass(frozen=True, slots=True)
class SegmentWalk:
    """One segment, walked. `later` are headers of this life after the end, wherever they are."""

    segment: SegmentHeader
    places: tuple[BlockAt, ...]
    end: int  # offset of the first byte that is no part of the chain
    end_kind: EndKind
    end_reason: str  # why the block at `end` is none, in one stable word
    later: tuple[BlockAt, ...]

    @property
    def expected(self) -> BlockNumber:
        """Number of the block that does not stand at `end`."""
        return BlockNumber(self.places[-1].header.number + 1 if self.places else self.segment.first_block)

    @property
    def chain(self) -> int:
        """What the next block must carry as `chain`."""
        return self.places[-1].header.checksum if self.places else self.segment.previous_chain

    @property
    def evidence(self) -> int:
        """Highest block that any block of this segment knew to be durable."""
        return max((place.header.durable_upto for place in (*self.places, *self.later)), default=0)

    @property
    def last_with_records(self) -> int:
        """Number of the last block that is no seal."""
        last = (p.header.number for p in reversed(self.places) if not p.header.flags & BlockFlag.SEAL)
        return next(last, 0)


def walk_segment(data: bytes, segment: SegmentHeader) -> SegmentWalk:
    """Walks the whole file's bytes, header sector included."""
    places: list[BlockAt] = []
    offset, expected, chain = SECTOR_BYTES, int(segment.first_block), segment.previous_chain
    kind, reason = EndKind.FULL, "end"
    while offset < len(data):
        try:
            header = read_block(data, offset, segment)
        except BadBlock as bad:
            kind, reason = _bad_end(data, offset, segment, bad)
            break
        if reason := misfit(header, expected=expected, chain=chain, first=segment.first_block):
            lower = bool(places) and header.open_count < places[-1].header.open_count
            kind = EndKind.STALE if lower else EndKind.MISPLACED
            break
        places.append(BlockAt(header, offset))
        offset, expected, chain = offset + header.total_bytes, expected + 1, header.checksum
    return SegmentWalk(segment, tuple(places), offset, kind, reason, tuple(_later(data, offset, segment)))


def read_block(data: bytes, offset: int, segment: SegmentHeader) -> BlockHeader:
    """The block at `offset`, header and body checked.

    Raises: BadBlock; reason "generation" for a good header of another life.
    """
    header = decode_header(data[offset : offset + HEADER.bytes])
    if header.generation != segment.generation:
        raise BadBlock("generation")
    check_body(header, data[offset : offset + header.total_bytes])
    return header


def misfit(header: BlockHeader, *, expected: int, chain: int, first: int) -> str:
    """Why a good block is not the expected one; "" when it is."""
    if header.number != expected:
        return f"number {header.number} instead of {expected}"
    if header.chain != chain:
        return "chain"
    flags = int(header.flags)  # a plain number: one is looked at per block, and an enum's `&` costs as much as the rest
    if bool(flags & _CHECKPOINT) != (expected == first):
        return "checkpoint flag"
    if flags & _SEAL and header.record_count:
        return "seal with records"
    if header.durable_upto >= header.number or header.open_count == 0:
        return "watermark"
    return ""


def _bad_end(data: bytes, offset: int, segment: SegmentHeader, bad: BadBlock) -> tuple[EndKind, str]:
    if bad.newer:
        return EndKind.NEWER, bad.reason
    ours = bad.reason in ("body_crc", "padding", "short", "reserved")  # the header was good, so the block is of this life
    if not ours and is_zero(data, offset, len(data)):
        return EndKind.ZERO, bad.reason
    if not ours and segment.earlier_life:
        return EndKind.LEFTOVER, bad.reason
    return EndKind.BAD, bad.reason


def _later(data: bytes, offset: int, segment: SegmentHeader) -> list[BlockAt]:
    """Every header of this life from `offset` on. Bodies are not looked at: a good header is evidence by itself."""
    found = []
    for position in range(offset, len(data) - HEADER.bytes, SECTOR_BYTES):
        if data[position : position + 4] != MAGIC:
            continue
        try:
            header = decode_header(data[position : position + HEADER.bytes])
        except BadBlock:
            continue
        if header.generation == segment.generation:
            found.append(BlockAt(header, position))
    return found


def records_at(data: bytes, place: BlockAt) -> Iterator[tuple[Lsn, Record]]:
    """The records of a block that is good, in order; `data` is the segment's file. Raises: BadRecord."""
    start = place.offset + HEADER.bytes
    for offset, record in decode_body(data[start : start + place.header.body_bytes]):
        yield Lsn(place.header.number, offset), record


@dataclass(frozen=True, slots=True)
class Suspect:
    """Which entry a damaged block concerns, as far as its bytes still show."""

    partition: int | None = None
    index: int | None = None
    txn_id: int | None = None


def locate_damage(data: bytes, offset: int, segment: SegmentHeader) -> Suspect:
    """The first bad record of the block at `offset`; nothing when the block's own header is bad."""
    try:
        header = decode_header(data[offset : offset + HEADER.bytes])
    except BadBlock:
        return Suspect()
    if header.generation != segment.generation:
        return Suspect()
    body = data[offset + HEADER.bytes : offset + HEADER.bytes + header.body_bytes]
    position = 0
    while len(body) - position >= RECORD.bytes:
        length, kind, _, partition, _, index, *_ = RECORD.unpack_from(body, position)
        end = position + length
        if length < RECORD.bytes or end > len(body):
            return Suspect()
        try:
            decode_record(body[position:end])
        except BadRecord:
            txn = int.from_bytes(body[position + RECORD.bytes : position + RECORD.bytes + 8], "little")
            return Suspect(partition, index, txn if kind == RecordKind.BATCH else None)
        position = end + -length % 8
    return Suspect()
