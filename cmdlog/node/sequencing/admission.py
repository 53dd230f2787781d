"""Admission: why calls are refused, how many calls and bytes are in flight, and whether the log has room for one more.

One rule: plain data of the sequencer, under its lock; a call is counted here from its placing until it is answered. This is the
one gate before a call: each reason closes it by itself, and is opened by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from enum import IntEnum
from typing import Final

from cmdlog.node.outcome import CallRefused, LogFullRefusal, Overloaded
from cmdlog.node.sequencing.flight import Flight, Pending
from cmdlog.node.sequencing.partition_pipeline import Limits

ROOM_LOOK_BYTES: Final = 64 << 20  # with more room than this the log is not asked at every call


class Closed(IntEnum):
    """What keeps calls out of all partitions. A caller gets the first as its error."""

    NODE = 0  # it stops, or has failed: it is never opened again
    LEADER = 1  # another node leads, or none, or this one takes over
    MIGRATION = 2  # the tables change
    MAJORITY = 3  # no majority takes entries into its logs; reads of one partition are served


class Admission:
    """`pending_bytes` is about what the next `take` would return; `held_bytes` of calls cannot be taken before a site answers."""

    def __init__(self, limits: Limits, *, room_bytes: Callable[[], int], why_full: Callable[[], str]) -> None:
        self.limits, self._room_bytes, self.why_full = limits, room_bytes, why_full
        self.inflight_calls = self.inflight_bytes = 0
        self.pending_bytes = self.held_bytes = 0
        self._closed: dict[Closed, CallRefused] = {}  # by reason, for all partitions
        self._closed_partitions: dict[int, CallRefused] = {}  # whose sites cannot run, or whose states diverged
        self._room_seen = 0  # when the log was last asked, less what was taken since

    def admit(self, partitions: Iterable[int], calls: int, size_bytes: int, *, overhead_bytes: int) -> None:
        """Counts calls of these partitions in. `overhead_bytes`: what the log needs besides them. Raises: CallRefused."""
        limits = self.limits
        if self._closed_partitions:
            for partition in partitions:
                self.raise_closed_partition(partition)
        if self._closed:
            raise self._closed[min(self._closed)].again()
        if self.inflight_calls + calls > limits.inflight_calls_max:
            raise Overloaded(f"{self.inflight_calls} calls are in flight, limit inflight_calls_max={limits.inflight_calls_max}")
        if self.inflight_bytes + size_bytes > limits.inflight_bytes_max:
            raise Overloaded(f"{self.inflight_bytes} bytes are in flight, limit inflight_bytes_max={limits.inflight_bytes_max}")
        need = self.pending_bytes + self.held_bytes + size_bytes + overhead_bytes
        if self._room_seen < need + ROOM_LOOK_BYTES:
            self._room_seen = self._room_bytes()
            if self._room_seen < need:
                raise LogFullRefusal(self.why_full())
        self.inflight_calls += calls
        self.inflight_bytes += size_bytes
        self.pending_bytes += size_bytes

    # -- the gate --------------------------------------------------------------------------------------------------------

    def close(self, reason: Closed, refusal: CallRefused) -> None:
        """From now on every call is refused for this reason."""
        self._closed[reason] = refusal

    def open(self, reason: Closed) -> None:
        """Calls are no longer refused for this reason; other reasons stay."""
        self._closed.pop(reason, None)

    def is_closed(self, reason: Closed) -> bool:
        """Whether calls are refused for this reason."""
        return reason in self._closed

    def close_partition(self, partition: int, refusal: CallRefused) -> None:
        """From now on calls to this partition are refused."""
        self._closed_partitions[partition] = refusal

    def open_partition(self, partition: int) -> None:
        """Calls to this partition are no longer refused for its own sake."""
        self._closed_partitions.pop(partition, None)

    @property
    def closed_partitions(self) -> Collection[int]:
        """Whose calls are refused for their own sake."""
        return self._closed_partitions.keys()

    @property
    def refusal(self) -> CallRefused | None:
        """Why every call, and every read, is refused."""
        first = min(self._closed, default=Closed.MAJORITY)
        return None if first is Closed.MAJORITY else self._closed[first]

    @property
    def suspension(self) -> CallRefused | None:
        """Why calls are refused although this node leads, and reads of one partition are not."""
        return self._closed.get(Closed.MAJORITY)

    def raise_refusal(self) -> None:
        """Raises: CallRefused, when every call and read is refused."""
        if (refusal := self.refusal) is not None:
            raise refusal.again()

    def raise_closed(self, reason: Closed) -> None:
        """Raises: CallRefused, when calls are refused for this reason."""
        if reason in self._closed:
            raise self._closed[reason].again()

    def raise_closed_partition(self, partition: int) -> None:
        """Raises: CallRefused, when calls to this partition are refused for its own sake."""
        if partition in self._closed_partitions:
            raise self._closed_partitions[partition].again()

    # -- what is in flight -----------------------------------------------------------------------------------------------

    def count_closed(self, size_bytes: int) -> None:
        """Calls of this size are in batches now."""
        self.pending_bytes -= size_bytes

    def took(self, block_bytes_max: int) -> None:
        """A block of at most this size was taken."""
        self._room_seen -= block_bytes_max

    def hold_rest(self) -> None:
        """What is pending cannot be taken before a site answers."""
        self.held_bytes, self.pending_bytes = self.pending_bytes, 0

    def let_go(self) -> None:
        """What was held may be taken."""
        self.pending_bytes += self.held_bytes
        self.held_bytes = 0

    def release(self, flight: Flight) -> None:
        """All its calls are answered, or will be at once."""
        self.inflight_calls -= len(flight.dones)
        self.inflight_bytes -= flight.size_bytes

    def release_lax(self, flight: Flight) -> None:
        """Its calls that do not wait are answered, or will be at once; `release_rest` follows."""
        self.inflight_calls -= flight.lax_calls

    def release_rest(self, flight: Flight) -> None:
        """The others of its calls are answered, too."""
        self.inflight_calls -= len(flight.lax) - flight.lax_calls
        self.inflight_bytes -= flight.size_bytes

    def forget(self, pendings: Collection[Pending]) -> None:
        """Nothing of them will be taken."""
        size = sum([pending.size_bytes for pending in pendings])
        self.inflight_calls -= sum([len(pending.dones) for pending in pendings])
        self.inflight_bytes -= size
        self.pending_bytes, self.held_bytes = max(self.pending_bytes + self.held_bytes - size, 0), 0  # `take` parts them again

    def clear(self) -> None:
        """Everything under way was dropped."""
        self.inflight_calls = self.inflight_bytes = self.pending_bytes = self.held_bytes = 0
