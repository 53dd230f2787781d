"""Untrusted state files, kept next to the ones that replace them: no other file holds the rows of the live run.

One rule: at most one per partition, and the newest. A replay that diverges reads the live values from it, and so may the
operator; once a replay of the partition has succeeded it adds nothing to the new state, and is removed. Nothing is ever served
or recovered from it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from typing import Final

from replay.state.state_lock import StateLock
from replay.state.trust import read_position, state_path
from snapshot.catalog import remove_state

ENDING: Final = ".set-aside"
LOG: Final = "-wal"  # of SQLite, next to the file; the others are made again
SPARE_BYTES: Final = 64 << 20  # that are left free in addition to the old state and the new one


def kept_path(directory: str, partition: int) -> str:
    """Where the partition's state is kept, if one is."""
    return state_path(directory, partition) + ENDING


@contextlib.contextmanager
def states_kept(directory: str, replaced: Iterable[int], replayed: Iterable[int]) -> Iterator[list[int]]:
    """Sets aside the states that a recovery in place is about to replace; the caller has revoked their trust.

    Yields the partitions whose state cannot be kept, because the volume has no room for the old and the new one. At the end,
    unless with an error, what was ever set aside of the `replayed` partitions is removed. Raises: Locked.
    """
    yield [partition for partition in replaced if not _keep_state(directory, partition)]
    for partition in replayed:
        remove_state(kept_path(directory, partition))


def _keep_state(directory: str, partition: int) -> bool:
    path, kept = state_path(directory, partition), kept_path(directory, partition)
    if any(map(os.path.isdir, (path, path + LOG))):
        return True  # no state: the recovery that replaces it names what is there
    old = path if os.path.exists(path) else kept
    if not os.path.exists(old):
        return True
    if shutil.disk_usage(os.path.dirname(old)).free < _bytes(old) + SPARE_BYTES:
        remove_state(kept)
        return False
    if old == kept or not _is_newer(path, kept, partition):
        return True
    lock = StateLock(path)  # a site of a killed node may still write to it
    try:
        remove_state(kept)
        with contextlib.suppress(FileNotFoundError):
            os.rename(path + LOG, kept + LOG)
        os.rename(path, kept)
    finally:
        lock.close()
    return True


def _is_newer(path: str, kept: str, partition: int) -> bool:
    """Whether it holds more of the live run; the state of an interrupted replay does not."""
    if not os.path.exists(kept):
        return True
    new, old = read_position(path, partition), read_position(kept, partition)
    return not isinstance(new, str) and (isinstance(old, str) or new.index > old.index)


def _bytes(path: str) -> int:
    total = 0
    for name in (path, path + LOG):
        with contextlib.suppress(OSError):
            total += os.stat(name).st_size
    return total
