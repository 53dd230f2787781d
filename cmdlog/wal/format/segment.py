"""Segments: the files of the log, their names and their header sector. FORMAT.md "Segment".

One rule: a file gets the name `seg-…` only after its header and checkpoint block are durable. So a bad header in such a file is
never a crash, always damage. Files waiting for use are called `free-…`; what they hold means nothing.

A file lives many lives. Each life has a random `generation`, which every block repeats; it distinguishes what an earlier
life left, so recycled files need no wiping. `previous_generation` and `previous_chain` tie the life to the segment before it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import google_crc32c

from cmdlog.wal.errors import DiskFull, ShortWrite
from cmdlog.wal.files import Files
from cmdlog.wal.format.block import SECTOR_BYTES
from cmdlog.wal.format.struct_layout import Layout
from cmdlog.wal.ids import BlockNumber
from cmdlog.wal.os_errors import no_room

MAGIC: Final = b"CMDLOGSG"
VERSION: Final = 1
SEGMENT: Final = Layout(
    "Segment header",
    ("magic", "8s"),
    ("version", "H"),
    ("reserved", "6s"),
    ("cluster_id", "16s"),
    ("incarnation", "8s"),
    ("node_id", "I"),
    ("open_count", "I"),
    ("generation", "Q"),
    ("previous_generation", "Q"),
    ("earlier_life", "Q"),
    ("sequence", "Q"),
    ("first_block", "Q"),
    ("segment_bytes", "Q"),
    ("previous_chain", "I"),
    ("header_crc", "I"),
)
SEGMENT_BYTES_MIN: Final = 8 * SECTOR_BYTES  # header, checkpoint, seal and five sectors for records: for tests
SEGMENT_BYTES_MAX: Final = 256 << 20  # one segment is read into memory at start
SEGMENTS_MIN: Final = 2  # the one in use and the next
SEGMENTS_MAX: Final = 4096
_CRC_OFFSET: Final = SEGMENT.bytes - 4
_ZERO6: Final = bytes(6)
_ZERO_CHUNK: Final = bytes(1 << 20)
_SEGMENT_NAME: Final = re.compile(r"seg-(\d{16})\.wal")
_FREE_NAME: Final = re.compile(r"free-(\d{1,4})\.wal")


class BadSegment(ValueError):
    """The sector is no segment header. `newer`: it is one of a newer format."""

    def __init__(self, reason: str, *, newer: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.newer = reason, newer


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    cluster_id: bytes
    incarnation: bytes
    node_id: int
    open_count: int
    generation: int
    previous_generation: int  # of the predecessor; 0 for the first segment of a log
    earlier_life: int  # this file's generation before it was recycled; 0: the file was zeros
    sequence: int
    first_block: BlockNumber  # the checkpoint block's number
    segment_bytes: int
    previous_chain: int  # header checksum of the predecessor's last block; 0 for the first segment


def segment_name(sequence: int) -> str:
    return f"seg-{sequence:016d}.wal"


def free_name(number: int) -> str:
    return f"free-{number}.wal"


def segment_sequence(name: str) -> int | None:
    """The sequence that a file name states; None for any other name."""
    match = _SEGMENT_NAME.fullmatch(name)
    return int(match[1]) if match else None


def free_number(name: str) -> int | None:
    match = _FREE_NAME.fullmatch(name)
    return int(match[1]) if match else None


def encode_segment_header(header: SegmentHeader) -> bytes:
    """The whole header sector."""
    head = SEGMENT.pack(
        MAGIC,
        VERSION,
        _ZERO6,
        header.cluster_id,
        header.incarnation,
        header.node_id,
        header.open_count,
        header.generation,
        header.previous_generation,
        header.earlier_life,
        header.sequence,
        header.first_block,
        header.segment_bytes,
        header.previous_chain,
        0,
    )[:_CRC_OFFSET]
    crc: int = google_crc32c.value(head)
    return (head + crc.to_bytes(4, "little")).ljust(SECTOR_BYTES, b"\0")


def decode_segment_header(sector: bytes) -> SegmentHeader:
    """Checks the header sector, its padding included.

    Raises: BadSegment with reason short, magic, header_crc, version (newer) or padding.
    """
    if len(sector) < SECTOR_BYTES:
        raise BadSegment("short")
    magic, version, reserved, *fields, crc = SEGMENT.unpack_from(sector)
    if magic != MAGIC:
        raise BadSegment("magic")
    if google_crc32c.value(sector[:_CRC_OFFSET]) != crc:
        raise BadSegment("header_crc")
    if version != VERSION:
        raise BadSegment("version", newer=version > VERSION)
    if reserved != _ZERO6 or sector[SEGMENT.bytes : SECTOR_BYTES].strip(b"\0"):
        raise BadSegment("padding")
    return SegmentHeader(*fields)


def reserve_file(files: Files, path: str, size_bytes: int) -> None:
    """Makes a file whose blocks are taken and not written yet: no other program gets them. Costs a tenth of a millisecond.

    Durable on return, its name excepted. Raises: DiskFull, and no file is left; WriteFailed.
    """
    file = files.open(path, create=True)
    try:
        file.allocate(size_bytes)
        file.fsync()
    except DiskFull as error:
        files.unlink(path)
        raise no_room(f"{path} needs {size_bytes} bytes", size_bytes, "the volume") from error
    finally:
        file.close()


def write_zeros(files: Files, path: str, size_bytes: int, *, over: bool = False) -> None:
    """Makes a file of zeros that are really on disk: a hole would cost an allocation at every later sync.

    Synced piece by piece: one large sync would hold up the log's own ones for its whole length. `over`: the file may be there,
    with a length that a failed sync left in memory alone. No later sync would write that one, unless it changes.

    Durable on return, its name excepted. Raises: DiskFull, WriteFailed, FileExistsError.
    """
    file = files.open(path, create=True, exclusive=not over)
    try:
        if over and file.size():
            file.truncate(size_bytes + SECTOR_BYTES)  # not shorter: its blocks may be reserved
            file.truncate(size_bytes)
        for offset in range(0, size_bytes, len(_ZERO_CHUNK)):
            file.pwrite(_ZERO_CHUNK[: size_bytes - offset], offset)
            file.fdatasync()
        file.fsync()
    except ShortWrite as error:  # a disk that fills up during a write takes a part of it, and this file nobody relies on yet
        raise no_room(f"{path} needs {size_bytes} bytes", size_bytes, "the volume") from error
    finally:
        file.close()
