"""Where the proofs of a restore drill begin: the longest path to a snapshot, and a moment of the promised past.

The longest path begins as far back as log and archive reach, no matter where the state there comes from. A row that changed in a
state file at rest or in memory is copied into every later snapshot, and these agree with each other; only an older state shows
the change. Best is the log's first entry, before which there is nothing that could have changed. Bounded: the live log is read
whole, as a recovery would read it, and the archive before it up to LOG_BYTES_MAX in all.

The moment is drawn from what was promised and kept, not from what can be read. A file that is lost or cannot be read leaves its
moments in the draw, so that a drill finds out. Blocks that the archive has dropped by its own rules leave no name, and nothing
before them is promised.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cmdlog.wal.errors import Corrupt
from cmdlog.wal.files import Files
from cmdlog.wal.ids import txn_millis
from procedures.storage.state import Position
from replay.log.scan import Scan, mark_void, scan
from replay.log.source import LogSource, in_front
from replay.plan.node_plan import Planned
from snapshot.archive.archive_retention import read_promise
from snapshot.archive_layout import ArchivedSegment, list_segments, run_before
from snapshot.catalog import Snapshot, list_archived, list_snapshots
from snapshot.retention import oldest_restorable, window_begin

LOG_BYTES_MAX: Final = 4 << 30  # some minutes of replay; the next drill goes the same way again


@dataclass(frozen=True, slots=True)
class Start:
    """Where a path begins."""

    snapshot: Snapshot | None  # None: before the first entry
    position: Position

    @property
    def name(self) -> str:
        return "" if self.snapshot is None else self.snapshot.name


@dataclass(frozen=True, slots=True)
class LongestPaths:
    """Partition -> where its longest path begins, and the log that it uses."""

    starts: Mapping[int, Start]  # without partitions for which nothing older is at hand
    begins: Mapping[int, int]  # partition -> the index after which its entries begin in that log; 0: it has all of them
    source: LogSource
    found: Scan


def find_ways(files: Files, planned: Planned, snapshots: Sequence[Snapshot], targets: Mapping[int, Snapshot]) -> LongestPaths:
    """The longest paths to these snapshots. Raises: Corrupt, Recycled.

    `snapshots` are those next to the live log. An archive that cannot be read makes the paths shorter.
    """
    directory, live = planned.plan.directory, planned.source
    wrong = {name for part in planned.plan.partitions for name in part.set_aside}
    known = {s.name: s for s in (*list_archived(files, directory, live.instance.identity), *snapshots) if s.name not in wrong}
    for source in _sources(files, directory, live):
        try:
            heads = source.beginnings()
            begins = {part.partition: heads.get(part.partition, 0) for part in planned.plan.partitions}
            starts = _starts(begins, list(known.values()), targets)
            if not starts and source is not live:
                continue
            indexes = {p: start.position.index for p, start in starts.items()}
            return LongestPaths(starts, begins, source, scan_all(source, planned, indexes))
        except (Corrupt, FileNotFoundError):
            if source is live:
                raise
    raise AssertionError("the live log is the last source")


def scan_all(source: LogSource, planned: Planned, indexes: Mapping[int, int]) -> Scan:
    """The log after these entries, with what is void in it: the other partitions, whose ends are enough, decide that too."""
    ends = {part.partition: part.to_index for part in planned.plan.partitions}
    found = scan(source, {**ends, **indexes}, {p: {index} for p, index in indexes.items()})
    mark_void(found.streams)
    return found


def _sources(files: Files, directory: str, live: LogSource) -> list[LogSource]:
    """The longest first."""
    room = LOG_BYTES_MAX // live.instance.segment_bytes - len(live.segments)
    run = run_before(list_segments(files, directory, live.instance.identity), live.segments[0].header) if room > 0 else []
    return [in_front(files, live, run[-room:]), live] if run else [live]


def _starts(begins: Mapping[int, int], snapshots: Sequence[Snapshot], targets: Mapping[int, Snapshot]) -> dict[int, Start]:
    starts = {}
    for p, target in sorted(targets.items()):
        base = begins[p]
        older = [s for s in snapshots if s.partition == p and s.manifest is not None and base <= s.index < target.index]
        oldest = min(older, key=lambda snapshot: snapshot.order, default=None)
        if base == 0:
            starts[p] = Start(None, Position())
        elif oldest is not None and oldest.manifest is not None:
            m = oldest.manifest
            starts[p] = Start(oldest, Position(m.index, m.term, m.checksum, m.txn_id))
    return starts


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
