"""Which machine this is, and which boot of it: what a directory was written by, and whether power was lost since.

One rule: what is unknown is "", which equals nothing that was written down.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Final

from cmdlog.wal.process_limits import await_descriptor

BOOT_ID_PATH: Final = Path("/proc/sys/kernel/random/boot_id")
MACHINE_ID_PATH: Final = Path("/etc/machine-id")
MACHINE_ID: Final = re.compile(r"[0-9a-f]{32}")


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
