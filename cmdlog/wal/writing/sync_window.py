"""What the ring knows of syncs: which blocks are left to a later one, until when, and how long syncs take.

One rule: called under the ring's lock, except where a docstring says "any thread". No clock here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from cmdlog.wal.writing.tail import PlacedBlock

LATENCY_FIRST_S: Final = 0.0002  # guess until the first sync is measured
LATENCY_WEIGHT: Final = 0.1  # of the newest sync in the smoothed latency
LATENCIES_KEPT: Final = 1024  # for the summary in `status`


class SyncWindow:
    """Blocks that are written and left without a sync of their own. The first of them opens the window.

    A block that is left was written before any later one was placed for which a caller waits: that one's sync covers it.
    """

    __slots__ = ("_blocks", "_hastened", "_length_s", "_since", "wanted")

    def __init__(self, length_s: float, *, wanted: int) -> None:
        self.wanted = wanted  # the newest block whose durability a caller waits for
        self._length_s = length_s
        self._since = 0.0
        self._hastened = False
        self._blocks: dict[int, PlacedBlock] = {}  # the last one per segment

    @property
    def open(self) -> bool:
        """Some block is left. Any thread."""
        return bool(self._blocks)

    def want(self, number: int) -> None:
        """A caller waits for this block, the newest one."""
        self.wanted = number

    def hasten(self) -> None:
        """A caller waits for a block that was left: the window is over."""
        self._hastened = True

    def leave(self, placed: PlacedBlock, now: float) -> None:
        """The block has no sync of its own."""
        self._since = self._since if self._blocks else now
        self._blocks[placed.sequence] = placed

    def close(self) -> list[PlacedBlock]:
        """Ends the window; a block of each segment that must be synced."""
        blocks = list(self._blocks.values())
        self._blocks.clear()
        self._hastened = False
        return blocks

    def cover(self) -> None:
        """A later block's sync has covered all of them."""
        self._blocks.clear()

    def left_s(self, now: float) -> float:
        """Seconds until the window is over."""
        return 0.0 if self._hastened else self._since + self._length_s - now


class SyncTimes:
    """How long syncs take."""

    __slots__ = ("_kept", "_report", "count", "smoothed_s")

    def __init__(self, report: Callable[[float], None]) -> None:
        """`report` gets the seconds of every sync, a block's own with its write."""
        self._report = report
        self.count = 0
        self.smoothed_s = LATENCY_FIRST_S
        self._kept: deque[float] = deque(maxlen=LATENCIES_KEPT)

    def add(self, seconds: float | None) -> None:
        """A sync took so long; None: no thread saw its end."""
        self.count += 1
        if seconds is None:
            return
        self._kept.append(seconds)
        self._report(seconds)

    def smooth(self, seconds: float) -> None:
        """A block's write, with its sync if it had one, took so long."""
        self.smoothed_s += (seconds - self.smoothed_s) * LATENCY_WEIGHT

    def summary(self) -> dict[str, float]:
        """Median, 99th percentile and maximum in microseconds; zeros before the first sync."""
        return _summary(sorted(self._kept))


def _summary(ascending_s: Sequence[float]) -> dict[str, float]:
    shares = (("median", 0.5), ("p99", 0.99), ("max", 1.0))
    last = len(ascending_s) - 1
    return {name: round(ascending_s[int(share * last)] * 1e6, 1) if ascending_s else 0.0 for name, share in shares}
