"""What keeps the log short, put together: snapshots that let it go, and the archive that keeps what was promised beyond them."""

from __future__ import annotations

import os
from dataclasses import dataclass

from cmdlog.node.archiver import ArchiveHooks, Archiver, Rules
from cmdlog.node.clock import HybridClock
from cmdlog.node.copier import Copier
from cmdlog.node.desk import Desk
from cmdlog.node.inline import InlineSites
from cmdlog.node.schedule import LogView, Policy
from cmdlog.node.sequencer import Sequencer
from cmdlog.node.settings import Settings
from cmdlog.node.sites import ProcessSites
from cmdlog.node.snapshots import Hooks, Snapshotter
from cmdlog.node.speed import Speeds
from cmdlog.wal.files import RealFiles
from cmdlog.wal.ids import BlockNumber, Lsn, txn_millis
from cmdlog.wal.log import Log
from replay.trust import state_path
from snapshot.archive import Place


@dataclass(frozen=True, slots=True)
class Parts:
    """What of a node has to do with it."""

    directory: str
    settings: Settings
    wal: Log
    clock: HybridClock
    sequencer: Sequencer
    sites: InlineSites | ProcessSites
    desk: Desk


def make_archiver(parts: Parts) -> tuple[Copier, Archiver]:
    """Makes the archive's thread; from now on the log asks it before it recycles a segment."""
    directory, settings, wal, clock = parts.directory, parts.settings, parts.wal, parts.clock
    halfway = (1 + settings.snapshot_log_fraction) / 2  # from where snapshots keep the log to where it refuses
    copier = Copier(pressing=lambda: LogView(wal.first_blocks(), wal.instance.segments).fill >= halfway)
    archiver = Archiver(
        Place(RealFiles(), directory, wal.instance.identity),
        range(settings.partitions),
        Rules(window_s=settings.retention_window_s, bytes_max=settings.archive_bytes_max, when_full=settings.archive_full),
        ArchiveHooks(
            # The earlier of the two: the wall clock set forward, or ids that lead it, must not end a window early.
            now_millis=lambda: min(clock.millis(), txn_millis(clock.closed())),
            segments=lambda: wal.segments,
            look_again=wal.look_again,
            copy=copier.copy,
        ),
    )
    wal.ask_before_recycling(archiver.may_go)
    parts.sequencer.why_full = archiver.why_full
    return copier, archiver


def make_snapshotter(parts: Parts, archiver: Archiver, speeds: Speeds) -> Snapshotter:
    """Makes the snapshot thread and tells the log which blocks its snapshots need."""
    directory, settings, wal, sequencer = parts.directory, parts.settings, parts.wal, parts.sequencer

    def state_bytes(partition: int) -> int:
        path = state_path(directory, partition)
        return os.stat(path).st_size if os.path.exists(path) else 0

    snapshotter = Snapshotter(
        RealFiles(),
        directory,
        wal.instance.identity,
        range(settings.partitions),
        kept=settings.snapshots_kept,
        points_kept=settings.points_kept,
        policy=Policy(settings.snapshot_log_fraction, settings.snapshot_age_max_s, settings.recovery_budget_s),
        speeds=speeds,
        hooks=Hooks(
            capture=parts.sites.capture,
            applied_block=sequencer.applied_block,
            facts=parts.desk.snapshot_facts,
            note=sequencer.note,
            anchor=lambda name, block: wal.anchors.set(name, Lsn(BlockNumber(block), 0)),
            view=lambda: LogView(wal.first_blocks(), wal.instance.segments),
            log_end=lambda: wal.durable_block,
            closed=parts.clock.closed,
            pace=parts.sites.pace,
            state_bytes=state_bytes,
            let_go=archiver.let_go,
        ),
    )
    for name, block in snapshotter.anchors().items():
        wal.anchors.set(name, Lsn(BlockNumber(block), 0))
    return snapshotter
