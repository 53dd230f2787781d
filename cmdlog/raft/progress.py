"""What the leader knows of one follower, and how much it may send to it.

One rule: `match` never falls. It is what the follower said is durable there; replies may come twice, late and in any order.

States (as in etcd's raft): PROBE looks for the place where the logs meet, one message at a time; REPLICATE sends ahead without
waiting, within a window of messages and bytes; SNAPSHOT waits while the follower copies a snapshot out of band.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import Final

from cmdlog.raft.messages import SnapshotDescriptor
from cmdlog.raft.settings import RaftSettings
from cmdlog.wal.ids import Index


class Sending(enum.Enum):
    """How a follower is being fed."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


_PROBE: Final = Sending.PROBE  # a name of the module is found in a third of the time of a member of an enum
_REPLICATE: Final = Sending.REPLICATE


class FollowerProgress:
    """One follower. Invariant: 0 <= match < next; only in SNAPSHOT is there a `manifest`."""

    __slots__ = (
        "acked_round",
        "answered",
        "bytes_max",
        "copy_ticks",
        "heard",
        "in_flight",
        "in_flight_bytes",
        "manifest",
        "match",
        "messages_max",
        "next",
        "nudge",
        "paused",
        "sending",
    )

    def __init__(self, following: Index, *, heard: int, messages_max: int, bytes_max: int) -> None:
        self.match, self.next = Index(0), Index(following + 1)
        self.messages_max, self.bytes_max = messages_max, bytes_max
        self.heard = heard  # the leader's tick at which this follower last said anything, or was first sent something
        self.answered = False  # whether it has said anything in this term
        self.acked_round = 0  # the latest read round that it confirmed
        self.nudge = False  # send once, entries or not: something under way may be lost
        self.in_flight: deque[tuple[Index, int]] = deque()  # (last index, bytes) of each message, ascending
        self._restart(Sending.PROBE)

    def _restart(self, sending: Sending) -> None:
        self.sending = sending
        self.paused = self.nudge = False
        self.manifest: SnapshotDescriptor | None = None
        self.copy_ticks = 0
        self.in_flight.clear()
        self.in_flight_bytes = 0

    def probe(self) -> None:
        """Back to one message at a time, from the last known match; after a copy, from where it was to end."""
        self.next = Index(self.match + 1)
        self._restart(Sending.PROBE)

    def replicate(self) -> None:
        """The logs meet at `match`: send ahead."""
        self.next = Index(self.match + 1)
        self._restart(Sending.REPLICATE)

    def copy(self, manifest: SnapshotDescriptor) -> None:
        """The follower is to copy the snapshot; log entries follow it."""
        self._restart(Sending.SNAPSHOT)
        self.manifest = manifest
        self.next = Index(manifest.index + 1)

    @property
    def open(self) -> bool:
        """Whether entries may be sent now."""
        if self.sending is _REPLICATE:
            return len(self.in_flight) < self.messages_max and self.in_flight_bytes < self.bytes_max
        return not self.paused and self.sending is _PROBE

    def message_bytes_max(self, settings: RaftSettings) -> int:
        """Of the entries of the next message, unless the first is larger."""
        probes = self.sending is not _REPLICATE
        return min(settings.append_bytes_max, settings.probe_bytes_max) if probes else settings.append_bytes_max

    def sent(self, last: Index, size: int) -> None:
        """Entries up to `last` were sent."""
        if self.sending is _PROBE:
            self.paused = True
            return
        self.next = Index(last + 1)
        self.in_flight.append((last, size))
        self.in_flight_bytes += size

    def accepted(self, index: Index) -> bool:
        """The follower's log is durable and equal up to `index`. Returns whether that is news."""
        in_flight = self.in_flight
        while in_flight and in_flight[0][0] <= index:
            self.in_flight_bytes -= in_flight.popleft()[1]
        if index <= self.match:
            return False
        self.match = index
        if self.next <= index:
            self.next = Index(index + 1)
        return True

    def rejected(self, index: Index, retry: Index) -> bool:
        """The follower has no match at `index`; `retry` is the highest index that still could be one.

        Returns False when the rejection is stale: of a message before the latest acknowledgement or probe. One of what was
        acknowledged is of a disk that lost it, and nothing that is sent there at once would be taken any better: answering each
        rejection with a message, some of which arrive twice, grew without end.
        """
        if self.sending is Sending.REPLICATE and index > self.match:
            self.probe()
            return True
        if self.sending is not Sending.PROBE or index != self.next - 1 or index <= self.match:
            return False
        self.next = max(Index(self.match + 1), min(index, Index(retry + 1)))
        self.paused = False
        return True
