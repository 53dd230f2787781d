"""A block: what one write and one fdatasync put on disk. FORMAT.md "Block".

One rule: a header is either valid for *this* segment and place, or it is nothing; what a bad header means is for the restart
table alone (`cmdlog.wal.opening.restart`), which needs two fields that plain length-and-checksum formats lack:

- `chain` is the checksum of the previous block's header, so blocks cannot be lost, swapped or repeated unseen;
- `durable_upto` is the highest block known durable when this one was written: evidence that a bad block before it had been
  acknowledged, and so is corrupt, not torn.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import google_crc32c

from cmdlog.wal.format.struct_layout import Layout
from cmdlog.wal.ids import BlockNumber

SECTOR_BYTES: Final = 4096  # blocks start and end at multiples of it: one bad sector never spoils two blocks
MAGIC: Final = b"CLBK"
VERSION: Final = 1
RECORD_ALIGN: Final = 8

HEADER: Final = Layout(
    "Block header",
    ("magic", "4s"),
    ("version", "H"),
    ("flags", "H"),
    ("generation", "Q"),
    ("number", "Q"),
    ("body_bytes", "I"),
    ("record_count", "I"),
    ("durable_upto", "Q"),
    ("chain", "I"),
    ("open_count", "I"),
    ("body_crc", "I"),
    ("reserved", "8s"),
    ("header_crc", "I"),
)
_CRC_OFFSET: Final = HEADER.bytes - 4
_ZERO8: Final = bytes(8)
_ZEROS: Final = bytes(64 << 10)


class BlockFlag(enum.IntFlag):
    """What a block is for, beside carrying records."""

    NONE = 0
    SEAL = 1  # no records: written when nothing is in flight, as evidence for the block before it
    CHECKPOINT = 2  # first block of a segment: one checkpoint record per group


_FLAGS: Final = {flags: BlockFlag(flags) for flags in range((BlockFlag.SEAL | BlockFlag.CHECKPOINT) + 1)}  # one is read per block


class BadBlock(ValueError):
    """The bytes are no valid block. `reason` is one of a few stable words; `newer` says that only the version is too new."""

    def __init__(self, reason: str, *, newer: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.newer = reason, newer


@dataclass(frozen=True, slots=True)
class BlockHeader:
    flags: BlockFlag
    generation: int
    number: BlockNumber
    body_bytes: int
    record_count: int
    durable_upto: BlockNumber
    chain: int  # CRC-32C of the previous block's 64 header bytes; 0 for the first block of a log
    open_count: int
    body_crc: int
    checksum: int  # CRC-32C of these 64 header bytes: the next block's chain

    @property
    def total_bytes(self) -> int:
        """Bytes on disk, padding included."""
        return padded(HEADER.bytes + self.body_bytes)


def padded(size_bytes: int) -> int:
    """Rounds up to whole sectors."""
    return -(-size_bytes // SECTOR_BYTES) * SECTOR_BYTES


def block_bytes(records: Sequence[bytes]) -> int:
    """Bytes on disk of a block holding these records."""
    size = HEADER.bytes
    for record in records:
        size += len(record) + -len(record) % RECORD_ALIGN  # `aligned`, without a call per record
    return padded(size)


def aligned(size_bytes: int) -> int:
    """Rounds up to the next record's start."""
    return -(-size_bytes // RECORD_ALIGN) * RECORD_ALIGN


def is_zero(data: bytes, start: int, end: int) -> bool:
    """Whether data[start:end] holds zeros alone. Compared piece by piece: 20 x as fast as stripping a whole segment."""
    for at in range(start, end, len(_ZEROS)):
        piece = data[at : min(at + len(_ZEROS), end)]
        if piece != _ZEROS[: len(piece)]:
            return False
    return True


def encode_block(
    records: Sequence[bytes],
    *,
    flags: BlockFlag,
    generation: int,
    number: int,
    durable_upto: int,
    chain: int,
    open_count: int,
) -> tuple[bytes, int]:
    """Returns the padded block and its header's checksum, which the next block carries as `chain`."""
    parts: list[bytes] = []
    for record in records:
        parts.append(record)
        if slack := -len(record) % RECORD_ALIGN:
            parts.append(_ZERO8[:slack])
    body = b"".join(parts)
    head = HEADER.pack(
        MAGIC,
        VERSION,
        flags,
        generation,
        number,
        len(body),
        len(records),
        durable_upto,
        chain,
        open_count,
        google_crc32c.value(body),
        _ZERO8,
        0,
    )[:_CRC_OFFSET]
    header = head + google_crc32c.value(head).to_bytes(4, "little")
    padding = bytes(-(HEADER.bytes + len(body)) % SECTOR_BYTES)
    return b"".join((header, body, padding)), google_crc32c.value(header)


def decode_header(data: bytes) -> BlockHeader:
    """Checks magic, version, header CRC and reserved bytes of the first 64 bytes of `data`.

    Raises: BadBlock with reason zero, short, magic, header_crc, version (newer) or reserved.
    """
    raw = data[: HEADER.bytes]
    if len(raw) < HEADER.bytes:
        raise BadBlock("short")
    magic, version, flags, *fields, reserved, crc = HEADER.unpack_from(raw)
    # In the order in which they settle it: never written, not a block, damaged, of another version, impossible.
    if magic != MAGIC:
        raise BadBlock("magic" if any(raw) else "zero")
    if google_crc32c.value(raw[:_CRC_OFFSET]) != crc:
        raise BadBlock("header_crc")
    if version != VERSION:
        raise BadBlock("version", newer=version > VERSION)
    known = _FLAGS.get(flags)
    if reserved != _ZERO8 or known is None:
        raise BadBlock("reserved")
    generation, number, body_bytes, record_count, durable_upto, chain, open_count, body_crc = fields
    return BlockHeader(
        known,
        generation,
        BlockNumber(number),
        body_bytes,
        record_count,
        BlockNumber(durable_upto),
        chain,
        open_count,
        body_crc,
        google_crc32c.value(raw),
    )


def check_body(header: BlockHeader, data: bytes, at: int = 0) -> bytes:
    """Returns the body of the block whose bytes, header and padding included, begin in `data` at that offset.

    Raises: BadBlock with reason short, body_crc or padding.
    """
    end = at + header.total_bytes
    if len(data) < end:
        raise BadBlock("short")
    body_end = at + HEADER.bytes + header.body_bytes
    body = data[at + HEADER.bytes : body_end]
    if google_crc32c.value(body) != header.body_crc:
        raise BadBlock("body_crc")
    if not is_zero(data, body_end, end):
        raise BadBlock("padding")
    return body
