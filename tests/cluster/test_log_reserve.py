"""Entries that a follower's log has no room for are as good as lost; what leads out of a full log is taken."""

from __future__ import annotations

from cmdlog.cluster.log_reserve import fitting
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.messages import KIND_CONFIGURATION, KIND_EMPTY, KIND_NORMAL, Append, Entries, Heartbeat, Message
from cmdlog.wal.format.block import SECTOR_BYTES
from cmdlog.wal.ids import CLUSTER_GROUP, Index, Term

LEADER, NODE, TERM = NodeId(1), NodeId(2), Term(3)
BEAT = 0, Heartbeat(LEADER, NODE, TERM, Index(1), 1)
CALL = 1000  # bytes


def an_append(*kinds: int, group: int = 0, size: int = CALL) -> tuple[int, Message]:
    """Entries of these kinds, each of that size."""
    entries = Entries(Index(2), [TERM] * len(kinds), bytes(kinds), [b"x" * size] * len(kinds))
    return group, Append(LEADER, NODE, TERM, TERM, Index(1), entries)


def test_what_fits_is_taken_as_it_came() -> None:
    """Without a copy of the list."""
    messages = [BEAT, an_append(KIND_NORMAL, KIND_NORMAL)]
    assert fitting(messages, SECTOR_BYTES + 3 * CALL) is messages


def test_calls_leave_the_reserve_alone() -> None:
    """Signs of life, and questions where the log ends, are heard all the same."""
    asks, small, large = an_append(), an_append(KIND_NORMAL), an_append(KIND_NORMAL, KIND_NORMAL, KIND_NORMAL)
    assert fitting([BEAT, asks, large, small], SECTOR_BYTES + 2 * CALL) == [BEAT, asks, small]
    assert fitting([BEAT, asks, small, large], 0) == [BEAT, asks]


def test_what_leads_out_of_a_full_log_is_taken() -> None:
    """The beginning of a term, changes of members, and what the cluster states of itself; not its code."""
    begins, change = an_append(KIND_EMPTY, size=0), an_append(KIND_CONFIGURATION)
    fact, code = (an_append(KIND_NORMAL, group=CLUSTER_GROUP, size=size) for size in (CALL, 2 * SECTOR_BYTES))
    assert fitting([begins, change, fact, code, an_append(KIND_NORMAL)], 0) == [begins, change, fact]
