"""Large work beside a log that syncs all the time: files made durable, and removed, in small pieces; checks with rests.

One rule: disk and processor are never taken for more than a few milliseconds at once. A log's fdatasync waits for what is in the
disk's queue; measured beside one, with a file of 600 MB (virtio disk, ext4 mounted with `discard`): one fsync of the whole file
held a sync of the log up for 395 ms, in pieces 6 ms; one unlink for 160 ms (the discards), cut off in pieces 16 ms.

It also waits for a thread of the kernel that gives the disk its flush, and that thread for a processor. A process of SCHED_IDLE
should yield to it at once. Traced on Linux 6.18 with autogroups: that thread, woken, got the processor 744 ms later; one of
SCHED_IDLE had it, which had not slept. (Probably its group's slice, counted in a share that is tiny while the site works, stays
protected when the share grows, because the site waits.) One of normal policy did the same for 200 ms. A process that sleeps
gives it up: `Breath`, and `main` for imports, during which a process is not yet idle: `make_way` comes
after them.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from cmdlog.signal_handlers import handled
from cmdlog.work_progress import count_progress

WRITE_BYTES: Final = 512 << 10  # 128 pages: half of a virtio disk's ring; after each the disk is left alone as long as it took
FORGET_BYTES: Final = 8 << 20  # of the page cache in 1 ms
NICENESS: Final = 15  # of a process that makes way
WORK_S: Final = 0.001  # at a time, between two rests
REST_S: Final = 0.00005  # any sleep lets others in; with the timer's own delay a tenth of the time
CUT_BYTES: Final = 8 << 20
CUT_PAUSE_S: Final = 0.02  # 1 GB in 2.5 s; the discards follow in the file system's own time


class Breath:
    """Called repeatedly during long work, it sleeps a moment when the last time was `WORK_S` ago. For one thread.

    It returns False: no reason to interrupt, in the terms of SQLite's progress handler.
    """

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until = time.monotonic() + WORK_S

    def __call__(self) -> bool:
        if time.monotonic() >= self._until:
            count_progress()
            time.sleep(REST_S)
            self._until = time.monotonic() + WORK_S
        return False


def make_way(policy: int) -> None:
    """This process gets the processor by `policy`, os.SCHED_IDLE or os.SCHED_OTHER, in either case after the sites and the log.

    Where the machine does not allow it, it stays as it is.
    """
    os.nice(NICENESS)
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, policy, os.sched_param(0))


def write_out(path: str) -> None:
    """Makes the content of a file durable that no one else writes; its name and size still need an fsync. Raises: OSError.

    Each piece is written once more as it is, by a write that returns when it is on the disk (RWF_DSYNC): Python has no other
    way to sync a part of a file.
    """
    descriptor = os.open(path, os.O_RDWR)
    try:
        at = 0
        while piece := os.pread(descriptor, WRITE_BYTES, at):
            began = time.monotonic()
            at += os.pwritev(descriptor, [piece], at, os.RWF_DSYNC)
            count_progress()
            time.sleep(time.monotonic() - began)
    finally:
        os.close(descriptor)


def forget_cache(path: str, rest: Callable[[], bool] = lambda: False) -> None:
    """Drops a synced file from the page cache, so that reading it back asks the disk. Raises: OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        for at in range(0, os.fstat(descriptor).st_size, FORGET_BYTES):
            os.posix_fadvise(descriptor, at, FORGET_BYTES, os.POSIX_FADV_DONTNEED)
            rest()
    finally:
        os.close(descriptor)


def remove_file(path: str) -> None:
    """Unlinks a file after it was cut off piece by piece from its end. A crash leaves a shorter one. Raises: OSError.

    One that has another name stays whole there: a restore drill reads it (`replay.drill.view`).
    """
    found = os.stat(path, follow_symlinks=False)
    for end in range(found.st_size - CUT_BYTES, 0, -CUT_BYTES) if found.st_nlink == 1 else ():
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


def main() -> int:
    """`python -m snapshot.background_io MODULE ARGUMENTS…` runs the module's `main` in a process that yields to others.

    It rests from its first line on. The imports of the process that checks an image take 0.2 s of a processor without a pause,
    and held a sync of the log up for as long; they cannot call a `Breath`, so a timer does it for them.
    """
    with handled(partial(time.sleep, REST_S), signal.SIGALRM):
        signal.setitimer(signal.ITIMER_REAL, WORK_S, WORK_S)
        module = importlib.import_module(sys.argv.pop(1))
        signal.setitimer(signal.ITIMER_REAL, 0)
    code: int = module.main()
    return code


if __name__ == "__main__":
    sys.exit(main())
