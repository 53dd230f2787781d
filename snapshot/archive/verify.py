"""Reads archived segments completely and says what is wrong with each: for `cmdlog archive verify`.

One rule: a recovery would find the same. Beside the checksums of every block it compares what only the manifest knows: the hash
of the file, the transactions that it states, and the file that came before.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Final

from cmdlog.wal.errors import WalError
from cmdlog.wal.files import Files
from cmdlog.wal.group_state import GroupStates
from cmdlog.wal.ids import CLUSTER_GROUP
from cmdlog.wal.opening.survey import SegmentFile
from cmdlog.wal.reader import read_segment
from snapshot.archive.archive import ArchiveFolder
from snapshot.archive.segment_copy import hash_file, walk_blocks
from snapshot.archive_layout import ArchivedSegment, SegmentManifest

FIRST_RECORDS_BLOCK: Final = 2  # of a log: the checkpoint of a node that was made by a recovery is there


def check_segments(place: ArchiveFolder, segments: Sequence[ArchivedSegment]) -> Iterator[str]:
    """Why each segment cannot be relied on; "" for one that can."""
    by_name = {archived.name: archived for archived in segments}
    for archived in segments:
        yield archived.problem or archived.doubt or _check(place, archived, by_name)


def _check(place: ArchiveFolder, archived: ArchivedSegment, by_name: dict[str, ArchivedSegment]) -> str:
    manifest, segment = archived.manifest, archived.segment
    assert manifest is not None
    assert segment is not None
    try:
        found = hash_file(place.files, archived.path)
        chain, partitions = walk_blocks(place.files, segment, archived.last_block)
    except (WalError, OSError) as error:
        return str(error)
    if found != manifest.sha256:
        return f"{archived.path} has SHA-256 {found} instead of {manifest.sha256}"
    stated = {p: (of.first, of.last) for p, of in manifest.partitions.items()}
    if (chain, partitions) != (manifest.last_chain, stated):
        return f"{archived.path} holds other transactions than its manifest says"
    return _check_predecessor(manifest, by_name, os.path.dirname(archived.path))


def _check_predecessor(manifest: SegmentManifest, by_name: dict[str, ArchivedSegment], folder: str) -> str:
    """A missing predecessor may have been pruned; a different one in its place is an error."""
    before = manifest.predecessor
    found = by_name.get(before.name) if before is not None else None
    if before is None or found is None or found.manifest is None or found.manifest.sha256 == before.sha256:
        return ""
    return f"{os.path.join(folder, before.name)} is not the file that block {manifest.first_block} followed"


def begins_empty(files: Files, first: SegmentFile) -> bool:
    """Whether the segment with block 1 begins everything; else it is of a node that a recovery made from an older one."""
    groups = GroupStates()
    with contextlib.suppress(WalError, OSError):
        blocks = read_segment(files, first, upto=FIRST_RECORDS_BLOCK)
        groups.observe_all(found for block in blocks for found in block.records())
    last = [state.last_index for partition, state in groups.by_partition.items() if partition != CLUSTER_GROUP]
    return max(last, default=2) <= 1  # the configuration of a new partition is entry 1
