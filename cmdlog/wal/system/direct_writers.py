"""Which direct writer this system has.

One rule: the thread where it was built, else the kernel's queue, else none; all three leave the same bytes.
"""

from __future__ import annotations

from cmdlog.wal.system.aio_writer import open_aio_writer
from cmdlog.wal.system.direct_write import DirectWriter
from cmdlog.wal.system.write_thread import open_write_thread


def open_direct_writer(busy_poll_s: float = 0.0) -> DirectWriter | None:
    """None where this system has none. `busy_poll_s`: how long its thread, if it has one, may look for the next write."""
    return open_write_thread(busy_poll_s) or open_aio_writer()
