"""A log with its own threads, and a source that one can wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from cmdlog.wal.errors import WalError
from cmdlog.wal.log import Log
from cmdlog.wal.writing.watermarks import Sync
from tests.waiting import PATIENCE_S, wait_for
from tests.wal.logkit import NODE, ListSource
from tests.wal.sim.simfiles import Operation, SimFiles

WAIT_S = PATIENCE_S


class WaitSource(ListSource):
    """A ListSource for threads: one lock, and a way to wait for acknowledgements."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = threading.Condition()

    def put(self, number: int, size: int = 64) -> None:
        with self.changed:
            super().put(number, size)

    def take_records(self, bytes_max: int) -> Sequence[bytes]:
        with self.changed:
            self.changed.notify_all()
            return super().take_records(bytes_max)

    def written(self, block: int) -> None:
        with self.changed:
            super().written(block)
            self.changed.notify_all()

    def durable(self, block: int) -> None:
        with self.changed:
            super().durable(block)
            self.changed.notify_all()

    def failed(self, error: WalError) -> None:
        with self.changed:
            super().failed(error)
            self.changed.notify_all()

    def wait(self, reached: Callable[[], bool]) -> None:
        """Looks again whenever the log calls its source, and only then; `wait_for` is for everything else."""
        with self.changed:
            assert self.changed.wait_for(reached, WAIT_S), "nothing happened"


class HeldSync:
    """Holds up the next sync of the first segment; whoever sends more before `wait` returns may see a later block's held."""

    def __init__(self, files: SimFiles) -> None:
        self._held, self._release = threading.Lock(), threading.Event()
        self.overtaking = threading.Semaphore(0)  # syncs of the segment that came meanwhile
        files.before = self._hold

    def wait(self) -> None:
        wait_for(self._held.locked)

    def release(self) -> None:
        self._release.set()

    def _hold(self, operation: Operation) -> None:
        if operation.kind != "fdatasync" or not operation.path.endswith("01.wal"):
            return
        if self._held.acquire(blocking=False):
            assert self._release.wait(WAIT_S)
        else:
            self.overtaking.release()


def threaded(files: SimFiles, *, threads: int = 4, sync: Sync = "sync", window_s: float = 0.005) -> tuple[Log, WaitSource]:
    """A log with its threads."""
    log, source = Log.open(files, NODE), WaitSource()
    source.waits = sync == "sync"
    log.start(source, threads=threads, sync=sync, async_window_s=window_s)
    return log, source
