"""What there is to be read, and in which order: so that a pass continues where it was.

One rule: only names and sizes are looked at here, and the order is by kind and name. A pass remembers the last file that it has
finished and, of each kind, the last name that there was when it began: what comes later is the next pass's, or a node under load
would never finish one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cmdlog.node.scrub.file_scan import ScrubKind
from cmdlog.wal.files import Files
from cmdlog.wal.log import Log
from cmdlog.wal.opening.survey import SegmentFile
from snapshot.archive.archive import bytes_of
from snapshot.archive_layout import ARCHIVE, archived_snapshot, manifest_path, segment_names
from snapshot.catalog import FOLDER as SNAPSHOTS
from snapshot.manifest import parse_name


@dataclass(frozen=True, slots=True)
class ScrubItem:
    """A file, or a snapshot's folder, that is read from its begin to its end."""

    kind: ScrubKind
    name: str
    path: str
    bytes: int
    last_block: int = 0  # of a segment of the log: all up to it were durable
    generation: int = 0

    @property
    def key(self) -> tuple[str, str]:
        """Items are read in this order."""
        return self.kind, self.name


class ScrubPlan:
    """What a running node has to be read."""

    def __init__(self, files: Files, wal: Log) -> None:
        self._files, self._wal = files, wal

    def list_items(self) -> list[ScrubItem]:
        """Everything that there is now, in order."""
        files, wal = self._files, self._wal
        archive, snapshots = os.path.join(wal.directory, ARCHIVE), os.path.join(wal.directory, SNAPSHOTS)
        found = _log_items(wal.segments, wal.durable_block)
        found += [_item("archive_log", archive, name) for name in segment_names(files, archive)]
        found += [_item("archive_snapshot", archive, name) for name in _names_in(files, archive) if archived_snapshot(name)]
        found += [_item("snapshot", snapshots, name) for name in _names_in(files, snapshots) if parse_name(name)]
        return sorted(found, key=lambda item: item.key)

    def is_still_there(self, item: ScrubItem) -> bool:
        """Whether the log needs the segment, or else the file, or what states it, is there under its name.

        What the log has recycled, or retention or an operator removed, while it was read is no damage.
        """
        if item.kind == "log":
            return self._wal.needs(item.path)
        if self._files.exists(item.path):
            return True
        return item.kind == "archive_log" and self._files.exists(manifest_path(item.path))


def _log_items(segments: Sequence[SegmentFile], durable_block: int) -> list[ScrubItem]:
    """The newest segment as far as it is durable now."""
    last = [int(after.header.first_block) - 1 for after in segments[1:]] + [durable_block]
    return [
        ScrubItem(
            "log", os.path.basename(segment.path), segment.path, segment.header.segment_bytes, upto, segment.header.generation
        )
        for segment, upto in zip(segments, last, strict=True)
        if upto >= segment.header.first_block
    ]


def _item(kind: ScrubKind, folder: str, name: str) -> ScrubItem:
    path = os.path.join(folder, name)
    return ScrubItem(kind, name, path, bytes_of(path))


def _names_in(files: Files, folder: str) -> list[str]:
    return files.listdir(folder) if files.exists(folder) else []


def last_names(items: Iterable[ScrubItem]) -> dict[str, str]:
    """The last name of each kind."""
    return {item.kind: item.name for item in items}


def items_left(items: Iterable[ScrubItem], *, after: tuple[str, str], upto: Mapping[str, str]) -> list[ScrubItem]:
    """Those of a pass that has finished `after` and began when `upto` were the last names."""
    return [item for item in items if item.key > after and item.name <= upto.get(item.kind, "")]
