"""Reads one slice of a file and checks it: a segment of the log, a snapshot, a segment of the archive.

One rule: it only reads, and what it has read so far is a small value (`at`), so a reading continues in any later process. Blocks
carry their chain, a snapshot's file has one checksum that grows with it: nothing is read twice.

A file that goes away while it is read is no damage: the log recycles, retention removes. `gone` says so, and the caller looks
whether that was to be. Only CRC-32C is compared, not the SHA-256 that is stated too: disks are no forgers, and it costs a tenth.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import google_crc32c

from cmdlog.node.scrub.entry_sums import EntrySums
from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.errors import Corrupt, WalError
from cmdlog.wal.files import Files
from cmdlog.wal.format.block import SECTOR_BYTES
from cmdlog.wal.format.segment import BadSegment, decode_segment_header
from cmdlog.wal.opening.survey import SegmentFile
from cmdlog.wal.reader import Recycled, Spot, read_segment
from snapshot.archive.archive import bytes_of
from snapshot.archive_layout import look_at, manifest_path
from snapshot.errors import SnapshotError
from snapshot.manifest import CHUNK_BYTES, MANIFEST_NAME, read_manifest

ScrubKind = Literal["log", "snapshot", "archive_log", "archive_snapshot", "entries"]
"""What something is; "entries" are those of a group that differ from the majority's, and no file."""
At = dict[str, Any]  # where a reading of one file is


@dataclass(frozen=True, slots=True)
class SliceOrder:
    """What is to be read."""

    kind: ScrubKind
    path: str  # of the segment, or of the snapshot's folder
    bytes_max: int
    at: At | None = None  # None: from the begin
    last_block: int = 0  # of a segment of the log: all up to it were durable
    generation: int = 0
    sums: bool = False  # the entries of the log are summed up


@dataclass(frozen=True, slots=True)
class Damage:
    """What is wrong, and where, as far as it is known."""

    what: str
    path: str
    offset: int | None = None
    block: int | None = None
    partition: int | None = None
    index: int | None = None
    txn_id: int | None = None


@dataclass(frozen=True, slots=True)
class Scanned:
    """One slice. `at` None: there is nothing more of this file to be read."""

    bytes: int
    at: At | None = None
    damage: Damage | None = None
    gone: bool = False
    sums: Sequence[tuple[int, int, int | None]] = ()  # that came and went since the slice before: group, range, sum


@dataclass(frozen=True, slots=True)
class ScanGround:
    """What a reading has all the time."""

    files: Files
    identity: Identity  # of the directory
    sums: EntrySums
    rest: Callable[[], bool] = lambda: False


def scan_slice(ground: ScanGround, order: SliceOrder) -> Scanned:
    """Continues at `order.at` for about `bytes_max` bytes."""
    try:
        if order.kind == "log":
            return _scan_log(ground, order)
        if order.kind == "archive_log":
            return _scan_archived(ground, order)
        return _scan_snapshot(ground, order)
    except (FileNotFoundError, Recycled):
        return Scanned(0, gone=True)
    except Corrupt as bad:
        return Scanned(0, damage=Damage(bad.what, bad.path, bad.offset, bad.block, bad.partition, bad.index, bad.txn_id))
    except (WalError, SnapshotError, OSError) as error:
        return Scanned(0, damage=Damage(str(error), order.path))


def _scan_log(ground: ScanGround, order: SliceOrder) -> Scanned:
    file = ground.files.open(order.path, read_only=True)
    try:
        header = decode_segment_header(file.pread(SECTOR_BYTES, 0))
    except BadSegment as bad:
        raise Corrupt(f"segment header is bad ({bad.reason})", path=order.path) from bad
    finally:
        file.close()
    if header.generation != order.generation:
        return Scanned(0, gone=True)
    return _scan_blocks(ground, order, SegmentFile(order.path, header), order.last_block)


def _scan_archived(ground: ScanGround, order: SliceOrder) -> Scanned:
    """Header and blocks, and at the end what the manifest states of them."""
    found = look_at(ground.files, order.path, ground.identity)
    if found.segment is None:
        return Scanned(0, damage=Damage(found.problem, order.path, 0))
    read = _scan_blocks(ground, order, found.segment, found.last_block)
    if read.damage is not None or read.at is not None or not found.doubt:
        return read
    return Scanned(read.bytes, damage=Damage(found.doubt, manifest_path(order.path)))


def _scan_blocks(ground: ScanGround, order: SliceOrder, segment: SegmentFile, last_block: int) -> Scanned:
    """A block's checksum covers its records, which are not decoded: that would cost more than all the rest."""
    header = segment.header
    at = order.at or {"number": int(header.first_block), "offset": SECTOR_BYTES, "chain": header.previous_chain}
    begin, block = at["offset"], None
    for block in read_segment(ground.files, segment, upto=last_block, start=Spot(**at)):
        if order.sums:
            ground.sums.observe_block(block)
        ground.rest()
        if block.offset + block.header.total_bytes - begin >= order.bytes_max:
            break
    if block is not None:
        last = block.header
        at = {"number": int(last.number) + 1, "offset": block.offset + last.total_bytes, "chain": last.checksum}
    size = at["offset"] - begin
    if at["number"] > last_block:
        return Scanned(size)
    if size >= order.bytes_max:
        return Scanned(size, at)
    raise Corrupt(f"segment ends before block {last_block}", path=segment.path, offset=at["offset"], block=at["number"])


def _scan_snapshot(ground: ScanGround, order: SliceOrder) -> Scanned:
    """The manifest at first; what it states of its file is compared at the end."""
    files = ground.files
    if order.at is None:
        entry = read_manifest(files, order.path).files[0]
        at: At = {"name": entry.name, "bytes": entry.bytes, "crc32c": entry.crc32c, "offset": 0, "crc": 0}
        return Scanned(bytes_of(os.path.join(order.path, MANIFEST_NAME)), at)
    path, offset, crc = os.path.join(order.path, order.at["name"]), order.at["offset"], order.at["crc"]
    begin, file = offset, files.open(path, read_only=True)
    try:
        while offset - begin < order.bytes_max and (chunk := file.pread(CHUNK_BYTES, offset)):
            crc, offset = google_crc32c.extend(crc, chunk), offset + len(chunk)
            ground.rest()
        ended = offset >= file.size()
    finally:
        file.close()
    if not ended and offset <= order.at["bytes"]:
        return Scanned(offset - begin, {**order.at, "offset": offset, "crc": crc})
    if (offset, crc) == (order.at["bytes"], order.at["crc32c"]):
        return Scanned(offset - begin)
    what = f"{offset} bytes instead of {order.at['bytes']}" if offset != order.at["bytes"] else "other content than was written"
    return Scanned(offset - begin, damage=Damage(f"file has {what}", path))
