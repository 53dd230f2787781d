"""`python -m tests.cluster.slow_disk MS serve ...` is the program on a disk whose every sync takes so many milliseconds."""

from __future__ import annotations

import runpy
import sys
import threading
from collections.abc import Callable

from cmdlog.wal.files import RealFile, RealFiles


def slow_down(sync_s: float) -> None:
    """From now on each sync of this process takes so much longer; those of several threads at once do so at the same time."""

    def slowed(sync: Callable[[RealFile], None]) -> Callable[[RealFile], None]:
        def wait(file: RealFile) -> None:
            threading.Event().wait(sync_s)
            sync(file)

        return wait

    RealFile.fdatasync = slowed(RealFile.fdatasync)  # type: ignore[assignment]
    RealFile.fsync = slowed(RealFile.fsync)  # type: ignore[assignment]
    RealFiles.open_direct_writer = lambda *_: None  # type: ignore[method-assign]


if __name__ == "__main__":
    slow_down(float(sys.argv.pop(1)) / 1000)
    runpy.run_module("cmdlog.cli", run_name="__main__")
