"""A node's parts, built bottom-up: each gets what it needs when it is made.

One rule: nothing is set on a part from outside afterwards. Where two parts need each other, the lower one gets a callback.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Final

from cmdlog.node.background.archiver import Archiver, Rules
from cmdlog.node.background.drill_scheduler import DrillScheduler
from cmdlog.node.background.idle_process import SegmentCopyProcess
from cmdlog.node.background.page_checks import PageChecks
from cmdlog.node.background.recovery_forecast import RecoverySpeeds
from cmdlog.node.background.running_work import RunningWork
from cmdlog.node.background.snapshot_schedule import LogView
from cmdlog.node.boot import Boot, ManifestFacts
from cmdlog.node.clock import HybridClock, TimeSource
from cmdlog.node.failure_sets import Failures
from cmdlog.node.placing.key_owners import KeyOwners, make_owners
from cmdlog.node.placing.local_calls import LocalCalls, LogWakeup, Readiness
from cmdlog.node.placing.router import BoundCode, Router
from cmdlog.node.scrub.damage_repair import RepairHooks
from cmdlog.node.scrub.scrub_plan import ScrubPlan
from cmdlog.node.scrub.scrub_progress import ScrubFinding
from cmdlog.node.scrub.scrub_reader import ScrubReader
from cmdlog.node.scrub.scrubber import Scrubber
from cmdlog.node.scrub.segment_mend import mend_segment
from cmdlog.node.sequencing.log_feed import SequencerStart
from cmdlog.node.sequencing.partition_pipeline import Limits, LogControls, PartitionPipeline
from cmdlog.node.sequencing.sequencer import Sequencer
from cmdlog.node.settings import Settings
from cmdlog.node.site_events import SiteEvents
from cmdlog.node.sites.inline_sites import InlineSites
from cmdlog.node.sites.site_child import SiteChild
from cmdlog.node.sites.supervisor import FirstSite, ProcessSites, spread
from cmdlog.node.snapshots.snapshotter import Snapshotter
from cmdlog.node.telemetry.stage_timings import StageTimings
from cmdlog.wal.directory.sizing import skip_bytes
from cmdlog.wal.files import Files, RealFiles
from cmdlog.wal.format.block import SECTOR_BYTES
from cmdlog.wal.ids import txn_millis, txn_tick
from cmdlog.wal.log import Log
from procedures import Database
from replay.state.trust import state_path
from snapshot.archive.archive import ArchiveFolder
from snapshot.archive_layout import ARCHIVE
from snapshot.catalog import FOLDER as SNAPSHOTS

if TYPE_CHECKING:
    from cmdlog.node.scrub.log_comparison import ScrubPeers


@dataclass(frozen=True, slots=True)
class Outside:
    """What a node has from its machine. Tests give it another disk and another time."""

    files: Files
    time: TimeSource


MACHINE: Final = Outside(RealFiles(), TimeSource())


@dataclass(frozen=True, slots=True)
class NodeGround:
    """What a node is built on."""

    directory: str
    db: Database
    settings: Settings
    wal: Log
    boot: Boot
    outside: Outside
    work: RunningWork = field(default_factory=RunningWork)  # in the background


@contextlib.contextmanager
def closed_on_failure(wal: Log) -> Iterator[None]:
    """If the block fails, the log is closed, whatever that says."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):
            wal.close()
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeParts:
    """What a node is built of."""

    calls: LocalCalls
    sequencer: Sequencer
    sites: InlineSites | ProcessSites
    desk: SiteEvents
    snapshots: Snapshotter
    copier: SegmentCopyProcess
    archiver: Archiver
    facts: ManifestFacts

    @property
    def keys(self) -> KeyOwners:
        """Who has used which idempotency key."""
        return self.calls.router.keys

    def start_sites(self) -> dict[int, int]:
        """Starts sites and archive; the sites' positions by partition."""
        positions = self.sites.start(self.desk)
        try:
            self.archiver.start()
        except BaseException:  # no thread is to be had: the caller gets no node, by which it could end the sites
            self.sites.close()
            raise
        return positions


