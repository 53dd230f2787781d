"""Limits that the operating system sets for this process, and the error that names one: which, its value, what is needed.

Below what is needed nothing fails in words: a library does not load, a thread does not start, a table is not imported. So what
can be known before anything begins is checked then.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import math
import os
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from cmdlog.wal.errors import LimitReached

ADDRESS_BYTES_MIN: Final = 256 << 20  # of a process that runs procedures; one with small states came up in 195 MiB
ADDRESS_BYTES_FREE: Final = 96 << 20  # for the threads, states and caches of a small directory, in a process that has loaded all
STARTS_DIFFER_BYTES: Final = 4 << 20  # what one start has taken more than another when it looks
STACK_BYTES: Final = 8 << 20  # of a thread, where the limit of stacks does not say
DESCRIPTOR_WAIT_S: Final = 10.0  # for a free file descriptor, when the process or the machine has none
DESCRIPTOR_PAUSE_S: Final = 0.02
NO_DESCRIPTOR: Final = frozenset((errno.EMFILE, errno.ENFILE))
CGROUPS: Final = Path("/sys/fs/cgroup")
OWN_CGROUP: Final = Path("/proc/self/cgroup")
ARENA_MAX: Final = -8  # mallopt's M_ARENA_MAX, in <malloc.h>
LIMITS: Final = {
    errno.EMFILE: ("open files", resource.RLIMIT_NOFILE, "RLIMIT_NOFILE", "ulimit -n"),
    errno.ENOMEM: ("bytes of memory", resource.RLIMIT_AS, "RLIMIT_AS", "ulimit -v"),
    errno.EAGAIN: ("threads or processes", resource.RLIMIT_NPROC, "RLIMIT_NPROC", "ulimit -u"),
}
"""By the error number of a call that meets the limit: of what, which, its names."""


T = TypeVar("T")


def limit_reached(number: int, what: str) -> LimitReached:
    """The error of the limit that this error number stands for; `what` failed for want of it."""
    kind, limit, name, command = LIMITS[number]
    soft, _ = resource.getrlimit(limit)
    value = "not limited, so the machine itself is short of them" if soft == resource.RLIM_INFINITY else f"{soft:,}"
    return LimitReached(f"{what}: too few {kind} for this process; {name} (`{command}`) is {value}")


def await_descriptor(act: Callable[[], T]) -> T:
    """Runs what takes a file descriptor for a moment, or for long: while there is none it is tried again, not for ever.

    A process that has run out gets some back when a connection or a query ends. The log must not stop for good in between: a
    block that has its place waits for the file that it goes into.
    """
    until = time.monotonic() + DESCRIPTOR_WAIT_S
    while True:
        try:
            return act()
        except OSError as error:
            if error.errno not in NO_DESCRIPTOR or time.monotonic() >= until:
                raise
        time.sleep(DESCRIPTOR_PAUSE_S)


def usable_processors(cgroups: Path = CGROUPS) -> float:
    """How many processors this process may keep busy: those that it may run on, or fewer by the quota of its control group."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    processors = float(len(os.sched_getaffinity(0)))
    for folder in _own_groups(cgroups):
        with contextlib.suppress(OSError, ValueError):  # the root has none, and neither has version 1
            quota_us, period_us = (folder / "cpu.max").read_text().split()
            processors = min(processors, int(quota_us) / int(period_us))
    return processors


def worker_count() -> int:
    """How many processes that compute find a processor, at least one."""
    return max(1, math.ceil(usable_processors()))


def _own_groups(cgroups: Path) -> list[Path]:
    """The directories of this process's control group and those around it; a container sees its own as the root."""
    with contextlib.suppress(OSError):
        for line in OWN_CGROUP.read_text().splitlines():
            if line.startswith("0::"):
                own = cgroups / line[3:].lstrip("/")
                return [cgroups, own, *(folder for folder in own.parents if cgroups in folder.parents)]
    return []


def address_limit() -> str:
    """RLIMIT_AS and its value, for an error that it may have caused; "" without one."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return "" if soft == resource.RLIM_INFINITY else f"RLIMIT_AS (`ulimit -v`) is {soft:,} bytes"


def no_thread(what: str) -> LimitReached:
    """The error of a thread that cannot be started; the system does not say for want of what."""
    memory, _ = resource.getrlimit(resource.RLIMIT_AS)
    threads, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    number = errno.EAGAIN if memory == resource.RLIM_INFINITY != threads else errno.ENOMEM
    return limit_reached(number, f"{what}: no thread can be started")


def check_address_space(threads: int = 0) -> None:
    """`threads` are those that this process is going to start.

    Raises: LimitReached, when a process with this limit cannot run procedures, or this one has too little of it left.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        return
    if threads:
        _share_arena()
    if soft < ADDRESS_BYTES_MIN:
        raise LimitReached(
            f"RLIMIT_AS (`ulimit -v`) is {soft:,} bytes; each process that runs procedures needs {ADDRESS_BYTES_MIN:,} at least"
        )
    free, needed = soft - _address_bytes(), ADDRESS_BYTES_FREE + threads * _stack_bytes()
    if free < needed:
        enough = soft - free + needed + STARTS_DIFFER_BYTES
        who = f"a server with {threads} threads" if threads else "a directory that is opened"
        raise LimitReached(
            f"RLIMIT_AS (`ulimit -v`) is {soft:,} bytes, of which {max(free, 0):,} are left; "
            f"{who} needs {needed:,} at least, {enough:,} in all"
        )


def _share_arena() -> None:
    """All threads allocate from one arena: glibc reserves 64 MiB of address space for each further one, before any is used."""
    with contextlib.suppress(OSError, AttributeError):  # another C library, which has no arenas
        ctypes.CDLL(None).mallopt(ARENA_MAX, 1)


def _stack_bytes() -> int:
    """The address space that a thread reserves for its stack."""
    soft, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return threading.stack_size() or (STACK_BYTES if soft == resource.RLIM_INFINITY else soft)


def _address_bytes() -> int:
    """What this process has taken; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
