"""Large files beside a log that syncs all the time: made durable, and removed, in small pieces.

One rule: the disk is never given more at once than it does in a few milliseconds. A log's fdatasync waits for what is in the
disk's queue; measured beside one, with a file of 600 MB (virtio disk, ext4 mounted with `discard`): one fsync of the whole file
held a sync of the log up for 395 ms, in pieces 6 ms; one unlink for 160 ms (the discards), cut off in pieces 16 ms.
"""

from __future__ import annotations

import os
import time
from typing import Final

WRITE_BYTES: Final = 4 << 20  # 3 ms of that disk; after each the disk is left alone for as long as it took
CUT_BYTES: Final = 8 << 20
CUT_PAUSE_S: Final = 0.02  # 1 GB in 2.5 s; the discards follow in the file system's own time


def write_out(path: str) -> None:
    """Makes the content of a file durable that nobody else writes; its name and size need an fsync still. Raises: OSError.

    Each piece is written once more as it is, by a write that returns when it is on the disk (RWF_DSYNC): Python has no other
    way to sync a part of a file.
    """
    descriptor = os.open(path, os.O_RDWR)
    try:
        at = 0
        while piece := os.pread(descriptor, WRITE_BYTES, at):
            began = time.monotonic()
            at += os.pwritev(descriptor, [piece], at, os.RWF_DSYNC)
            time.sleep(time.monotonic() - began)
    finally:
        os.close(descriptor)


def forget_cache(path: str) -> None:
    """Drops a synced file from the page cache, so that reading it back asks the disk. Raises: OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def remove_file(path: str) -> None:
    """Unlinks a file after it was cut off piece by piece from its end. A crash leaves a shorter one. Raises: OSError."""
    size = os.stat(path, follow_symlinks=False).st_size
    for end in range(size - CUT_BYTES, 0, -CUT_BYTES):
        os.truncate(path, end)
        time.sleep(CUT_PAUSE_S)
    os.unlink(path)


def remove_tree(folder: str) -> None:
    """Removes a folder of files. Raises: OSError."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.is_dir(follow_symlinks=False):
            remove_tree(entry.path)
        else:
            remove_file(entry.path)
    os.rmdir(folder)