def build_parts(
    ground: NodeGround,
    *,
    first_site: FirstSite = SiteChild.spawn,
    inline: bool = False,
    skips: Sequence[tuple[int, int, int]] = (),
    run_upto: Mapping[int, int] | None = None,
) -> NodeParts:
    """Builds them; nothing runs yet.

    `inline`: sites in the calling process. `skips`: partition, index, position of entries that the start leaves to the sites.
    `run_upto`: index up to which each state holds all; None: this node votes alone.
    """
    settings, wal, boot = ground.settings, ground.wal, ground.boot
    readiness, meter = Readiness(), _make_meter(ground)
    last, source = txn_tick(wal.recovered.txn_id_max), ground.outside.time
    clock = HybridClock(lead_max_ms=settings.clock_lead_max_ms, last=last, wall=source.wall, boot=source.boot)
    facts = ManifestFacts(boot, Failures.of(ground.outside.files, ground.directory, wal.instance.identity))
    sites = _make_sites(ground.settings, first_site, inline=inline)
    copier, archiver = _make_archiver(ground, clock)
    sequencer = Sequencer(
        clock,
        _make_pipelines(settings, wal, term=boot.term, run_upto=run_upto),
        sites,
        _log_controls(settings, wal, lambda: _why_full(wal, archiver, snapshots)),
        limits=Limits(**{limit.name: getattr(settings, limit.name) for limit in fields(Limits)}),
        start=SequencerStart(boot.catalog, wal.durable_block, boot.terms, votes_alone=run_upto is None),
        meter=meter,
        on_failure=readiness.fail,
    )
    snapshots = Snapshotter(
        ground.outside.files, settings, wal=wal, sequencer=sequencer, sites=sites, facts=facts, work=ground.work,
        let_go=archiver.let_go,
    )  # fmt: skip
    desk = SiteEvents(
        ground.directory,
        ground.db,
        settings,
        boot,
        sequencer=sequencer,
        snapshots=snapshots,
        leave_out=sites.leave_out,
        skips=skips,
    )
    bound = BoundCode(ground.db, meter, catalog=boot.catalog if run_upto is None else 0)
    router = Router(settings, sequencer, make_owners(settings, source.boot), meter, bound)
    waker = LogWakeup(wal.kick)
    return NodeParts(
        calls=LocalCalls(readiness=readiness, bound=bound, clock=clock, router=router, waker=waker),
        sequencer=sequencer,
        sites=sites,
        desk=desk,
        snapshots=snapshots,
        copier=copier,
        archiver=archiver,
        facts=facts,
    )


def _make_meter(ground: NodeGround) -> StageTimings:
    names, settings = [procedure.name for procedure in ground.db.procedure_list], ground.settings
    speeds = RecoverySpeeds(ground.directory, names, settings.partitions)
    return StageTimings(names, partitions=settings.partitions, speeds=speeds, slow_s=settings.slow_call_ms / 2000 or math.inf)


def _make_sites(settings: Settings, first_site: FirstSite, *, inline: bool) -> InlineSites | ProcessSites:
    if inline:
        return InlineSites(restarts_max=settings.site_restarts_max)
    groups = spread(settings.sites, settings.partitions)
    return ProcessSites(
        groups,
        call_timeout_s=settings.call_timeout_s,
        restarts_max=settings.site_restarts_max,
        start_timeout_s=settings.start_timeout_s,
        first_site=first_site,
    )


def _make_pipelines(settings: Settings, wal: Log, *, term: int, run_upto: Mapping[int, int] | None) -> list[PartitionPipeline]:
    pipelines = []
    for partition in range(settings.partitions):
        last = wal.recovered.groups.state(partition).last_index if run_upto is None else run_upto[partition]
        pipelines.append(PartitionPipeline(partition, term, last + 1, last, marked_index=last, applied_block=wal.durable_block))
    return pipelines


