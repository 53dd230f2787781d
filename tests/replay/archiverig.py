"""A node made by hand whose history goes into the archive, beside the model of `tests.replay.rig`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cmdlog.node.background.archiver import Archiver, Rules
from cmdlog.node.background.running_work import RunningWork
from cmdlog.wal.files import Files, RealFiles
from cmdlog.wal.ids import BlockNumber, Lsn
from replay.plan.node_plan import Plan
from replay.plan.planner import PAST, make_plan
from replay.recover.to_directory import rebuild
from snapshot.archive.archive import ArchiveFolder
from snapshot.archive.segment_copy import CopiedSegment, copy_segment
from snapshot.catalog import list_snapshots
from snapshot.recovery_points import Point, write_point
from snapshot.retention import anchor_block, retain
from tests.replay.rig import Rig, balances_of
from tests.waiting import wait_for

FOREVER_S = 1e9
SEGMENT_BYTES = 64 << 10
RULES: dict[str, Any] = {"window_s": FOREVER_S, "bytes_max": 0, "when_full": "stop"}


class ArchiveRig(Rig):
    """A rig with an archive thread; segments are copied in this process."""

    def __init__(self, folder: Path, *, rules: dict[str, Any] | None = None, kept: int = 2, **options: Any) -> None:
        self.kept = kept
        self.rules = Rules(**{**RULES, **(rules or {})})
        self.archive_files: Files = RealFiles()
        self.copier: Callable[[str, str, int], CopiedSegment] = self.copy_here
        super().__init__(folder, **{"segment_bytes": SEGMENT_BYTES, "segments": 12, **options})

    def _open(self) -> None:
        super()._open()
        self.attach()

    def attach(self) -> None:
        """The archive's part of a start."""
        self.archiver = Archiver(
            ArchiveFolder(self.archive_files, self.directory, self.identity),
            range(self.partitions),
            self.rules,
            wal=self.wal,
            copy=self._copy,
            now_millis=lambda: self.millis,
            work=RunningWork(),
        )
        self.wal.ask_before_recycling(self.archiver.may_go)
        self.archiver.start()

    def _copy(self, source: str, target: str, last_block: int) -> CopiedSegment:
        return self.copier(source, target, last_block)

    def copy_here(self, source: str, target: str, last_block: int) -> CopiedSegment:
        """Without a process of its own."""
        return copy_segment(self.archive_files, source, target, last_block=last_block)

    def stop(self) -> None:
        self.archiver.stop()
        super().stop()

    def snapshots_of_all(self) -> None:
        """One of each partition, then anchors and retention as a node does it."""
        for partition in range(self.partitions):
            self.snapshot(partition)
        found = list_snapshots(self.files, self.directory, self.identity)
        for p in range(self.partitions):
            block = anchor_block([s for s in found if s.partition == p]) or 0
            self.wal.anchors.set(f"p{p}", Lsn(BlockNumber(block), 0))
        for p in range(self.partitions):
            retain(self.files, [s for s in found if s.partition == p], kept=self.kept, let_go=self.archiver.let_go)

    def rotate(self, rounds: int, *, batches: int = 12) -> None:
        """So much history that the ring is used several times over; what could go has gone when it returns."""
        for _ in range(rounds):
            self.deposits(batches)
            self.snapshots_of_all()
            self.settle()

    def settle(self) -> None:
        """Waits until no segment that every anchor has passed is left in the ring."""
        wait_for(lambda: not self.passed_segments())

    def passed_segments(self) -> int:
        """How many segments the anchors do not hold any more."""
        needed = self.wal.anchors.oldest()
        return sum(first <= needed.block for first in self.wal.first_blocks()[1:]) if needed is not None else 0

    def point(self) -> Point:
        """A recovery point of this moment, as a node makes one."""
        self.snapshots_of_all()
        newest = {s.partition: s for s in list_snapshots(self.files, self.directory, self.identity)}
        blocks = [s.manifest.log_block for s in newest.values() if s.manifest is not None]
        point = Point(
            txn_id=self.last_txn, created="2026-01-01T00:00:00Z", snapshots={p: s.name for p, s in newest.items()},
            from_block=min(blocks), to_block=self.feed.durable_block,
        )  # fmt: skip
        write_point(self.files, self.directory, point)
        return point

    def recovered(self, out: Path, until: int | None) -> dict[int, int]:
        """Balances that a recovery into another directory finds."""
        planned = make_plan(RealFiles(), self.directory, PAST, until=until)
        rebuild(planned, RealFiles(), str(out), workers=0)
        return balances_of(str(out), self.partitions)

    def names(self, suffix: str = "") -> list[str]:
        """What lies in the archive."""
        return sorted(path.name for path in (Path(self.directory) / "archive").iterdir() if path.name.endswith(suffix))


def plan_for(directory: Path | str, until: int | None) -> Plan:
    """What a recovery into another directory would do."""
    return make_plan(RealFiles(), str(directory), PAST, until=until).plan
