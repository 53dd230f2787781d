"""What is done about damage: by kind of file, one small step at a time.

One rule: nothing is deleted, and nothing that is needed is given up before its replacement counts. What is set aside goes into
`quarantine/` of the node directory; the log's anchors follow the snapshots that are left.

    snapshot           set aside, never used again; a fresh one of that partition is taken at once
    archived snapshot  set aside; how far back one can go is what is left
    archived segment   set aside, with its manifest; a damaged manifest alone is reported, its segment is still read
    segment, archived  made again from the archive's copy
    segment            two rounds of fresh snapshots of all partitions: then neither the newest snapshots nor those that recovery
                       falls back to need the log before, and the ring lets the segment go
    segment, member    the same; if somebody still needs it a minute later, the node is copied from its peers
    entries, member    that differ from the majority's: the node is copied from its peers

A copy begins once a quorum is safe without this node, and nodes take turns. A segment that is the log's newest one is repaired as
the others, but a start reads it whole and refuses it until then.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import structlog

from cmdlog.node.background.quarantine_moves import quarantine_path
from cmdlog.node.scrub.scrub_progress import Findings, ScrubFinding
from cmdlog.node.scrub.scrub_reader import ReadingFailed
from cmdlog.wal.errors import WalError
from cmdlog.wal.files import Files
from snapshot.archive_layout import MANIFEST_SUFFIX, manifest_path
from snapshot.errors import SnapshotError
from snapshot.manifest import parse_name

if TYPE_CHECKING:
    from cmdlog.node.scrub.log_comparison import ScrubPeers

RETRY_S: Final = 60.0  # after a step that could not be done
LOG_ROUNDS: Final = 2  # of snapshots: the newest one, and an independent one to fall back to
UNNEEDED: Final = "recovery does not need it any more; the ring lets it go"

log = structlog.get_logger("cmdlog.scrub")


@dataclass(frozen=True, slots=True)
class RepairHooks:
    """What the node gives."""

    files: Files
    directory: str
    partitions: Sequence[int]
    fresh_snapshots: Callable[[Sequence[int], Mapping[str, str]], Future[dict[str, Any]]]
    """Takes snapshots of these partitions; before that, what lies at each path is moved to the other one."""
    set_aside_archived: Callable[[Mapping[str, str]], None]  # path -> where it goes
    mend_segment: Callable[[str], bool]  # whether the archive had the segment at this path, and it is whole now
    in_use: Callable[[ScrubFinding], bool]  # whether the file is there under its name
    peers: ScrubPeers | None  # of a node alone None


class DamageRepair:
    """For one thread."""

    def __init__(self, hooks: RepairHooks, findings: Findings) -> None:
        self._hooks, self._findings = hooks, findings
        self._snapshots: dict[tuple[str, str], Future[dict[str, Any]]] = {}  # under way, by the finding's key

    @property
    def takes_snapshots(self) -> bool:
        """Whether snapshots that were asked for are under way."""
        return bool(self._snapshots)

    def begin_repair(self, found: ScrubFinding) -> None:
        """A new finding: what will be done about it is decided."""
        rounds = {"snapshot": 1, "log": LOG_ROUNDS}.get(found.kind, 0)
        self._findings.put(replace(found, snapshots_left=rounds))

    def advance(self, now: float) -> bool:
        """A step for each open finding that is due; whether anything changed. Nothing here waits for a snapshot."""
        before = list(self._findings.open)
        for found in before:
            if found.retry_at > now:
                continue
            try:
                self._step(found, now)
            except (SnapshotError, WalError, OSError, ReadingFailed) as error:
                self._put(found, now, f"not possible now: {error}")
        return self._findings.open != before

    def _step(self, found: ScrubFinding, now: float) -> None:
        if found.kind == "snapshot":
            self._repair_snapshot(found, now)
        elif not self._hooks.in_use(found):
            self._end(found, now, "it is no longer there, and nothing needs it")
        elif found.kind == "log":
            self._repair_log(found, now)
        elif found.kind == "entries":
            self._repair_by_copy(found, now)
        else:
            self._repair_archive(found, now)

    # -- snapshots -------------------------------------------------------------------------------------------------------

    def _repair_snapshot(self, found: ScrubFinding, now: float) -> None:
        named = parse_name(found.name)
        assert named is not None
        target = self._quarantined(found)
        source = os.path.join(self._hooks.directory, "snapshots", found.name)
        if self._round_done(found, [named[0]], {source: target}):
            self._end(found, now, f"set aside as {target}; a fresh snapshot was taken")

    def _round_done(self, found: ScrubFinding, partitions: Sequence[int], aside: Mapping[str, str]) -> bool:
        """Begins a round of snapshots, or looks whether it has ended. Raises: SnapshotError, when it failed."""
        future = self._snapshots.get(found.key)
        if future is None:
            self._snapshots[found.key] = self._hooks.fresh_snapshots(partitions, aside)
            return False
        if not future.done():
            return False
        del self._snapshots[found.key]
        future.result()
        return True

    # -- the archive -----------------------------------------------------------------------------------------------------

    def _repair_archive(self, found: ScrubFinding, now: float) -> None:
        target = self._quarantined(found)
        source = os.path.join(self._hooks.directory, "archive", found.name)
        moved = {source: target}
        if found.kind == "archive_log":
            if found.path.endswith(MANIFEST_SUFFIX):
                self._put(found, now, "the segment itself is whole and a recovery still reads it")
                return
            moved = {path: os.path.join(target, os.path.basename(path)) for path in (source, manifest_path(source))}
        self._hooks.set_aside_archived({path: to for path, to in moved.items() if self._hooks.files.exists(path)})
        self._end(found, now, f"set aside as {target}; what it held is no longer in the archive")

    # -- the log ---------------------------------------------------------------------------------------------------------

    def _repair_log(self, found: ScrubFinding, now: float) -> None:
        if found.key not in self._snapshots and self._is_mended(found):
            self._end(found, now, "made again from the archive's copy")
            return
        if not found.snapshots_left:
            self._repair_by_copy(found, now)
        elif self._round_done(found, self._hooks.partitions, {}):
            left = found.snapshots_left - 1
            repair, wait_s = ("fresh snapshots are taken", 0.0) if left else (UNNEEDED, RETRY_S)
            self._findings.put(replace(found, snapshots_left=left, repair=repair, retry_at=now + wait_s))

    def _repair_by_copy(self, found: ScrubFinding, now: float) -> None:
        peers = self._hooks.peers
        if peers is None:
            self._put(found, now, UNNEEDED)
        elif now < found.found_at + peers.turn_s or not peers.quorum_is_safe():
            self._put(found, now, "a copy from the peers waits until a quorum is safe without this node")
        else:
            peers.want_copy(f"{found.what} in {found.path}")
            self._put(found, now, "the node is copied from its peers")

    def _is_mended(self, found: ScrubFinding) -> bool:
        """Whether the archive's copy has replaced it; an archive that is damaged as well is no reason to wait."""
        try:
            return self._hooks.mend_segment(found.path)
        except (WalError, OSError, ReadingFailed) as error:
            log.warning("segment_not_mended", path=found.path, reason=str(error))
            return False

    # -- inside ----------------------------------------------------------------------------------------------------------

    def _quarantined(self, found: ScrubFinding) -> str:
        """Where the file goes: a folder per finding, named by when and why."""
        name = f"{found.kind}-{found.name}"
        return quarantine_path(self._hooks.directory, seconds=found.found_at, reason="scrub", name=name)

    def _put(self, found: ScrubFinding, now: float, repair: str) -> None:
        self._findings.put(replace(found, repair=repair, retry_at=now + RETRY_S))

    def _end(self, found: ScrubFinding, now: float, repair: str) -> None:
        self._snapshots.pop(found.key, None)
        self._findings.end(found.key, now, repair)
        log.info("damage_repaired", kind=found.kind, path=found.path, repair=repair)
