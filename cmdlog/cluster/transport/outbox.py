"""What waits to be sent to one peer.

One rule: it never grows beyond its limits, and a heartbeat never waits for megabytes. A message that does not fit is dropped and
counted: consensus sends again what was not acknowledged. Heartbeats lead, and a later one takes the place of an earlier one of
the same group, because it says all that the earlier one did.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

from cmdlog.raft.messages import Append, Bundle, HeartbeatBundle, HeartbeatReplyBundle, InstallSnapshot, Message
from cmdlog.raft.multi_raft import GroupId, Parcel
from cmdlog.raft.wire.layout import NO_GROUP, Addressed

MESSAGE_BYTES: Final = 128  # of head, fixed part and fields, roughly
ENTRY_BYTES: Final = 16  # of an entry's size, term and kind, at most


def estimate_bytes(message: Message) -> int:
    """About what it takes in a frame; payloads exactly."""
    if isinstance(message, Append):
        payloads = message.entries.payloads
        return MESSAGE_BYTES + ENTRY_BYTES * len(payloads) + sum(map(len, payloads))
    if isinstance(message, InstallSnapshot):
        return 8 * MESSAGE_BYTES  # of its configuration
    return MESSAGE_BYTES


class Outbox:
    """Filled by any thread, emptied by the loop's. A closed one keeps nothing: it would come too late."""

    def __init__(self, *, bytes_max: int, messages_max: int) -> None:
        self.bytes_max, self.messages_max = bytes_max, messages_max
        self.dropped_messages = self.dropped_bytes = 0
        self._guard = threading.Lock()
        self._messages: deque[tuple[int, Addressed]] = deque()  # with their sizes
        self._bytes = 0
        self._beats: HeartbeatBundle | None = None
        self._replies: HeartbeatReplyBundle | None = None
        self._open = False
        self.waits = False  # something is to be sent; read without the lock

    @property
    def waiting_bytes(self) -> int:
        """Of messages; heartbeats are bounded by the number of groups."""
        return self._bytes

    @property
    def waiting_messages(self) -> int:
        return len(self._messages)

    def open(self) -> None:
        """From now on it keeps what is put in."""
        with self._guard:
            self._open = True

    def close(self) -> None:
        """Drops what waits, and whatever comes."""
        with self._guard:
            self._open = False
            self._count_dropped(len(self._messages), self._bytes)
            self._messages.clear()
            self._bytes = 0
            self._beats = self._replies = None
            self.waits = False

    def put(self, parcel: Parcel) -> None:
        """Takes what there is room for. Never blocks for longer than another thread puts or takes."""
        with self._guard:
            if not self._open:
                for _, message in parcel.messages:
                    self._count_dropped(1, estimate_bytes(message))
                return
            for bundle in parcel.bundles:
                self._put_bundle(bundle)
            for addressed in parcel.messages:
                size = estimate_bytes(addressed[1])
                if self._bytes + size > self.bytes_max or len(self._messages) >= self.messages_max:
                    self._count_dropped(1, size)
                else:
                    self._messages.append((size, addressed))
                    self._bytes += size
            self.waits = True

    def take_batch(self, bytes_max: int) -> list[Addressed]:
        """What is sent next: all heartbeats, then messages in their order, up to `bytes_max` or the first one."""
        with self._guard:
            batch: list[Addressed] = []
            for bundle in (self._beats, self._replies):
                if bundle is not None:
                    batch.append((NO_GROUP, bundle))
            self._beats = self._replies = None
            room, messages = bytes_max, self._messages
            while messages and room > 0:
                size, addressed = messages.popleft()
                self._bytes -= size
                room -= size
                batch.append(addressed)
            self.waits = bool(messages)
        return batch

    def count_dropped(self, messages: int, bytes_: int) -> None:
        """Messages that were taken and could not be sent."""
        with self._guard:
            self._count_dropped(messages, bytes_)

    def _count_dropped(self, messages: int, bytes_: int) -> None:
        self.dropped_messages += messages
        self.dropped_bytes += bytes_

    def _put_bundle(self, bundle: Bundle) -> None:
        if isinstance(bundle, HeartbeatBundle):
            self._beats = bundle if self._beats is None else _merge_beats(self._beats, bundle)
        else:
            self._replies = bundle if self._replies is None else _merge_replies(self._replies, bundle)


def _merge_beats(earlier: HeartbeatBundle, later: HeartbeatBundle) -> HeartbeatBundle:
    rows = {row[0]: row[1:] for row in zip(earlier.groups, earlier.terms, earlier.commits, earlier.rounds, strict=True)}
    rows |= {row[0]: row[1:] for row in zip(later.groups, later.terms, later.commits, later.rounds, strict=True)}
    groups: list[GroupId] = sorted(rows)
    terms, commits, rounds = zip(*(rows[group] for group in groups), strict=True) if groups else ((), (), ())
    return HeartbeatBundle(later.sender, later.receiver, groups, list(terms), list(commits), list(rounds))


def _merge_replies(earlier: HeartbeatReplyBundle, later: HeartbeatReplyBundle) -> HeartbeatReplyBundle:
    rows = {row[0]: row[1:] for row in zip(earlier.groups, earlier.terms, earlier.rounds, strict=True)}
    rows |= {row[0]: row[1:] for row in zip(later.groups, later.terms, later.rounds, strict=True)}
    groups: list[GroupId] = sorted(rows)
    terms, rounds = zip(*(rows[group] for group in groups), strict=True) if groups else ((), ())
    return HeartbeatReplyBundle(later.sender, later.receiver, groups, list(terms), list(rounds))
