"""What keeps the log short, put together: snapshots that let it go, and the archive that keeps what was promised beyond them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from cmdlog.node.background.archiver import ArchiveHooks, Archiver, Rules
from cmdlog.node.background.recovery_forecast import Speeds
from cmdlog.node.background.segment_copy_process import Copier
from cmdlog.node.background.snapshot_schedule import LogView, Policy
from cmdlog.node.background.snapshotter import Hooks, Snapshotter
from cmdlog.node.clock import HybridClock
from cmdlog.node.outcome import CallOutcome
from cmdlog.node.sequencing.sequencer import Sequencer
from cmdlog.node.settings import Settings
from cmdlog.node.site_events import Desk
from cmdlog.node.sites.inline_sites import InlineSites
from cmdlog.node.sites.supervisor import ProcessSites
from cmdlog.wal.files import RealFiles
from cmdlog.wal.ids import BlockNumber, Lsn, txn_millis
from cmdlog.wal.log import Log
from replay.state.trust import state_path
from snapshot.archive.archive import ArchiveFolder


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
        ArchiveFolder(RealFiles(), directory, wal.instance.identity),
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
    return copier, archiver


def make_snapshotter(parts: Parts, archiver: Archiver, speeds: Speeds) -> Snapshotter:
    """Makes the snapshot thread and tells the log which blocks its snapshots need."""
    directory, settings, wal, sequencer = parts.directory, parts.settings, parts.wal, parts.sequencer

    def state_bytes(partition: int) -> int:
        path = state_path(directory, partition)
        return os.stat(path).st_size if os.path.exists(path) else 0

    def when_durable(partition: int, done: Callable[[], None]) -> None:
        sequencer.when_durable(
            partition, lambda reply: done() if isinstance(reply, CallOutcome) else None
        )  # else the node has failed

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
            notes_fit=lambda: sequencer.notes_fit,
            when_durable=when_durable,
            when_all_durable=sequencer.when_taken_is_durable,
            anchor=lambda name, block: wal.anchors.set(name, Lsn(BlockNumber(block), 0)),
            view=lambda: LogView(wal.first_blocks(), wal.instance.segments, full=wal.room_bytes < settings.call_bytes_max),
            log_end=lambda: wal.durable_block,
            closed=parts.clock.closed,
            pace=parts.sites.pace,
            state_bytes=state_bytes,
            let_go=archiver.let_go,
        ),
    )
    parts.sequencer.admission.why_full = lambda: _why_full(wal, archiver, snapshotter)
    for name, block in snapshotter.anchors().items():
        wal.anchors.set(name, Lsn(BlockNumber(block), 0))
    return snapshotter


def _why_full(wal: Log, archiver: Archiver, snapshotter: Snapshotter) -> str:
    """The answer to a caller that is refused with `log_full`: who holds the log, and what to do where something is to be done."""
    if archiver.problem:
        return archiver.why_full()
    if wal.disk_full:
        return f"the log has no room: {wal.disk_full}; make room on the volume"
    anchors = wal.anchors.status()
    holder = min(anchors, key=lambda name: (anchors[name]["block"], name), default="nothing")
    failed = f"; the last snapshot failed: {snapshotter.error}" if snapshotter.error else ""
    return f"{archiver.why_full()}: it is held by {holder}{failed}"
