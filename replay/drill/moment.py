"""Which moment of the promised past a restore drill goes back to.

One rule: it is drawn from what was promised and kept, not from what can be read. A file that is lost or cannot be read leaves its
moments in the draw, so that a drill finds out. Blocks that the archive has dropped by its own rules leave no name, and nothing
before them is promised.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from cmdlog.wal.files import Files
from cmdlog.wal.ids import txn_millis
from replay.log.source import LogSource
from snapshot.archive.archive_retention import read_promise
from snapshot.archive_layout import ArchivedSegment, list_segments
from snapshot.catalog import list_archived, list_snapshots
from snapshot.retention import oldest_restorable, window_begin

WINDOW_S_MAX = 1e10  # means all of it


def draw_moment(files: Files, directory: str, source: LogSource, chance: random.Random, *, newest: int) -> int | None:
    """A transaction id up to `newest`; None when no past was promised, or nothing of it is in the archive."""
    oldest = oldest_moment(files, directory, source, newest=newest)
    return chance.randint(oldest, newest) if oldest is not None and oldest <= newest else None


def oldest_moment(files: Files, directory: str, source: LogSource, *, newest: int) -> int | None:
    """The first moment that is promised and was kept; None when there is none, or none that needs the archive."""
    window_s, identity = min(read_promise(files, directory), WINDOW_S_MAX), source.instance.identity
    kept = _kept(list_segments(files, directory, identity), int(source.first_blocks[0]))
    begin = window_begin(now_millis=txn_millis(newest), window_s=window_s)
    if begin is None or not kept:
        return None
    snapshots = [*list_archived(files, directory, identity), *list_snapshots(files, directory, identity)]
    partitions = sorted({snapshot.partition for snapshot in snapshots})
    since = oldest_restorable(snapshots, partitions, log_from=kept[0].first_block)
    return None if since is None else max(begin, since)


def _kept(segments: Sequence[ArchivedSegment], live_first: int) -> list[ArchivedSegment]:
    """Those that lead to the live log without a hole in their names, readable or not, oldest first."""
    kept: list[ArchivedSegment] = []
    block = live_first
    for archived in reversed(segments):
        if archived.last_block == block - 1:
            kept.insert(0, archived)
            block = archived.first_block
    return kept
