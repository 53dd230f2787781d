"""Hash slots: which part of the data a partitioning value belongs to.

The function is part of the on-disk contract: it may never change, because rows stay where it once sent them.
"""

from __future__ import annotations

import functools
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


def slot_ranges(partitions: int) -> list[list[int]]:
    """[lo, hi, partition] with slots [lo, hi), ascending: even and contiguous. Every partition has a slot up to SLOTS of them."""
    bounds = [-(-partition * SLOTS // partitions) for partition in range(partitions + 1)]
    return [[bounds[p], bounds[p + 1], p] for p in range(partitions)]


@functools.cache
def partition_by_slot(partitions: int) -> tuple[int, ...]:
    """The partition of every slot, as `slot_ranges` says."""
    return tuple([slot * partitions // SLOTS for slot in range(SLOTS)])
