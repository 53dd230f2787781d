"""Entries that a follower's log has no room for are as good as lost; what leads out of a full log is taken."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from cmdlog.cluster.log_reserve import BLOCK_BYTES, LogReserve
from cmdlog.cluster.rounds import size_on_disk
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.messages import KIND_CONFIGURATION, KIND_EMPTY, KIND_NORMAL, Append, Entries, Heartbeat
from cmdlog.raft.wire.layout import Addressed
from cmdlog.wal.format.block import SECTOR_BYTES
from cmdlog.wal.ids import CLUSTER_GROUP, Index, PartitionId, Term

LEADER, NODE, TERM = NodeId(1), NodeId(2), Term(3)
ZERO, ONE = PartitionId(0), PartitionId(1)
BEAT: Addressed = ZERO, Heartbeat(LEADER, NODE, TERM, Index(1), 1)
SIZE = 1000
CALL = size_on_disk(b"x" * SIZE)
NORMALS = bytes([KIND_NORMAL] * 3)


def an_append(kinds: bytes = b"", *, group: int = ZERO, size: int = SIZE, first: int = 2) -> Addressed:
    """Entries of these kinds, each of that size."""
    entries = Entries(Index(first), [TERM] * len(kinds), kinds, [b"x" * size] * len(kinds))
    return PartitionId(group), Append(LEADER, NODE, TERM, TERM, Index(1), entries)


class RoomyReserve:
    """A reserve of a log whose room a test sets."""

    def __init__(self, core: Any) -> None:
        self._log = SimpleNamespace(room_bytes=0)
        driver: Any = SimpleNamespace(groups=SimpleNamespace(cores={ZERO: core}), pending_bytes=0)
        self._reserve = LogReserve(driver, cast(Any, self._log))

    @property
    def lacks_room(self) -> bool:
        return self._reserve.lacks_room

    def take_fitting(self, messages: Sequence[Addressed], room_bytes: int) -> Sequence[Addressed]:
        self._log.room_bytes = room_bytes
        return self._reserve.take_fitting(messages)


def reserve(*, last: int = 1, term: int = TERM) -> RoomyReserve:
    """Of a node whose group 0 ends there; its entries have this term."""
    log = SimpleNamespace(last=Index(last), term_at=lambda index: Term(term) if index <= last else None)
    core: Any = SimpleNamespace(log=log)
    return RoomyReserve(core)


def test_what_fits_is_taken_as_it_came() -> None:
    """Without a copy of the list."""
    messages = [BEAT, an_append(NORMALS)]
    kept = reserve()
    assert kept.take_fitting(messages, BLOCK_BYTES + 3 * CALL) is messages
    assert not kept.lacks_room


def test_calls_leave_the_reserve_alone() -> None:
    """Signs of life, and questions where the log ends, are heard all the same."""
    asks = an_append()
    kept = reserve()
    assert kept.take_fitting([BEAT, asks, an_append(NORMALS)], BLOCK_BYTES) == [BEAT, asks]
    assert kept.lacks_room
    assert kept.take_fitting([BEAT, asks], 0) == [BEAT, asks]
    assert kept.lacks_room, "nothing has come since"
    kept.take_fitting([an_append(NORMALS)], BLOCK_BYTES + 3 * CALL)
    assert not kept.lacks_room


def test_the_first_entries_of_a_message_are_taken_as_far_as_they_fit() -> None:
    """A leader sends more at once than there is room for, and would send the same for ever."""
    kept = reserve()
    large, small = an_append(NORMALS), an_append(NORMALS[:1], group=ONE)
    assert kept.take_fitting([large, small], BLOCK_BYTES + 2 * CALL) == [an_append(NORMALS[:2])]
    assert kept.lacks_room
    assert kept.take_fitting([large, small], BLOCK_BYTES + 3 * CALL) == [large]
    assert kept.lacks_room


def test_entries_that_the_log_holds_need_no_room() -> None:
    """Their sender, which may have lost its place, waits for the answer; of another leader's entries nothing is known."""
    assert reserve(last=4).take_fitting([an_append(NORMALS)], 0) == [an_append(NORMALS)]
    assert reserve(last=3).take_fitting([an_append(NORMALS)], 0) == [an_append(NORMALS[:2])]
    assert reserve(last=3).take_fitting([an_append(NORMALS)], BLOCK_BYTES + CALL) == [an_append(NORMALS)]
    assert reserve(last=4, term=2).take_fitting([an_append(NORMALS)], 0) == []


def test_what_leads_out_of_a_full_log_is_taken() -> None:
    """The beginning of a term, changes of members, and what the cluster states of itself; not its code."""
    begins, change = an_append(bytes([KIND_EMPTY]), size=0), an_append(bytes([KIND_CONFIGURATION]))
    fact, code = (an_append(NORMALS[:1], group=CLUSTER_GROUP, size=size) for size in (SIZE, 2 * SECTOR_BYTES))
    assert reserve().take_fitting([begins, change, fact, code, an_append(NORMALS)], 0) == [begins, change, fact]


def test_a_term_begins_also_where_calls_follow_in_the_message() -> None:
    """Without that entry the new leader commits nothing, and no log is ever let go of."""
    message = an_append(bytes([KIND_EMPTY, KIND_NORMAL, KIND_EMPTY]))
    assert reserve().take_fitting([message], 0) == [an_append(bytes([KIND_EMPTY]))]
