"""The queue of one peer: bounded, in order, heartbeats first, and the newest of each group alone."""

from __future__ import annotations

import pytest

from cmdlog.cluster.transport.outbox import Outbox, estimate_bytes
from cmdlog.raft.messages import (
    Append,
    Entries,
    HeartbeatBundle,
    HeartbeatReplyBundle,
    Message,
)
from cmdlog.raft.multi_raft import Parcel
from cmdlog.raft.wire.encoding import Encoder
from cmdlog.raft.wire.layout import NO_GROUP
from cmdlog.wal.ids import Index, PartitionId, Term
from tests.cluster.transport.netkit import ONE, TWO, appended, beats, indexes
from tests.raft.wirekit import MESSAGES


def open_outbox(*, bytes_max: int = 10_000, messages_max: int = 100) -> Outbox:
    """One whose peer is connected."""
    outbox = Outbox(bytes_max=bytes_max, messages_max=messages_max)
    outbox.open()
    return outbox


def test_messages_leave_in_the_order_they_came() -> None:
    """In batches of at least one message."""
    outbox = open_outbox()
    for index in range(1, 6):
        outbox.put(appended(ONE, TWO, index, 100))
    assert indexes(outbox.take_batch(1)) == [1]
    assert indexes(outbox.take_batch(300)) == [2, 3]
    assert indexes(outbox.take_batch(1 << 20)) == [4, 5]
    assert outbox.take_batch(1 << 20) == []
    assert (outbox.waiting_bytes, outbox.waiting_messages) == (0, 0)


def test_what_does_not_fit_is_dropped_and_counted() -> None:
    """By bytes; smaller ones after it still fit."""
    outbox = open_outbox(bytes_max=1000)
    for index, size in enumerate((500, 500, 50), 1):
        outbox.put(appended(ONE, TWO, index, size))
    assert indexes(outbox.take_batch(1 << 20)) == [1, 3]
    assert outbox.dropped_messages == 1
    assert outbox.dropped_bytes > 500
    outbox.put(appended(ONE, TWO, 4, 500))
    assert indexes(outbox.take_batch(1 << 20)) == [4]


def test_the_number_of_messages_is_bounded() -> None:
    """However small they are."""
    outbox = open_outbox(messages_max=3)
    for index in range(1, 6):
        outbox.put(appended(ONE, TWO, index, 0))
    assert indexes(outbox.take_batch(1 << 20)) == [1, 2, 3]
    assert outbox.dropped_messages == 2


def test_a_closed_outbox_keeps_nothing() -> None:
    """What waited and what comes is dropped: after a lost connection it would come too late."""
    outbox = open_outbox()
    outbox.put(appended(ONE, TWO, 1))
    outbox.put(beats(ONE, TWO, {0: 1}))
    outbox.close()
    outbox.put(appended(ONE, TWO, 2))
    outbox.put(beats(ONE, TWO, {0: 2}))
    assert (outbox.dropped_messages, outbox.waiting_bytes) == (2, 0)
    outbox.open()
    assert outbox.take_batch(1 << 20) == []
    outbox.put(appended(ONE, TWO, 3))
    assert indexes(outbox.take_batch(1 << 20)) == [3]


def test_heartbeats_leave_first() -> None:
    """Whatever waits, and in a full queue too."""
    outbox = open_outbox(bytes_max=1000)
    outbox.put(appended(ONE, TWO, 1, 800))
    outbox.put(beats(ONE, TWO, {0: 1}))
    (group, bundle), (_, message) = outbox.take_batch(1 << 20)
    assert group == NO_GROUP
    assert isinstance(bundle, HeartbeatBundle)
    assert message == appended(ONE, TWO, 1, 800).messages[0][1]


def test_a_later_heartbeat_takes_the_place_of_an_earlier_one() -> None:
    """Group by group, ascending; groups that only the earlier one had stay."""
    outbox = open_outbox()
    outbox.put(beats(ONE, TWO, {1: 10, 4: 10}, term=3))
    outbox.put(beats(ONE, TWO, {0: 11, 4: 11}, term=4))
    ((_, bundle),) = outbox.take_batch(1)
    assert isinstance(bundle, HeartbeatBundle)
    assert (list(bundle.groups), list(bundle.rounds), list(bundle.terms)) == ([0, 1, 4], [11, 10, 11], [4, 3, 4])
    assert outbox.take_batch(1) == []


def test_a_later_reply_takes_the_place_of_an_earlier_one() -> None:
    """Likewise, beside heartbeats of our own."""

    def replies(rounds: dict[int, int]) -> Parcel:
        groups = [PartitionId(group) for group in rounds]
        return Parcel(TWO, bundles=[HeartbeatReplyBundle(ONE, TWO, groups, [Term(1)] * len(rounds), list(rounds.values()))])

    outbox = open_outbox()
    outbox.put(replies({0: 1, 2: 1}))
    outbox.put(beats(ONE, TWO, {0: 5}))
    outbox.put(replies({2: 2}))
    (_, beat), (_, reply) = outbox.take_batch(1)
    assert isinstance(beat, HeartbeatBundle)
    assert isinstance(reply, HeartbeatReplyBundle)
    assert (list(reply.groups), list(reply.rounds)) == ([0, 2], [1, 2])


def test_empty_bundles_stay_empty() -> None:
    """Merging two of them needs no groups."""
    outbox = open_outbox()
    outbox.put(beats(ONE, TWO, {}))
    outbox.put(beats(ONE, TWO, {}))
    ((_, bundle),) = outbox.take_batch(1)
    assert isinstance(bundle, HeartbeatBundle)
    assert list(bundle.groups) == []


@pytest.mark.parametrize("addressed", [m for m in MESSAGES if m[0] != NO_GROUP], ids=lambda m: type(m[1]).__name__)
def test_estimates_bound_what_a_message_takes(addressed: tuple[PartitionId, Message]) -> None:
    """So the queue's bytes are those of the frames, or more."""
    group, message = addressed
    meta, bulk = Encoder(None).encode(group, message)
    assert estimate_bytes(message) + 64 >= len(meta) + len(bulk)


def test_payloads_are_counted_exactly() -> None:
    """The rest of a message is small."""
    entries = Entries(Index(1), [Term(1)] * 2, bytes(2), [b"x" * 1000, b"y" * 500])
    assert 1500 <= estimate_bytes(Append(ONE, TWO, Term(1), Term(0), Index(0), entries)) < 2000
