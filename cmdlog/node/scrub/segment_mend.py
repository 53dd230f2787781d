"""Makes a segment of the log again from its copy in the archive.

One rule: the new file is whole, durable and read back before it gets the segment's name. It is another file, never the old one
written over: the log may let the segment go meanwhile, and its file may then be anything.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.errors import WalError
from cmdlog.wal.files import TEMP_SUFFIX, Files
from cmdlog.wal.format.segment import write_zeros
from cmdlog.wal.ids import Lsn
from cmdlog.wal.log import Log
from cmdlog.wal.opening.survey import SegmentFile
from snapshot.archive.segment_copy import CHUNK_BYTES, walk_blocks
from snapshot.archive_layout import list_segments
from snapshot.background_io import Breath

ANCHOR: Final = "scrub"  # of the log, while a segment is being made again


@dataclass(frozen=True, slots=True)
class MendOrder:
    """The segment that is damaged."""

    directory: str
    path: str
    generation: int
    last_block: int


def mend_from_archive(files: Files, identity: Identity, order: MendOrder) -> str:
    """The path of a whole copy beside the segment, which only needs its name; "" if the archive has none.

    Durable on return but for its name. Raises: DiskFull, WriteFailed, Corrupt (the archive's copy is damaged as well), OSError.
    """
    for archived in list_segments(files, order.directory, identity):
        mine = archived.segment
        if mine is None or mine.header.generation != order.generation or archived.last_block != order.last_block:
            continue
        target = order.path + TEMP_SUFFIX
        try:
            _copy_segment(files, mine, archived.bytes, target)
            walk_blocks(files, SegmentFile(target, mine.header), order.last_block, Breath())
        except (WalError, OSError):
            if files.exists(target):
                files.unlink(target)
            raise
        return target
    return ""


def mend_segment(files: Files, wal: Log, path: str, copy: Callable[[MendOrder], str]) -> bool:
    """Whether the segment of the running log is whole again; durable then. `copy` does what `mend_from_archive` does.

    The newest segment is never in the archive. Raises: what `copy` raises, and WriteFailed.
    """
    found = next(((of, after) for of, after in pairwise(wal.segments) if of.path == path), None)
    if found is None:
        return False
    segment, after = found
    wal.anchors.set(ANCHOR, Lsn(segment.header.first_block, 0))
    try:
        last_block = int(after.header.first_block) - 1
        temporary = copy(MendOrder(wal.directory, path, segment.header.generation, last_block))
        if not temporary:
            return False
        if segment not in wal.segments:  # it was let go before the anchor held it
            files.unlink(temporary)
            return False
        files.rename(temporary, path)
        files.fsync_dir(os.path.dirname(path))
        return True
    finally:
        wal.anchors.release(ANCHOR)


def _copy_segment(files: Files, source: SegmentFile, size_bytes: int, target: str) -> None:
    """The bytes of the blocks, and zeros up to the segment's size."""
    write_zeros(files, target, source.header.segment_bytes, over=True)
    with contextlib.closing(files.open(source.path, read_only=True)) as here, contextlib.closing(files.open(target)) as there:
        for offset in range(0, size_bytes, CHUNK_BYTES):
            there.pwrite(here.pread(min(CHUNK_BYTES, size_bytes - offset), offset), offset)
            there.fdatasync()
