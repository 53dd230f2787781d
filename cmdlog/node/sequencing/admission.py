"""Admission: how many calls and bytes are under way, and whether the log has room for one more.

One rule: plain data of the sequencer, under its lock; a call is counted here from its placing until it is answered.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from cmdlog.node.outcome import CallRefused, LogFullRefusal, Overloaded
from cmdlog.node.sequencing.flight import Flight, Pending
from cmdlog.node.sequencing.partition_pipeline import Limits

ROOM_LOOK_BYTES: Final = 64 << 20  # with more room than this the log is not asked at every call


class Admission:
    """`pending_bytes` is about what the next `take` would return; `held_bytes` of calls cannot be taken before a site answers."""

    def __init__(self, limits: Limits, *, room_bytes: Callable[[], int], why_full: Callable[[], str]) -> None:
        self.limits, self._room_bytes, self.why_full = limits, room_bytes, why_full
        self.inflight_calls = self.inflight_bytes = 0
        self.pending_bytes = self.held_bytes = 0
        self.refusal: CallRefused | None = None  # why every call is refused
        self.suspension: CallRefused | None = None  # why calls are refused, and reads of one partition are not
        self._room_seen = 0  # when the log was last asked, less what was taken since

    def admit(self, calls: int, size_bytes: int, *, overhead_bytes: int) -> None:
        """Counts calls in. `overhead_bytes`: what the log needs besides them. Raises: CallRefused."""
        limits = self.limits
        if self.refusal is not None:
            raise self.refusal.again()
        self.raise_suspension()
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

    def refuse(self, reason: CallRefused | None) -> None:
        """From now on every call is refused with this reason; None: calls are taken."""
        self.refusal = reason

    def raise_refusal(self) -> None:
        """Raises: CallRefused, when every call is."""
        if self.refusal is not None:
            raise self.refusal.again()

    def suspend(self, reason: CallRefused | None) -> None:
        """From now on calls are refused with this reason, reads of one partition are served; None: calls are taken."""
        self.suspension = reason

    def raise_suspension(self) -> None:
        """Raises: CallRefused, while calls are suspended."""
        if self.suspension is not None:
            raise self.suspension.again()

    def close(self, size_bytes: int) -> None:
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
