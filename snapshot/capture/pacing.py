"""How much of a snapshot is copied between two batches.

One rule: the site never waits. After a batch a step takes `share` of the time that the batch took, and never more than
`STEP_SECONDS`, which it takes when there is nothing else to do. Then it also rests after each: a site that went from step to
step held up the syncs of the log that it waited for, by 200 to 350 ms (why: `snapshot.background_io`).
"""

from __future__ import annotations

from typing import Final

STEP_SECONDS: Final = 0.001  # of an idle site: as long as the next batch may have to wait
IDLE_PAUSE_S: Final = 0.0001  # between two steps of an idle site; any sleep lets others in
BUSY_SHARE: Final = 0.1  # of a busy site's time: 1 GB takes about 20 s; carrying changed pages over costs as much again
_WEIGHT: Final = 0.2  # of the newest step in the smoothed time of one unit


class CapturePacing:
    """Sizes the steps of one copy.

    Attributes:
        share: of a busy site's time.
        unit_s: smoothed time of one page or row.
    """

    __slots__ = ("_index", "_stepped_at", "_units_max", "share", "unit_s")

    def __init__(self, *, unit_s: float, units_max: int) -> None:
        self.share = BUSY_SHARE
        self.unit_s = unit_s
        self._units_max = units_max
        self._index, self._stepped_at = -1, 0.0  # of the step before

    def set_share(self, share: float) -> None:
        """From now on a busy site gives this share of its time."""
        self.share = share

    def units(self, now: float, index: int) -> int:
        """Pages or rows of the step that begins now. The position shows a busy site: it has moved since the step before."""
        busy, self._index = index != self._index, index
        allowed_s = min(self.share * (now - self._stepped_at), STEP_SECONDS) if busy else STEP_SECONDS
        return min(max(int(allowed_s / self.unit_s), 1), self._units_max)

    def stepped(self, units: int, *, began: float, now: float) -> None:
        """Ends the step, and measures it."""
        self._stepped_at = now
        self.unit_s += _WEIGHT * ((now - began) / units - self.unit_s)
