"""Entries for which a follower's log has no room are not taken: what is left of it, the reserve, is for votes.

One rule: a message that is not taken is a lost one. Its sender sends the entries again, and by then snapshots may have let go of
segments. A log that entries fill to its last byte can note no vote, and two such nodes of three never elect anybody.

What every leader begins its term with, changes of members and small entries of the cluster's own group come from the reserve:
without them a full log never empties.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from cmdlog.cluster.rounds import size_on_disk
from cmdlog.raft.messages import KIND_NORMAL, Append, Entries
from cmdlog.wal.format.block import SECTOR_BYTES
from cmdlog.wal.ids import CLUSTER_GROUP

M = TypeVar("M")


def fitting(messages: Sequence[tuple[int, M]], room_bytes: int) -> Sequence[tuple[int, M]]:
    """The messages without those whose entries do not fit into the room, which is that of calls."""
    left = room_bytes - SECTOR_BYTES  # a block's header, and its end
    if sum(_bytes_of(message.entries) for _, message in messages if isinstance(message, Append)) <= left:
        return messages
    kept: list[tuple[int, M]] = []
    for group, message in messages:
        if isinstance(message, Append) and message.entries.terms:
            size = _bytes_of(message.entries)
            if size > left and not _leads_out(group, message.entries, size):
                continue
            left -= size
        kept.append((group, message))
    return kept


def _bytes_of(entries: Entries) -> int:
    return sum(map(size_on_disk, entries.payloads))


def _leads_out(group: int, entries: Entries, size: int) -> bool:
    """Whether the entries may take of the reserve."""
    return KIND_NORMAL not in entries.kinds or (group == CLUSTER_GROUP and size <= SECTOR_BYTES)
