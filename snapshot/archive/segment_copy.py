"""Copies one segment of the log into the archive.

`python -m snapshot.background_io snapshot.archive.segment_copy POLICY` does so for orders.

One rule: the copy that is kept is the one that was checked. Every block of it is read back from the disk, not from the cache, and
compared with its checksums and with the chain, before it is reported.

Only what the blocks take is copied: after them a recycled file still holds records of its earlier life.

It is a process of its own, of low priority, which rests often (`snapshot.background_io`) and lives as long as the node: decoding
and checksums would hold the interpreter lock against the node's threads, and a thread of low priority that holds that lock makes
all others as slow as itself. It writes only the given temporary file; it ends when its input does, so a killed node leaves none.
One order and one answer per line, as JSON: {"source", "last_block", "target"} -> {"bytes", "sha256", "last_chain", "partitions"}
or {"error", "kind"}.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

import orjson

from cmdlog.wal.errors import Corrupt, DiskFull, WalError, WriteFailed
from cmdlog.wal.files import File, Files, RealFiles
from cmdlog.wal.format.batch import batch_span
from cmdlog.wal.format.block import HEADER, SECTOR_BYTES, BadBlock, decode_header
from cmdlog.wal.format.control_record import schema_txn
from cmdlog.wal.format.record import Record, RecordKind
from cmdlog.wal.format.segment import BadSegment, decode_segment_header
from cmdlog.wal.opening.survey import SegmentFile
from cmdlog.wal.reader import read_segment
from cmdlog.whole_line_stdout import answer
from snapshot.background_io import Breath, forget_cache, make_way

CHUNK_BYTES: Final = 512 << 10  # written and synced at a time: one large sync would hold up the log's own ones


@dataclass(frozen=True, slots=True)
class CopiedSegment:
    """What a checked copy holds."""

    bytes: int
    sha256: str
    last_chain: int  # checksum of the last block's header
    partitions: dict[int, tuple[int, int]]  # first and last transaction of each partition that has any


def copy_segment(files: Files, source: str, target: str, *, last_block: int) -> CopiedSegment:
    """Copies the blocks up to `last_block`, its last one, to the new file `target`; content durable and checked on return.

    Raises: Corrupt (the source is damaged), DiskFull, WriteFailed.
    """
    rest = Breath()
    with contextlib.closing(files.open(source, read_only=True)) as file:
        segment = _segment(file, source)
        end = _end(file, segment, last_block)
        if end is None:
            walk_blocks(files, segment, last_block)  # says what is wrong
            raise Corrupt("segment without its last block", path=source, block=last_block)
        _copy(files, file, target, end)
    forget_cache(target, rest)
    try:
        last_chain, partitions = walk_blocks(files, SegmentFile(target, segment.header), last_block, rest)
    except Corrupt as error:
        walk_blocks(files, segment, last_block)
        raise WriteFailed(f"the copy of {source} is not what was written: {error.what}") from error
    return CopiedSegment(end, hash_file(files, target, rest), last_chain, partitions)


def _segment(file: File, path: str) -> SegmentFile:
    try:
        return SegmentFile(path, decode_segment_header(file.pread(SECTOR_BYTES, 0)))
    except BadSegment as bad:
        raise Corrupt(f"segment header is bad ({bad.reason})", path=path) from bad


def _end(file: File, segment: SegmentFile, last_block: int) -> int | None:
    """Offset after the last block, by headers alone; None when they do not lead there."""
    offset, number = SECTOR_BYTES, int(segment.header.first_block)
    while offset < segment.header.segment_bytes:
        try:
            block = decode_header(file.pread(HEADER.bytes, offset))
        except BadBlock:
            return None
        if block.generation != segment.header.generation or block.number != number:
            return None
        offset += block.total_bytes
        if number == last_block:
            return offset
        number += 1
    return None


def _copy(files: Files, source: File, target: str, end: int) -> None:
    with contextlib.closing(files.open(target, create=True, exclusive=True)) as copy:
        for offset in range(0, end, CHUNK_BYTES):
            copy.pwrite(source.pread(min(CHUNK_BYTES, end - offset), offset), offset)
            copy.fdatasync()
        copy.fsync()


def walk_blocks(
    files: Files, segment: SegmentFile, last_block: int, rest: Callable[[], bool] = lambda: False
) -> tuple[int, dict[int, tuple[int, int]]]:
    """Checks every block and record: the last block's checksum, and the transactions of each partition. Raises: Corrupt."""
    chain, reached = segment.header.previous_chain, int(segment.header.first_block) - 1
    found: dict[int, tuple[int, int]] = {}
    for block in read_segment(files, segment, upto=last_block):
        chain, reached = block.header.checksum, int(block.header.number)
        for _, record in block.records():
            for txn in transactions_of(record):
                first, last = found.get(record.partition, (txn, txn))
                found[record.partition] = min(first, txn), max(last, txn)
        rest()
    if reached != last_block:
        raise Corrupt(f"segment ends at block {reached}", path=segment.path, block=last_block)
    return chain, found


def transactions_of(record: Record) -> tuple[int, ...]:
    """First and last transaction of an entry that has any."""
    if record.kind is RecordKind.BATCH:
        return batch_span(record)[:2]
    if record.kind is RecordKind.SCHEMA:
        txn = schema_txn(record)
        return (txn,) if txn else ()
    return ()


def hash_file(files: Files, path: str, rest: Callable[[], bool] = lambda: False) -> str:
    digest, file = hashlib.sha256(), files.open(path, read_only=True)
    try:
        offset = 0
        while data := file.pread(CHUNK_BYTES, offset):
            digest.update(data)
            offset += len(data)
            rest()
    finally:
        file.close()
    return digest.hexdigest()


def _done(order: dict[str, Any]) -> dict[str, Any]:
    try:
        return asdict(copy_segment(RealFiles(), order["source"], order["target"], last_block=order["last_block"]))
    except DiskFull as error:
        return {"error": str(error), "kind": "disk_full"}
    except Corrupt as error:
        return {"error": str(error), "kind": "corrupt"}
    except (WalError, OSError) as error:
        return {"error": str(error), "kind": "failed"}


def main() -> int:
    """Entry point of the process."""
    make_way(int(sys.argv[1]))
    for line in sys.stdin.buffer:
        answer(orjson.dumps(_done(orjson.loads(line)), option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS))
    return 0
