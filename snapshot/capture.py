"""Capture: a consistent image of one partition, copied a few pages at a time between batches, on the site's own connection.

One rule: the site never waits (`snapshot.pace`). Pages that the site's later batches touch are carried into the copy by SQLite
(https://www.sqlite.org/backup.html), since both go through one connection. So the image is whole, and stands exactly at the last
applied batch, at the moment in which the last step ends.

Nothing is durable here: the image is in the page cache, and `snapshot.seal` checks, syncs and names it. A capture that fails (no
space, a broken disk under the copy) is reported, not raised: the partition itself is unharmed and goes on.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, Final

import apsw

from procedures.state import PartitionState
from snapshot.pace import Pace

STEP_PAGES_MAX: Final = 4096  # 16 MiB: an idle site's copy is bound by the disk, not by the steps
PAGE_SECONDS_FIRST: Final = 20e-6  # of one page, before anything is measured
CHECKPOINT_PAGES: Final = 1000  # of the state's own log: a checkpoint of all over 4000 pages held calls up for 20 ms, this for 5
DESTINATION_CACHE_KIB: Final = 1024  # pages of the copy are written once and never read again


class Capture:
    """A copy under way. Owned by the site's thread."""

    def __init__(self, state: PartitionState, path: str) -> None:
        self._state, self._path = state, path
        self.pace = Pace(unit_s=PAGE_SECONDS_FIRST, units_max=STEP_PAGES_MAX)
        self._error = ""
        self._done = False
        self._ours = False  # the file at `path` was made here, so it may be removed here
        self._copy: apsw.Connection | None = None
        self._backup: Any = None  # apsw.Backup
        self._checkpoint_pages: Any = state.connection.pragma("wal_autocheckpoint")
        state.connection.wal_autocheckpoint(min(self._checkpoint_pages, CHECKPOINT_PAGES))
        try:
            self._begin()
        except (apsw.Error, OSError) as error:
            self._fail(error)

    def step(self) -> bool:
        """Copies some pages; True when the image is complete or has failed: `report` says which."""
        if self._done:
            return True
        began = time.perf_counter()
        pages = self.pace.units(began, self._state.position.index)
        try:
            complete = bool(self._backup.step(pages))
        except (apsw.BusyError, apsw.LockedError):
            return False  # a reader is starting the write-ahead log over; the next step finds it done
        except (apsw.Error, OSError) as error:
            self._fail(error)
            return True
        if complete:
            self._complete()
        self.pace.stepped(pages, began=began, now=time.perf_counter())
        return self._done

    def report(self) -> dict[str, Any]:
        """What it is and where it stands: kind, partition, index, term, checksum, txn_id, path; `error` when it failed."""
        if not self._done:
            raise RuntimeError(f"the capture to {self._path} is still under way")
        if self._error:
            return {"partition": self._state.partition, "path": self._path, "error": self._error}
        return dict(self._report)

    def abort(self) -> None:
        """Ends the copy and removes what there is of it."""
        self._done = True
        self._close()
        if self._ours:
            with contextlib.suppress(OSError):
                os.unlink(self._path)

    def _begin(self) -> None:
        os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o640))
        self._ours = True
        self._copy = apsw.Connection(self._path)
        for pragma in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{DESTINATION_CACHE_KIB}"):
            self._copy.execute(f"PRAGMA {pragma}").fetchall()
        self._backup = self._copy.backup("main", self._state.connection, "main")

    def _complete(self) -> None:
        # The position is read in the same moment: the site's thread is here, so no batch can come between.
        position = self._state.position
        try:
            self._backup.finish()
            self._backup = None
            self._close()
        except (apsw.Error, OSError) as error:
            self._fail(error)
            return
        self._report = {
            "kind": "full",
            "partition": self._state.partition,
            "index": position.index,
            "term": position.term,
            "checksum": position.checksum,
            "txn_id": position.txn_id,
            "path": self._path,
        }
        self._done = True

    def _fail(self, error: Exception) -> None:
        self._error = f"{type(error).__name__}: {error}"
        self.abort()

    def _close(self) -> None:
        self._state.connection.wal_autocheckpoint(self._checkpoint_pages)
        if self._backup is not None:
            with contextlib.suppress(apsw.Error):
                self._backup.close(True)
            self._backup = None
        if self._copy is not None:
            self._copy.close(True)
            self._copy = None
