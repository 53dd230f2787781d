"""One snapshot from its capture to its mark in the log: the steps 1 to 4 of `cmdlog.node.snapshots.snapshotter`.

One rule: an image gets no name before everything that it holds is durable in the log.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from cmdlog.node.background.idle_process import SealProcess
from cmdlog.node.background.recovery_forecast import RecoverySpeeds
from cmdlog.node.background.running_work import Work
from cmdlog.node.boot import ManifestFacts
from cmdlog.node.outcome import CallOutcome
from cmdlog.node.sequencing.sequencer import Sequencer
from cmdlog.node.sites.inline_sites import InlineSites
from cmdlog.node.sites.supervisor import ProcessSites
from cmdlog.wal.errors import WalError
from cmdlog.wal.files import Files
from cmdlog.wal.format.control_record import SnapshotMark
from cmdlog.wal.log import Log
from cmdlog.work_progress import Followed
from snapshot.capture.capture import Wish
from snapshot.catalog import Snapshot, free_path
from snapshot.errors import SnapshotFailed
from snapshot.manifest import IMAGE_NAME

LOOK_EVERY_S: Final = 0.5  # whether what is waited for has become impossible
PACE_EVERY_S: Final = 0.5  # how fast a capture follows what presses
FACTS: Final = ("kind", "partition", "index", "term", "checksum", "txn_id", "log_block")


class SiteCapture:
    """The capture that a site is asked for: at most one is under way. `run` is for the waiting thread, all else for any.

    What comes is taken for this capture only if it has its number; what a dead site was asked for never comes: `lose` says so.

    What the log must keep for an image: a whole image holds the site's state when it ended, a delta that of its beginning.
    Entries that came meanwhile may lie in earlier blocks than the end, so a delta's `log_block` is the one at which it was asked
    for.
    """

    def __init__(
        self,
        begin: Callable[[int, int, str, Wish], None],
        applied_block: Callable[[int], int],
        progress: Callable[[int], int],
        speeds: RecoverySpeeds,
    ) -> None:
        """`begin` asks a site: partition, number of the capture, path of a whole image, or rather a delta.

        `progress` is a number that changes as the partition's site gets on with it.
        """
        self._begin, self._applied_block, self._progress, self._speeds = begin, applied_block, progress, speeds
        self._lock = threading.Condition()
        self._ident = 0
        self._partition: int | None = None  # of the capture under way
        self._report: dict[str, Any] | None = None  # of the capture under way, once it is there
        self._stopping = False
        self.marked: Counter[str] = Counter()  # calls in no snapshot yet, at the moment whose state the image holds

    def run(self, partition: int, image: str, wish: Wish, set_pace: Callable[[int], None]) -> dict[str, Any]:
        """Asks for the capture and waits; FACTS of what was written. Raises: SnapshotFailed."""
        asked_block = self._applied_block(partition)
        with self._lock:
            self._ident += 1
            self._partition, self._report = partition, None
            self.marked = self._speeds.mark(partition)
            ident = self._ident
        self._begin(partition, ident, image, wish)
        set_pace(partition)
        followed = Followed(partial(self._progress, partition))
        with self._lock:
            while not self._lock.wait_for(lambda: self._report is not None or self._stopping, PACE_EVERY_S):
                followed.follow()
                set_pace(partition)
            report, self._partition = self._report, None
        if report is None:
            raise SnapshotFailed("the node is stopping")
        if "error" in report:
            raise SnapshotFailed(f"the image of partition {partition} could not be written: {report['error']}")
        facts = {name: report[name] for name in FACTS}
        return facts if facts["kind"] == "full" else {**facts, "log_block": asked_block}

    def complete(self, ident: int, report: dict[str, Any]) -> None:
        """A site has written the image, or could not; called in the order in which the site answers."""
        block = self._applied_block(report["partition"])
        with self._lock:
            if ident == self._ident:
                self._report = {**report, "log_block": block}
                if report.get("kind") != "delta":
                    self.marked = self._speeds.mark(report["partition"])
                self._lock.notify_all()

    def lose(self, partitions: Sequence[int]) -> None:
        """Sites have ended, and their captures with them."""
        with self._lock:
            if self._partition is not None and self._partition in partitions and self._report is None:
                self._report = {"error": "the site ended during the capture"}
                self._lock.notify_all()

    def stop(self) -> None:
        """Nobody waits any more."""
        with self._lock:
            self._stopping = True
            self._lock.notify_all()


class SnapshotMaker:
    """Belongs to the snapshot thread, but for `stop` and the methods of `capture`."""

    def __init__(
        self, files: Files, wal: Log, *, sequencer: Sequencer, sites: InlineSites | ProcessSites, facts: ManifestFacts,
        set_pace: Callable[[int], None], pressing: Callable[[], bool],
    ) -> None:  # fmt: skip
        """`set_pace` says how much of its time the partition's site gives to a copy; `pressing`: the log cannot wait longer."""
        self._files, self._wal, self._sequencer, self._facts = files, wal, sequencer, facts
        self._set_pace, self._pressing = set_pace, pressing
        self.capture = SiteCapture(sites.capture, sequencer.site_feed.applied_block, sites.progress, sequencer.meter.speeds)
        self._sealer = SealProcess()
        self.stopping = False

    def stop(self) -> None:
        """Interrupts what is under way."""
        self.stopping = True
        self.capture.stop()
        self._sealer.stop()

    def make(self, wish: Wish, base: Snapshot | None, partition: int, folder: str, work: Work, *, asked: bool) -> dict[str, Any]:
        """On return the snapshot is verified, at its `path`, and not marked. `folder`: a temporary one; `asked`: somebody waits.

        Raises: SnapshotFailed, WalError, OSError; nothing relies on what there is of it, and the folder is gone.
        """
        path = ""
        try:
            work.enter(f"copying partition {partition}")
            report = self.capture.run(partition, os.path.join(folder, IMAGE_NAME), wish, self._set_pace)
            if report["kind"] != "full" and base is not None and base.manifest is not None:
                report = {**report, "base": base.manifest.as_base(base.name)}
            work.enter("waiting for the disk")
            self._await_durable(partition)
            path = free_path(self._files, self._wal.directory, partition=partition, index=report["index"])
            facts = {**report, **self._wal.instance.identity.as_text(), **self._facts.of_partition(partition)}
            work.enter("sealing")
            self._sealer.seal(folder, path, facts, self._pressing, asked=asked)
        except BaseException:
            if path and not self.stopping:  # it may have its name already, with content or name not on the disk
                with contextlib.suppress(WalError, OSError):
                    self._files.rename(path, folder)
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return {**report, "path": path}

    def mark(self, made: Mapping[str, Any]) -> None:
        """The log says, durable, that the snapshot exists and was verified, if it has room for that: a full one waits for it."""
        feed = self._sequencer.log_feed
        if not feed.notes_fit:
            return

        def ask(done: Callable[[], None]) -> None:
            feed.add_record(SnapshotMark.encode(os.path.basename(made["path"]), made), done)
            feed.flush_notes()

        # Where the notes do not fit any more, the room is gone, or a segment is waited for.
        if not self.wait(ask, lambda: self.stopping or not feed.notes_fit) and self.stopping:
            raise SnapshotFailed("the node is stopping; the snapshot is complete and will be used after the next start")

    def _await_durable(self, partition: int) -> None:
        """Everything that the partition's site was given so far is durable on return."""

        def ask(done: Callable[[], None]) -> None:
            self._sequencer.reads.when_durable(partition, lambda reply: done() if isinstance(reply, CallOutcome) else None)

        if not self.wait(ask, lambda: self.stopping):  # also a node that has failed, which answers no outcome, stops
            raise SnapshotFailed("the node is stopping")

    @staticmethod
    def wait(ask: Callable[[Callable[[], None]], None], given_up: Callable[[], bool]) -> bool:
        """Waits until what `ask` asks for calls back; False when it is given up before."""
        done = threading.Event()
        ask(done.set)
        while not done.wait(LOOK_EVERY_S):
            if given_up():
                return False
        return True
