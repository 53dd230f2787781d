"""Puts segments and snapshots into the archive and removes them.

One rule: what is in the archive under its name is complete, durable and was read back; it is never written again. So nothing
leaves the ring or snapshots/ before its place in the archive is certain. What a crash leaves of each step:

    segment copied                 tmp-… in the archive; the ring has the segment         -> removed at start, copied again
    its manifest written           a manifest without a file; the ring has the segment    -> removed at start, copied again
    copy renamed                   the file under its name, perhaps not durable           -> it is there, or as above
    folder synced                  archived; the ring still has the segment too           -> the ring may drop it
    snapshot's folder renamed      in one of the two folders, whole                       -> both are looked at
    removal: renamed to tmp-…      as if it were gone                                     -> removed at start

Segments are copied, not moved, and the ring recycles its file: that writes as many bytes as zeroing a new file for the ring
would, needs no new file when the disk is full, works when archive/ is another volume, and never leaves a moment in which a
segment has no name in either place.

`check_segments` compares what only the manifest knows, beside the checksums of every block: the file's hash, the transactions
that it states, and the file that came before. A recovery would find the same.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.errors import WalError
from cmdlog.wal.files import TEMP_SUFFIX, Files, parent
from cmdlog.wal.group_state import GroupStates
from cmdlog.wal.ids import CLUSTER_GROUP, txn_millis
from cmdlog.wal.opening.survey import SegmentFile
from cmdlog.wal.os_errors import raise_write_error
from cmdlog.wal.reader import read_segment
from snapshot.archive.segment_copy import CopiedSegment, hash_file, walk_blocks
from snapshot.archive_layout import (
    ARCHIVE,
    ArchivedSegment,
    Predecessor,
    SegmentManifest,
    TxnRange,
    archived_snapshot,
    encode_segment_manifest,
    list_segments,
    look_at,
    manifest_path,
    segment_file_name,
    segment_names,
    snapshot_folder_name,
)
from snapshot.catalog import FOLDER, Snapshot, list_archived, list_snapshots

TEMPORARY: Final = re.compile(r"tmp-[0-9a-f]{16}")
Seen = tuple[str, int, int]  # name, inode, time of change


@dataclass(frozen=True, slots=True)
class ArchiveFolder:
    """The archive of one node directory."""

    files: Files
    directory: str
    identity: Identity

    @property
    def folder(self) -> str:
        return os.path.join(self.directory, ARCHIVE)

    def temporary(self) -> str:
        """A new name for something that is being added or removed."""
        return os.path.join(self.folder, f"tmp-{os.urandom(8).hex()}")

    def segment_path(self, segment: SegmentFile, last_block: int) -> str:
        """Where this segment of the ring belongs."""
        first_block = int(segment.header.first_block)
        return os.path.join(self.folder, segment_file_name(self.identity, first_block=first_block, last_block=last_block))

    def segments(self) -> list[ArchivedSegment]:
        """Every archived segment by first block."""
        return list_segments(self.files, self.directory, self.identity)


def holds(place: ArchiveFolder, segment: SegmentFile, last_block: int) -> bool:
    """Whether this segment is in the archive, with its manifest."""
    found = look_at(place.files, place.segment_path(segment, last_block), place.identity)
    known = found.segment is not None and found.manifest is not None and not found.doubt
    return known and found.segment is not None and found.segment.header == segment.header


def add_segment(
    place: ArchiveFolder,
    segment: SegmentFile,
    last_block: int,
    *,
    temporary: str,
    copied: CopiedSegment,
    before: ArchivedSegment | None,
) -> str:
    """Names a copy that was checked; returns its path. `before` is what the archive has with the blocks before.

    Durable on return. Raises: DiskFull, WriteFailed.
    """
    files, path = place.files, place.segment_path(segment, last_block)
    manifest = _manifest(place, segment, last_block, copied, before)
    files.write_file_atomic(manifest_path(path), encode_segment_manifest(manifest))
    files.rename(temporary, path)
    files.fsync_dir(place.folder)
    return path


def remove_segment(place: ArchiveFolder, archived: ArchivedSegment) -> None:
    """Removes the segment's names, durably, then its bytes. The file first: a manifest alone says that it is missing."""
    files, doomed = place.files, []
    for path in (archived.path, manifest_path(archived.path)):
        if files.exists(path):
            doomed.append(place.temporary())
            files.rename(path, doomed[-1])
    files.fsync_dir(place.folder)
    for path in doomed:
        files.unlink(path)


