"""Hash slots: which part of the data a partitioning value belongs to.

The function is part of the on-disk contract: it may never change, because rows stay where it once sent them.
"""

from __future__ import annotations

from collections.abc import Callable

import google_crc32c

SLOTS = 16_384  # as in Redis Cluster: fine enough to move, small enough to list
_hash: Callable[[bytes], int] = google_crc32c.value


def slot_of(value: object) -> int:
    """The slot in `[0, 16384)` of a partitioning value in wire form (int or str).

    Raises:
        TypeError: for anything else; a float or None has no stable place.
    """
    if type(value) is int:
        return _hash(b"i%d" % value) % SLOTS
    if type(value) is str:
        return _hash(b"s" + value.encode()) % SLOTS
    raise TypeError(f"a partitioning value is an integer or a string, not {type(value).__name__}")
