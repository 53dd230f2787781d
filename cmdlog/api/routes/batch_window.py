"""How many calls of one stream wait in the node: enough to keep it busy, too few to make others wait for long.

One rule: a call of another client on the same partition queues after what streams have placed there, so a stream places no more
than the node answers in about `QUEUE_S`. That speed is unknown beforehand: a stream starts with a small window, which
grows with every group that was answered in time and shrinks when one was late, at most once per window (congestion control by
delay, as TCP Vegas has it: Brakmo and Peterson, 1995). Streams that share a partition see the same queue, and so share its room.

"In time" is relative where the node cannot answer faster, as on a disk that takes 100 ms to sync: `SLACK` times the quickest
answer of the last `MEMORY_S` to `2 * MEMORY_S`, of any stream. And streams without a single call beside them share
`CALLS_ALONE`, which makes larger batches and a sixth more calls per second; the first call beside them waits for these. A new
stream begins where the last one was. No clock here.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Final

QUEUE_S: Final = 0.025
SLACK: Final = 1.5  # < 2: halving the window must show a quicker answer than this allows, or the measure follows the queue
MEMORY_S: Final = 10.0
WINDOW_CALLS_FIRST: Final = 256
WINDOW_CALLS_MIN: Final = 32  # still a group that is worth its block
CALLS_ALONE: Final = 8192  # of all streams together, while there are no other calls
ALONE_S: Final = 1.0  # without a call of anybody else
SHRINK_MAX: Final = 0.05  # of the window, at once
RESULT_BYTES_FIRST: Final = 256 << 10  # of a procedure's result, until one is known
FORGOTTEN_SHIFT: Final = 6  # the longest result counts for less with every group: by a 64th


class BatchTraffic:
    """What the streams of one node know of each other and of single calls."""

    def __init__(self) -> None:
        self.streams = 0  # under way
        self._calls = 0  # that were answered beside them, when that was looked at last
        self._called_s = -inf
        self.window = WINDOW_CALLS_FIRST  # of the stream that was answered last
        self._before = self._now = inf
        self._since_s = 0.0
        self.result_bytes: dict[str, int] = {}  # by procedure: the longest result of late

    def note_stream(self, change: int) -> None:
        """One stream more (1), or less (-1)."""
        self.streams += change

    def note_window(self, window: int) -> None:
        """A stream was answered by this window."""
        self.window = window

    def bytes_of(self, procedure: str) -> int:
        """What the result of a call will take, by the longest ones of late."""
        return self.result_bytes.get(procedure, RESULT_BYTES_FIRST)

    def note_results(self, names: Iterable[str], longest: str, size: int) -> None:
        """Calls of these procedures were answered, the longest result by `longest`."""
        known = self.result_bytes
        for name in names:
            before = known.get(name, size)
            known[name] = max(size, before - (before >> FORGOTTEN_SHIFT)) if before >= size or name == longest else before

    def room_alone(self, calls: int, now_s: float) -> int:
        """What each stream may place while only streams call; else 0. `calls` is how many single calls were answered so far."""
        if calls != self._calls:
            self._calls, self._called_s = calls, now_s
        return CALLS_ALONE // max(1, self.streams) if now_s - self._called_s >= ALONE_S else 0

    def quickest(self, seconds: float, now_s: float) -> float:
        """The quickest answer of late, with this one."""
        if now_s - self._since_s >= MEMORY_S:
            self._before = self._now if now_s - self._since_s < 2 * MEMORY_S else inf
            self._now, self._since_s = inf, now_s
        self._now = min(self._now, seconds)
        return min(self._before, self._now)


class BatchWindow:
    """The window of one stream. Invariant: 0 < window <= calls_max."""

    def __init__(self, traffic: BatchTraffic, calls_max: int) -> None:
        self._traffic, self._calls_max = traffic, calls_max
        self.window = min(traffic.window, calls_max)
        self._cut_s = -inf  # when it shrank last

    def answered(self, calls: int, *, placed_s: float, now_s: float, beside: int) -> None:
        """A group that was placed then is answered now; `beside` as `BatchTraffic.room_alone` has it."""
        seconds = now_s - placed_s
        in_time_s = max(QUEUE_S, SLACK * self._traffic.quickest(seconds, now_s))
        room = self._traffic.room_alone(beside, now_s)
        if seconds <= in_time_s or self.window <= room:
            self.window = min(self._calls_max, room or self._calls_max, self.window + calls)
        elif placed_s > self._cut_s:  # else it waited for what was placed before the last cut
            share = max(SHRINK_MAX, min(0.5, in_time_s / seconds))
            self.window = min(self._calls_max, max(WINDOW_CALLS_MIN, round(self.window * share)))
            self._cut_s = now_s
        self._traffic.note_window(self.window)
