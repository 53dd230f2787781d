"""Which partition an idempotency key was used on, so that the same key on another partition is refused (`key_reused`).

One rule: each partition's own table (`procedures.outcomes`) decides whether a call is a repetition; this one only sees that keys
do not wander. It is rebuilt from the state files at start and forgets with the keys' window, oldest first. When it is full it
takes no more: the partitions' tables, which have the same limit, refuse new keys then. Only those of multi-partition calls are
refused here, since one partition's full table must not stop its part of a call that others run.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

EVERYWHERE: Final = -1  # owner of a key that was used on a multi-partition call
SLICES: Final = 16  # the window is forgotten in so many steps


class KeyOwners:
    """Thread-safe. Holds the first 8 bytes of each fingerprint: 2**-64 per pair of live keys to refuse one wrongly."""

    def __init__(self, window_s: float, *, keys_max: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._slice_s = window_s / SLICES
        self._keys_max = keys_max
        self._clock = clock
        self._lock = threading.Lock()
        self._owner: dict[int, int] = {}
        self._slices: deque[tuple[float, list[int]]] = deque([(clock(), [])])

    def claim(self, key: bytes, partition: int) -> int:
        """The partition that the key belongs to: the given one, unless it is already another's."""
        short = int.from_bytes(key[:8], "little")
        with self._lock:
            known = self._owner.get(short)
            if known is not None:
                return known
            self._roll()
            if len(self._owner) >= self._keys_max:
                return partition
            self._owner[short] = partition
            self._slices[-1][1].append(short)
            return partition

    def refuses(self, key: bytes) -> bool:
        """Whether the key is a new one and there is no room for it."""
        return len(self._owner) >= self._keys_max and int.from_bytes(key[:8], "little") not in self._owner

    def load(self, keys: Iterable[bytes], partition: int) -> None:
        """Keys that a state file remembers; one that several remember was used on a multi-partition call."""
        for key in keys:
            if self.claim(key, partition) != partition:
                self._owner[int.from_bytes(key[:8], "little")] = EVERYWHERE

    def __len__(self) -> int:
        return len(self._owner)

    def _roll(self) -> None:
        now = self._clock()
        if now - self._slices[-1][0] < self._slice_s:
            return
        self._slices.append((now, []))
        while len(self._slices) > SLICES + 1:
            for short in self._slices.popleft()[1]:
                self._owner.pop(short, None)
