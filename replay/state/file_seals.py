"""Records what a state file held when its last writer closed it, so that a change of the file at rest is found.

One rule: only a file that no process has open is checked, and all its content is in it. A SQLite write-ahead log beside it is
checkpointed first; one that is not empty afterwards, or later, means that the file is still changing.

CRC-32C takes some 0.4 s per GB and finds every single flipped bit. It holds Python's lock, so that threads would gain nothing.
"""

from __future__ import annotations

import os

import apsw

from procedures.storage.state_file import connect
from snapshot.manifest import content_of

Content = tuple[int, int]  # bytes, CRC-32C


def bring_in(path: str) -> bool:
    """Checkpoints the write-ahead log beside a state file into the file; whether nothing is left there."""
    if has_log(path):
        try:
            connection = connect(path, apsw.SQLITE_OPEN_READWRITE)
            try:
                connection.execute("SELECT 1 FROM sqlite_master").fetchall()  # before it has read, a connection knows of no log
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            finally:
                connection.close()
        except apsw.Error:  # a process reads it, or the disk is full: it is not changed, and is not a file at rest
            return False
    return not has_log(path)


def has_log(path: str) -> bool:
    """Whether a part of the state is in a write-ahead log beside the file."""
    try:
        return os.stat(f"{path}-wal").st_size > 0
    except FileNotFoundError:
        return False


def difference(path: str, stated: Content) -> str:
    """How the file differs from what was recorded; "" when it does not. Raises: OSError."""
    if has_log(path):
        return "it has been written to since"
    if (size := os.stat(path).st_size) != stated[0]:
        return f"{size} bytes instead of {stated[0]}"
    found = content_of(path)
    return "" if found == stated else f"CRC-32C {found[1]:08x} instead of {stated[1]:08x}"