def add_snapshot(place: ArchiveFolder, snapshot: Snapshot) -> str:
    """Moves a snapshot's folder into the archive; returns its path. Durable on return. Raises: DiskFull, WriteFailed."""
    files, target = place.files, os.path.join(place.folder, snapshot_folder_name(place.identity, snapshot.name))
    if files.exists(target):  # of an earlier move between volumes that was interrupted after its rename
        remove_folder(place, target)
    try:
        files.rename(snapshot.path, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _move_between_volumes(place, snapshot.path, target)
    files.fsync_dir(place.folder)
    files.fsync_dir(parent(snapshot.path))
    return target


def remove_folder(place: ArchiveFolder, path: str) -> None:
    """Removes an archived snapshot's name, durably, then its files."""
    temporary = place.temporary()
    place.files.rename(path, temporary)
    place.files.fsync_dir(place.folder)
    shutil.rmtree(temporary)


def clean(place: ArchiveFolder, live: Sequence[SegmentFile]) -> list[str]:
    """Removes what interrupted work left, and manifests of segments that the ring (`live`) still has; returns the names.

    A manifest stays if its file is missing and the ring no longer has the segment: it says what an operator has removed.
    """
    files, gone = place.files, []
    if not files.exists(place.folder):
        return []
    for name in files.listdir(place.folder):
        path = os.path.join(place.folder, name)
        if TEMPORARY.fullmatch(name) and os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        elif TEMPORARY.fullmatch(name) or name.endswith(TEMP_SUFFIX):
            files.unlink(path)
        else:
            continue
        gone.append(name)
    first_live = int(live[0].header.first_block)
    # A manifest without its file, of a segment that the ring has: the copy was interrupted, and is made again.
    for archived in place.segments():
        path = manifest_path(archived.path)
        if archived.first_block >= first_live and not files.exists(archived.path) and files.exists(path):
            files.unlink(path)
            gone.append(os.path.basename(path))
    if gone:
        files.fsync_dir(place.folder)
    return gone


def bytes_of(path: str) -> int:
    """Bytes of a file, or of all files below a folder; 0 for what no longer exists. Links are not followed."""
    try:
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode):
            return found.st_size
        return sum(bytes_of(os.path.join(path, name)) for name in os.listdir(path))
    except FileNotFoundError:
        return 0


def _manifest(
    place: ArchiveFolder, segment: SegmentFile, last_block: int, copied: CopiedSegment, before: ArchivedSegment | None
) -> SegmentManifest:
    header = segment.header
    predecessor = None
    if before is not None and before.manifest is not None and before.manifest.generation == header.previous_generation:
        predecessor = Predecessor(before.name, before.manifest.sha256)
    millis = [txn_millis(txn) for of in copied.partitions.values() for txn in of]
    return SegmentManifest(
        **place.identity.as_text(),
        generation=header.generation,
        previous_generation=header.previous_generation,
        sequence=header.sequence,
        first_block=int(header.first_block),
        last_block=last_block,
        previous_chain=header.previous_chain,
        last_chain=copied.last_chain,
        predecessor=predecessor,
        partitions={p: TxnRange(first, last) for p, (first, last) in sorted(copied.partitions.items())},
        first_millis=min(millis, default=None),
        last_millis=max(millis, default=None),
        bytes=copied.bytes,
        sha256=copied.sha256,
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )


