"""A consistent image of one partition, copied a few pages at a time between batches, on the site's own connection.

One rule: the site never waits (`snapshot.capture.capture`). Pages that the site's later batches touch are carried into the copy
by SQLite (https://www.sqlite.org/backup.html), since both go through one connection. So the image is complete, and exactly at the
last applied batch, when the last step ends.

Nothing is durable here: the image is in the page cache, and `snapshot.capture.seal` checks, syncs and names it. A capture that
fails (no space, a broken disk under the copy) is reported, not raised: the partition itself is unharmed and continues.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final

import apsw

from procedures.storage.state import PartitionState
from snapshot.capture.capture import Capture, CapturePacing

STEP_PAGES_MAX: Final = 4096  # 16 MiB: an idle site's copy is bound by the disk, not by the steps
PAGE_SECONDS_FIRST: Final = 20e-6  # of one page, before anything is measured
CHECKPOINT_PAGES: Final = 1000  # of the state's own log: a checkpoint of all over 4000 pages held calls up for 20 ms, this for 5
DESTINATION_CACHE_KIB: Final = 1024  # pages of the copy are written once and never read again


class ImageCapture(Capture):
    """The copy of a whole image."""

    kind = "full"

    def __init__(self, state: PartitionState, path: str) -> None:
        super().__init__(state, path, CapturePacing(unit_s=PAGE_SECONDS_FIRST, units_max=STEP_PAGES_MAX))
        self._backup: Any = None  # apsw.Backup
        self._checkpoint_pages = state.log.pages_checkpoint
        state.log.pages_checkpoint = min(self._checkpoint_pages, CHECKPOINT_PAGES)
        self._begin_or_fail()

    def _copy_some(self, units: int) -> bool:
        try:
            complete = bool(self._backup.step(units))
        except (apsw.BusyError, apsw.LockedError):
            return False  # a reader is starting the write-ahead log over; the next step finds it done
        if complete:
            self._complete()
        return True

    def _begin_capture(self) -> None:
        target = self._create(cache_kib=DESTINATION_CACHE_KIB)
        self._backup = target.backup("main", self._state.connection, "main")

    def _complete(self) -> None:
        # The position is read in the same moment: the site's thread is here, so no batch can come between.
        position = self._state.position
        self._backup.finish()
        self._backup = None
        self._close()
        self._position, self._done = position, True

    def _close(self) -> None:
        self._state.log.pages_checkpoint = self._checkpoint_pages
        if self._backup is not None:
            with contextlib.suppress(apsw.Error):
                self._backup.close(True)
            self._backup = None
        super()._close()
