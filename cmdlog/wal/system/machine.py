"""Which machine this is, which boot of it, and which life of a file: what a directory was written by, and what changed since.

One rule: what is unknown is "" or 0, which equals nothing that was written down.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import struct
from pathlib import Path
from typing import Final

from cmdlog.wal.process_limits import await_descriptor

BOOT_ID_PATH: Final = Path("/proc/sys/kernel/random/boot_id")
MACHINE_ID_PATH: Final = Path("/etc/machine-id")
MACHINE_ID: Final = re.compile(r"[0-9a-f]{32}")
AT_FDCWD: Final = -100  # relative to the working directory
STATX_BTIME: Final = 0x800  # wanted, and in the mask when the file system keeps it
STATX_BYTES: Final = 256
BORN: Final = struct.Struct("=I76xqI")  # mask; then stx_btime: seconds, nanoseconds
SECOND_NS: Final = 10**9


def read_boot_id() -> str:
    """Changes with every boot. Where there is none every start is taken for a boot, which costs time and no safety."""
    try:
        return await_descriptor(BOOT_ID_PATH.read_text).strip()
    except FileNotFoundError:  # no Linux
        return ""


def read_machine_id() -> str:
    """Tells machines apart, over boots: a hash, as machine-id(5) wants it, which is not to be shown as it is."""
    try:
        held = MACHINE_ID_PATH.read_text(errors="replace").strip()
    except OSError:
        return ""
    if not MACHINE_ID.fullmatch(held):  # missing, empty or "uninitialized", as in many images of containers
        return ""
    return hashlib.sha256(f"cmdlog {held}".encode()).hexdigest()[:16]


def birth_ns(path: str) -> int:
    """Birth time of an existing file, since 1970; 0 where file system, kernel or C library do not say.

    A copy cannot bring it along: the file system writes it once and no call changes it. It distinguishes files that have the same
    inode number one after another: ext4 gives the number of a removed file to the next one, so a restored copy may have the very
    inode that was written. Python reports it from 3.15 on; the kernel's `struct statx` is the same on every machine.
    """
    statx = getattr(ctypes.CDLL(None), "statx", None)
    found = ctypes.create_string_buffer(STATX_BYTES)
    if statx is None or statx(AT_FDCWD, os.fsencode(path), 0, STATX_BTIME, found):
        return 0
    mask, seconds, nanoseconds = BORN.unpack_from(found)
    return int(seconds * SECOND_NS + nanoseconds) if mask & STATX_BTIME else 0
