"""One sync for all blocks that were written and left without a sync of their own.

One rule: what a sync covers is read before it begins. A block that is written during it waits for the next one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from cmdlog.wal.errors import WalError
from cmdlog.wal.files import Files
from cmdlog.wal.os_errors import wal_error
from cmdlog.wal.writing.block_writes import ThreadFile
from cmdlog.wal.writing.sync_window import SyncTimes, SyncWindow
from cmdlog.wal.writing.tail import PlacedBlock
from cmdlog.wal.writing.watermarks import Watermarks


class LateSync:
    """Any thread; one sync at a time."""

    def __init__(
        self, files: Files, lock: threading.Lock, marks: Watermarks, window: SyncWindow, times: SyncTimes, *,
        clock: Callable[[], float], wedge: Callable[[WalError], None],
    ) -> None:  # fmt: skip
        """`lock` is the ring's; `wedge` is called without it."""
        self._file = ThreadFile(files)
        self._lock, self._marks, self._window, self._times = lock, marks, window, times
        self._clock, self._wedge = clock, wedge
        self._turn = threading.Lock()

    def flush(self) -> None:
        """Everything written so far is durable on return, unless the log is wedged."""
        with self._turn:
            with self._lock:
                upto, pending = self._marks.written, self._window.close()
            for placed in pending:
                if not self._sync(placed):
                    return
            with self._lock:
                self._marks.synced(upto)
        self._marks.deliver()

    def close(self) -> None:
        self._file.close()

    def _sync(self, placed: PlacedBlock) -> bool:
        begin = self._clock()
        try:
            self._file.of_block(placed).fdatasync()
        except (WalError, OSError) as error:
            self._wedge(wal_error(error, f"syncing {placed.path}"))
            return False
        with self._lock:
            self._times.add(self._clock() - begin)
        return True
