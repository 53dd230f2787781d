"""Which files of the archive may go, and which first: decisions alone, made from what `ArchiveIndex` found.

One rule: what stays keeps all that it is based on. A snapshot of the archive that one outside it depends on is never chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from snapshot.archive_layout import ArchivedSegment
from snapshot.catalog import Snapshot
from snapshot.recovery_points import Point
from snapshot.retention import Needs, needs


def unneeded_segments(segments: Iterable[ArchivedSegment], needed: Needs) -> list[ArchivedSegment]:
    """Those that no promise needs; what an operator put there (`foreign`) stays."""
    return [
        segment
        for segment in segments
        if not needed.log(first_block=segment.first_block, last_block=segment.last_block) and not segment.foreign
    ]


def unneeded_snapshots(snapshots: Sequence[Snapshot], needed: Needs) -> list[Snapshot]:
    """Those of the archive that no promise needs."""
    return [s for s in _free_to_go(snapshots) if (s.partition, s.name) not in needed.snapshots]


def spare_snapshot(snapshots: Sequence[Snapshot], needed: Needs) -> Snapshot | None:
    """The oldest of the archive without which every moment can still be restored, only later; None when there is none."""
    spare = [s for s in _free_to_go(snapshots) if (s.partition, s.name) not in needed.bases]
    bases = {base.path for snapshot in spare for base in snapshot.bases}
    ascending = sorted(spare, key=lambda snapshot: snapshot.manifest.log_block if snapshot.manifest else 0)
    return next((snapshot for snapshot in ascending if snapshot.path not in bases), None)


def oldest_unpinned_segment(segments: Iterable[ArchivedSegment], needed: Needs) -> ArchivedSegment | None:
    """The first that no recovery point needs: what the rule `shorten` gives up."""
    pins = needed.pins_alone()
    return next((s for s in segments if not pins.log(first_block=s.first_block, last_block=s.last_block)), None)


def useless_snapshots(
    snapshots: Sequence[Snapshot], partitions: Sequence[int], points: Sequence[Point], *, log_from: int, leaving: str = ""
) -> list[Snapshot]:
    """Snapshots of the archive, and the one at the path `leaving`, whose log after them is gone and that no point needs.

    `log_from` is the first block of the log that is there without a gap.
    """
    pinned = needs(snapshots, partitions, begin=None, points=points).snapshots
    old = [s for s in snapshots if s.archived or s.path == leaving]
    staying = [s for s in snapshots if not (s.archived or s.path == leaving)]
    staying += [s for s in old if s.manifest is not None and s.manifest.log_block >= log_from]
    relied_on = _chains(staying)
    return [s for s in old if s.path not in relied_on and (s.partition, s.name) not in pinned]


def _free_to_go(snapshots: Sequence[Snapshot]) -> list[Snapshot]:
    """Those of the archive that no snapshot outside it depends on."""
    relied_on = _chains(s for s in snapshots if not s.archived)
    return [s for s in snapshots if s.archived and s.path not in relied_on]


def _chains(snapshots: Iterable[Snapshot]) -> set[str]:
    """Paths of all that these need."""
    return {link.path for snapshot in snapshots for link in snapshot.chain}