def _move_between_volumes(place: ArchiveFolder, source: str, target: str) -> None:
    """A copy that is durable before it has its name; the source is removed last."""
    temporary = place.temporary()
    try:
        shutil.copytree(source, temporary)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise_write_error(error, "copy into the archive of", source)
    for name in place.files.listdir(temporary):
        with contextlib.closing(place.files.open(os.path.join(temporary, name))) as file:
            file.fsync()
    place.files.fsync_dir(temporary)
    place.files.rename(temporary, target)
    place.files.fsync_dir(place.folder)
    shutil.rmtree(source)


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


class ArchiveIndex:
    """What a running node knows of its archive without reading it again each time: files there are write-once.

    The folder is the truth. `refresh` compares names; new files are read, missing ones are forgotten. So an operator may prune
    beside a running node, and a year of segments costs one listing. One thread at a time.
    """

    def __init__(self, place: ArchiveFolder) -> None:
        self._place = place
        self._segments: dict[str, ArchivedSegment] = {}
        self._sizes: dict[str, int] = {}  # of segments with their manifests, and of snapshots
        self._other_bytes = 0  # of the promise, and of manifests without a file
        self._snapshots: list[Snapshot] = []
        self._seen: list[Seen] | None = None  # the snapshots' folders
        self.refresh()

    @property
    def segments(self) -> Sequence[ArchivedSegment]:
        """By first block; a file that has vanished is not among them, its manifest alone does not count."""
        return sorted(self._segments.values(), key=lambda archived: (archived.first_block, archived.last_block))

    @property
    def snapshots(self) -> Sequence[Snapshot]:
        """Those of snapshots/ and those of the archive."""
        return self._snapshots

    @property
    def bytes(self) -> int:
        return sum(self._sizes.values()) + self._other_bytes

    def before(self, first_block: int) -> ArchivedSegment | None:
        """The segment that ends right before this block."""
        return next((found for found in self._segments.values() if found.last_block == first_block - 1), None)

    def refresh(self) -> None:
        """Reads what has changed. Raises: OSError."""
        place = self._place
        names = set(place.files.listdir(place.folder))
        present = {name for name in segment_names(place.files, place.folder) if name in names}
        for name in self._segments.keys() - present:
            del self._segments[name]
        for name in present - self._segments.keys():
            self._segments[name] = look_at(place.files, os.path.join(place.folder, name), place.identity)
        self._look_at_snapshots()
        kept = {name for name in names if name in present or archived_snapshot(name)}
        self._sizes = {name: self._sizes.get(name) or self._size(name) for name in kept}
        counted = kept | {os.path.basename(manifest_path(name)) for name in present}
        others = (name for name in names - counted if not TEMPORARY.fullmatch(name))
        self._other_bytes = sum(bytes_of(os.path.join(place.folder, name)) for name in others)

    def _size(self, name: str) -> int:
        path = os.path.join(self._place.folder, name)
        return bytes_of(path) + (bytes_of(manifest_path(path)) if name in self._segments else 0)

    def _look_at_snapshots(self) -> None:
        place, seen = self._place, []
        for folder in (place.folder, os.path.join(place.directory, FOLDER)):
            for entry in sorted(os.scandir(folder), key=lambda entry: entry.name) if os.path.isdir(folder) else ():
                if not entry.is_file(follow_symlinks=False):
                    found = entry.stat(follow_symlinks=False)
                    seen.append((entry.path, found.st_ino, found.st_mtime_ns))
        if seen == self._seen:
            return
        live = list_snapshots(place.files, place.directory, place.identity)
        names = {(snapshot.partition, snapshot.name) for snapshot in live}
        old = [s for s in list_archived(place.files, place.directory, place.identity) if (s.partition, s.name) not in names]
        self._snapshots, self._seen = [*old, *live], seen
