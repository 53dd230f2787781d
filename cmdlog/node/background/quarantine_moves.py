"""`quarantine/`: what was found damaged is moved here, out of sight of every recovery, and kept for inspection.

One rule: nothing is deleted here. A folder per finding, named by when and why; only an operator removes it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Final

from cmdlog.wal.files import Files

QUARANTINE: Final = "quarantine"


def quarantine_path(directory: str, *, seconds: float, reason: str, name: str) -> str:
    """Where something goes that was found at this time, in seconds since 1970, for this reason: one word."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(seconds))
    return os.path.join(directory, QUARANTINE, f"{stamp}-{reason}", name)


def set_aside(files: Files, moves: Mapping[str, str]) -> None:
    """Moves files and folders of one volume, path -> path, durably; what is not there any more is passed over.

    Raises: OSError, WriteFailed.
    """
    for source, target in moves.items():
        if not files.exists(source):
            continue
        _make_folders(files, os.path.dirname(target))
        files.rename(source, target)
        files.fsync_dir(os.path.dirname(target))
        files.fsync_dir(os.path.dirname(source))


def _make_folders(files: Files, path: str) -> None:
    if files.exists(path):
        return
    _make_folders(files, os.path.dirname(path))
    files.mkdir(path)
    files.fsync_dir(os.path.dirname(path))
