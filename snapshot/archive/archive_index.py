"""What a running node knows of its archive without reading it again each time: files there are write-once.

One rule: the folder is the truth. `refresh` compares names; new files are read, missing ones are forgotten. So an operator
may prune beside a running node, and a year of segments costs one listing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from snapshot.archive.archive import TEMPORARY, ArchiveFolder, bytes_of
from snapshot.archive_layout import ArchivedSegment, archived_snapshot, look_at, manifest_path, segment_names
from snapshot.catalog import FOLDER, Snapshot, list_archived, list_snapshots

Seen = tuple[str, int, int]  # name, inode, time of change


class ArchiveIndex:
    """One thread at a time."""

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
