"""The capture that a site is asked for: at most one is under way, and one thread waits for it.

One rule: what comes is taken for this capture only if it has its number; what a dead site was asked for never comes, and `lose`
says so.

What the log must keep for an image: a whole image holds the site's state when it ended, a delta that of its beginning. Entries
that came meanwhile may lie in earlier blocks than the end, so a delta's `log_block` is the one at which it was asked for.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from cmdlog.node.background.recovery_forecast import RecoverySpeeds
from cmdlog.work_progress import Followed
from snapshot.errors import SnapshotFailed
from snapshot.lineage import Wish

PACE_EVERY_S: Final = 0.5  # how fast a capture follows what presses
FACTS: Final = ("kind", "partition", "index", "term", "checksum", "txn_id", "log_block")


class SiteCapture:
    """`run` is the waiting thread's; the other methods may be called from any thread."""

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
