"""Entries for which a follower's log has no room are not taken: what is left of it, the reserve, is for votes.

One rule: what is not taken is as good as lost. Its sender sends it again, and by then snapshots may have let go of segments. A
log that entries fill to its last byte can note no vote, and two such nodes of three never elect anybody.

As many entries of a message are taken as fit: else a leader that sends more at once than there is room for would send them for
ever. Entries that the log holds already need no room, and their sender waits for the answer. What every leader begins its term
with, changes of members and small entries of the cluster's own group come from the reserve: a full log never empties without.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cmdlog.cluster.replication import Replication
from cmdlog.cluster.rounds import size_on_disk
from cmdlog.raft.entries import payload_bytes
from cmdlog.raft.messages import KIND_NORMAL, Append, Entries
from cmdlog.raft.wire.layout import Addressed
from cmdlog.wal.format.block import RECORD_ALIGN, SECTOR_BYTES
from cmdlog.wal.ids import CLUSTER_GROUP, PartitionId
from cmdlog.wal.log import Log

BLOCK_BYTES: Final = SECTOR_BYTES  # a block's header, and its end


class LogReserve:
    """Of one node. Used under the driver's lock.

    Attributes:
        lacks_room: entries were left out the last time that some came.
    """

    def __init__(self, driver: Replication, wal: Log) -> None:
        self._driver, self._wal = driver, wal
        self.lacks_room = False

    def take_fitting(self, messages: Sequence[Addressed]) -> Sequence[Addressed]:
        """The messages with the entries that fit into the room."""
        size = 0
        for _, message in messages:
            if isinstance(message, Append) and message.entries.terms:
                size += _bytes_of(message.entries)
        if not size:
            return messages
        self.lacks_room, left = False, self._wal.room_bytes - self._driver.pending_bytes - BLOCK_BYTES
        if size <= left:
            return messages
        kept: list[Addressed] = []
        for group, message in messages:
            if not isinstance(message, Append) or not message.entries.terms:
                kept.append((group, message))
                continue
            count, size = self._count_fitting(group, message.entries, left)
            left -= size
            whole = count == len(message.entries.terms)
            self.lacks_room |= not whole
            if count:
                kept.append((group, message if whole else _shortened(message, count)))
        return kept

    def _count_fitting(self, group: PartitionId, entries: Entries, room_bytes: int) -> tuple[int, int]:
        """How many of the first entries are taken, and the room that they need."""
        count, size = self._count_held(group, entries), 0
        for kind, payload in zip(entries.kinds[count:], entries.payloads[count:], strict=True):
            more = size + size_on_disk(payload)
            if more > room_bytes and not _leads_out(group, kind, more):
                break
            count, size = count + 1, more
        return count, size

    def _count_held(self, group: PartitionId, entries: Entries) -> int:
        """How many of the first entries are in the log. Where one has the same term, all before it are the same."""
        core = self._driver.groups.cores.get(group)
        if core is None:
            return 0
        count = min(len(entries.terms), core.log.last - entries.first + 1)
        return count if count > 0 and core.log.term_at(entries.first + count - 1) == entries.terms[count - 1] else 0


def _bytes_of(entries: Entries) -> int:
    """`size_on_disk` of all payloads, which were counted already where the same object was looked at before."""
    return payload_bytes(entries) + RECORD_ALIGN * len(entries.payloads)


def _leads_out(group: int, kind: int, size: int) -> bool:
    """Whether an entry, with which its message needs so much room, may take of the reserve."""
    return kind != KIND_NORMAL or (group == CLUSTER_GROUP and size <= SECTOR_BYTES)


def _shortened(message: Append, count: int) -> Append:
    """The message with its first entries alone."""
    of = message.entries
    entries = Entries(of.first, of.terms[:count], of.kinds[:count], of.payloads[:count])
    return Append(message.sender, message.receiver, message.term, message.prev_term, message.commit, entries)