def _log_controls(settings: Settings, wal: Log, why_full: Callable[[], str]) -> LogControls:
    kept_bytes = skip_bytes(settings.partitions) + SECTOR_BYTES  # and the seal after a block of notes
    return LogControls(
        kick=wal.kick,
        hasten=wal.hasten,
        room_bytes=lambda: wal.room_bytes,
        notes_room_bytes=partial(wal.left_beside, kept_bytes),
        kept_bytes=kept_bytes,
        why_full=why_full,
    )


def _make_archiver(ground: NodeGround, clock: HybridClock) -> tuple[SegmentCopyProcess, Archiver]:
    """Makes the archive's thread; from now on the log asks it before it recycles a segment."""
    directory, settings, wal = ground.directory, ground.settings, ground.wal
    halfway = (1 + settings.snapshot_log_fraction) / 2  # from where snapshots keep the log to where it refuses
    copier = SegmentCopyProcess(pressing=lambda: LogView(wal.first_blocks(), wal.instance.segments).fill >= halfway)
    archiver = Archiver(
        ArchiveFolder(ground.outside.files, directory, wal.instance.identity),
        range(settings.partitions),
        Rules(window_s=settings.retention_window_s, bytes_max=settings.archive_bytes_max, when_full=settings.archive_full),
        wal=wal,
        copy=copier.copy,
        # The earlier of the two: the wall clock set forward, or ids that lead it, must not end a window early.
        now_millis=lambda: min(clock.millis(), txn_millis(clock.closed())),
        work=ground.work,
    )
    wal.ask_before_recycling(archiver.may_go)
    return copier, archiver


@dataclass(frozen=True, slots=True)
class SelfChecks:
    """What a node checks of itself while it serves: states after a kill, restores by drills, and all that lies on the disk.

    None of it is on the path of a call, and each runs in a process of low priority.
    """

    pages: PageChecks
    drills: DrillScheduler
    scrub: Scrubber

    def start(self) -> None:
        """Begins all that the settings want."""
        for check in (self.drills, self.pages, self.scrub):
            check.start()

    def stop(self) -> None:
        """Ends what is under way; harmless at any step."""
        for check in (self.drills, self.pages, self.scrub):
            check.stop()


def make_checks(ground: NodeGround, parts: NodeParts, peers: ScrubPeers | None = None) -> SelfChecks:
    """Makes the threads that check the node; `peers`: whom the scrub compares the log with, None of a node alone."""
    pages = PageChecks(ground.directory, parts.desk.broken, ground.work)
    drills = DrillScheduler(ground.directory, every_s=ground.settings.drill_every_s, work=ground.work)
    return SelfChecks(pages, drills, _make_scrub(ground, parts, peers))


def _make_scrub(ground: NodeGround, parts: NodeParts, peers: ScrubPeers | None) -> Scrubber:
    files, directory, wal, settings = ground.outside.files, ground.directory, ground.wal, ground.settings
    reader = ScrubReader(directory)

    def in_use(found: ScrubFinding) -> bool:
        if found.kind in ("log", "entries"):
            return files.exists(found.path)
        return files.exists(os.path.join(directory, SNAPSHOTS if found.kind == "snapshot" else ARCHIVE, found.name))

    hooks = RepairHooks(
        files,
        directory,
        range(settings.partitions),
        fresh_snapshots=lambda partitions, aside: parts.snapshots.request_snapshots(partitions, aside=aside),
        set_aside_archived=parts.archiver.set_aside,
        mend_segment=lambda path: mend_segment(files, wal, path, reader.mend),
        in_use=in_use,
        peers=peers,
    )
    return Scrubber(
        ScrubPlan(files, wal),
        settings,
        os.path.dirname(state_path(directory, 0)),
        reader=reader,
        repair=hooks,
        work=ground.work,
        now=time.time(),
    )


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
