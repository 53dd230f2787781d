"""The hybrid logical clock that gives transaction ids.

One rule: ticks only grow - over restarts (the log says the highest), over clock jumps, over ids that callers echo - and only this
cluster's own time and log raise them.

A tick is milliseconds and counter as one number (`cmdlog.wal.ids.txn_tick`). The physical part is the wall clock as long as it
agrees with the boot clock within `lead_max_ms`; when it jumps further, forwards or back, the boot clock continues in its place,
because following a jump of a day would expire a day's worth of idempotency keys and leave every later id a day ahead of real
time. The jump is counted and shown, and the wall clock is believed again at the next start. If it then lags the log's last
id by more than `lead_max_ms` (one of the two lives had a wrong clock), ticks continue from there at half speed, until real time
has caught up: time that does not pass would expire no idempotency key for hours or years, until their table is full. (Kulkarni et
al., "Logical physical clocks", 2014, for the hybrid clock itself.)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from cmdlog.wal.ids import COUNTER_BITS, PARTITION_BITS, TxnId, txn_tick

CATCH_UP_SPEED: Final = 0.5  # of ticks that lead real time too far


class ClockAhead(ValueError):
    """An echoed transaction id is ahead of this node's clock, so this cluster has not given it."""


boot_seconds: Final = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
"""Seconds since boot, suspended time included, which no one can set."""


@dataclass(frozen=True, slots=True)
class TimeSource:
    """Where a node has its time from; both in seconds."""

    wall: Callable[[], float] = time.time  # since 1970
    boot: Callable[[], float] = boot_seconds  # since any moment; nobody sets it


class HybridClock:
    """Ticks for one node. Thread-safe.

    Invariant: `last` never falls, and every tick given out was greater than all before it.
    """

    def __init__(
        self,
        *,
        lead_max_ms: int,
        last: int = 0,
        wall: Callable[[], float] = time.time,
        boot: Callable[[], float] = boot_seconds,
    ) -> None:
        self.last = last
        self.jumps = 0
        self._lead_max_ms = lead_max_ms
        self._wall, self._boot = wall, boot
        self._offset = wall() - boot()  # wall minus boot clock, seconds, as believed
        self._distrusted = False
        self._ahead: tuple[float, int] | None = None  # boot clock and milliseconds of ticks when they were found too far ahead
        self._lock = threading.Lock()

    def millis(self) -> int:
        """Physical time in milliseconds since 1970, jumps kept out."""
        boot = self._boot()
        offset = self._wall() - boot
        if abs(offset - self._offset) * 1000 <= self._lead_max_ms:
            self._offset, self._distrusted = offset, False
        elif not self._distrusted:
            self._distrusted = True
            self.jumps += 1
        return int((boot + self._offset) * 1000)

    def reserve(self, count: int) -> int:
        """The first of `count` consecutive ticks that nobody else gets."""
        with self._lock:
            now, last = self.millis(), self.last >> COUNTER_BITS
            if last - now <= self._lead_max_ms:
                self._ahead = None
            else:
                now = self._slow_millis(last)
            first = max(self.last + 1, now << COUNTER_BITS)
            self.last = first + count - 1
            return first

    def _slow_millis(self, last: int) -> int:
        """While ticks lead physical time by more than the limit: slower time from where they are."""
        if self._ahead is None:
            self._ahead = self._boot(), last
        since, start = self._ahead
        return start + int((self._boot() - since) * 1000 * CATCH_UP_SPEED)

    def observe(self, txn_id: int) -> None:
        """Later ticks will be greater than this id's, which moves none of them ahead of time.

        A caller may send any number. An id that was given is in the log that this node leads, so not above `last`; one that a
        power cut took with its call is in the past. Raises: ClockAhead, and takes no notice, for any other.
        """
        tick = txn_tick(txn_id)
        with self._lock:
            if tick <= self.last:
                return
            lead_ms = (tick >> COUNTER_BITS) - self.millis()
            if lead_ms >= 0:
                raise ClockAhead(
                    f"transaction id {txn_id} is {lead_ms} ms ahead of this node's clock: this cluster has not given it"
                )
            self.last = tick

    def lift(self, tick: int) -> None:
        """Later ticks will be greater than this one, however far it leads: a log that this node leads from now on has it."""
        with self._lock:
            self.last = max(self.last, tick)

    def closed(self) -> TxnId:
        """No id given from now on, on any partition, is less than or equal to this one."""
        return TxnId((self.last << PARTITION_BITS) | (1 << PARTITION_BITS) - 1)

    @property
    def jumped(self) -> bool:
        """The wall clock is off by more than `clock_lead_max` at present and is not followed."""
        return self._distrusted
