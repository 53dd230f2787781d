"""How fast a source gives bytes away: one rate, which all its copies share.

One rule: time is an argument. A piece is given when all before it, at the rate, would be over; so however many ask, the sum is
what the operator set, and they get even shares of it as long as they ask one piece after the other.
"""

from __future__ import annotations

from typing import Final

BURST_S: Final = 0.05  # that may be caught up after a pause: a timer that is late costs no speed


class SharedRate:
    """One thread."""

    def __init__(self, rate: int) -> None:
        """`rate`: bytes per second; 0: no limit."""
        self.rate = rate
        self._free_s = 0.0  # when all that was taken is over

    def take_bytes(self, size: int, now_s: float) -> float:
        """Takes so many bytes; how many seconds from now they may be given."""
        if not self.rate:
            return 0.0
        begin_s = max(self._free_s, now_s - BURST_S)
        self._free_s = begin_s + size / self.rate
        return max(0.0, begin_s - now_s)
