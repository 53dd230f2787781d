"""What tests of the wire share: a link, one message of every kind, and frames made by hand with the right seal."""

from __future__ import annotations

from typing import Final

import google_crc32c
import pytest

from cmdlog.raft.configuration import Configuration, NodeId, nodes
from cmdlog.raft.messages import (
    KIND_CONFIGURATION,
    KIND_EMPTY,
    Append,
    AppendReply,
    Campaign,
    Entries,
    Executed,
    Fitness,
    Heartbeat,
    HeartbeatBundle,
    HeartbeatReply,
    HeartbeatReplyBundle,
    InstallSnapshot,
    ReadReply,
    ReadRequest,
    Removed,
    SnapshotDescriptor,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from cmdlog.raft.wire.layout import FIELD, HEAD, NO_GROUP, Addressed, BadFrame, FrameFault
from cmdlog.raft.wire.secure_frames import FRONT, TRAILER, FrameSealer, Link, Opener, Peer, Seal, Secret
from cmdlog.wal.ids import Index, PartitionId, Term

ME, PEER, THIRD = NodeId(1), NodeId(2), NodeId(3)
SECRET: Final = Secret(b"0123456789abcdef0123456789abcdef")
CLUSTER: Final = bytes(range(16))
LINK_HEADS: Final = Link(CLUSTER, Peer(ME, b"life-of1"), Peer(PEER, b"life-of2"), b"session!", Seal.HEADS)
LINK_WHOLE: Final = Link(CLUSTER, Peer(ME, b"life-of1"), Peer(PEER, b"life-of2"), b"session!", Seal.WHOLE)
TERM = Term(7)
GROUP = PartitionId(5)
MIXED = Entries(
    Index(11),
    [Term(3), Term(3), Term(5), Term(7)],
    bytes([0, 0, KIND_EMPTY, KIND_CONFIGURATION]),
    [b"first", b"", b"third!", Configuration(voters=nodes([1, 2, 3])).to_bytes()],
)
EVEN = Entries(Index(20), [Term(7)] * 3, bytes(3), [b"aaaa", b"bbbb", b"cccc"])
MANIFEST = SnapshotDescriptor(
    Index(9),
    Term(3),
    Configuration(voters=nodes([1, 2]), outgoing=nodes([1, 3]), learners_next=nodes([3]), auto_leave=True),
)

MESSAGES: Final[list[Addressed]] = [
    (GROUP, VoteRequest(ME, PEER, TERM, Campaign.TRANSFER, Index(12), Term(6))),
    (GROUP, VoteReply(ME, PEER, TERM, Campaign.PRE, granted=True)),
    (GROUP, Append(ME, PEER, TERM, Term(3), Index(10), MIXED)),
    (GROUP, AppendReply(ME, PEER, TERM, Index(23), rejected=True, hint_index=Index(19), hint_term=Term(6))),
    (GROUP, Heartbeat(ME, PEER, TERM, Index(10), 4)),
    (GROUP, HeartbeatReply(ME, PEER, TERM, 4)),
    (GROUP, InstallSnapshot(ME, PEER, TERM, MANIFEST)),
    (GROUP, TimeoutNow(ME, PEER, TERM)),
    (GROUP, ReadRequest(ME, PEER, TERM, (1, (1 << 64) - 1))),
    (GROUP, ReadReply(ME, PEER, TERM, Index(10), (1,))),
    (NO_GROUP, HeartbeatBundle(ME, PEER, [PartitionId(0), GROUP], [TERM, Term(9)], [Index(10), Index(0)], [4, 1])),
    (NO_GROUP, HeartbeatReplyBundle(ME, PEER, [PartitionId(0), GROUP], [TERM, Term(9)], [4, 1])),
    (GROUP, Append(ME, PEER, TERM, TERM, Index(19), EVEN)),
    (GROUP, Append(ME, PEER, TERM, TERM, Index(22), Entries(Index(23), [TERM], bytes(1), [b"alone"]))),
    (GROUP, Append(ME, PEER, TERM, TERM, Index(22), Entries(Index(23), [], b"", []))),
    (GROUP, Append(ME, PEER, TERM, TERM, Index(22), Entries(Index(23), [TERM, TERM], bytes(2), [b"", b""]))),
    (GROUP, InstallSnapshot(ME, PEER, TERM, SnapshotDescriptor(Index(1), Term(1), Configuration(voters=nodes([1]))))),
    (GROUP, ReadRequest(ME, PEER, TERM, ())),
    (GROUP, Removed(ME, PEER, TERM, Index(12))),
    (
        NO_GROUP,
        Executed(
            ME,
            PEER,
            Term(0),
            [PartitionId(0), GROUP],
            [TERM, Term(9)],
            [Index(4), Index(1)],
            [Index(5), Index(2)],
            [0, 2**64 - 1],
        ),
    ),
    (NO_GROUP, Fitness(ME, PEER, Term(0), 6)),
]
"""Every kind, and what an append may look like: mixed terms, kinds and sizes, equal sizes, one entry, none, empty ones."""


BEAT: Addressed = (GROUP, Heartbeat(ME, PEER, TERM, Index(1), 1))


def one_frame(messages: list[Addressed], link: Link = LINK_HEADS) -> bytes:
    """The frame that carries them, the first of its session."""
    (frame,) = FrameSealer(link, SECRET, SECRET.encoder(link.seal)).seal(messages)
    return frame


def opened(frame: bytes, link: Link = LINK_HEADS) -> tuple[list[Addressed], dict[FrameFault, int]]:
    """The messages, and what was counted."""
    opener = Opener(link, SECRET)
    messages = opener.open(frame)
    return messages, {fault: count for fault, count in opener.faults.items() if count}


def sealed_by_hand(
    meta: bytes, bulk: bytes = b"", *, link: Link = LINK_HEADS, sequence: int = 1, secret: Secret = SECRET
) -> bytes:
    """A frame with a right checksum and MAC around any meta: what a peer with a defect, or of a newer version, may send."""
    front = FRONT.pack(FRONT.size + len(meta) + TRAILER.size + len(bulk), link.head(), sequence, len(meta)) + meta
    mac = secret.mac(b"raft frame")
    mac.update(front)
    return front + google_crc32c.value(front).to_bytes(4, "little") + mac.digest() + bulk


def meta_of(kind: int, body: bytes, bulk: bytes = b"", *, term: int = TERM) -> bytes:
    """The meta of one message, whatever its body is."""
    return HEAD.pack(HEAD.size + len(body), len(bulk), google_crc32c.value(bulk), kind, GROUP, term) + body


def field(tag: int, content: bytes, *, size: int | None = None) -> bytes:
    """A tagged field; `size` lies about its length."""
    return FIELD.pack(tag, len(content) if size is None else size) + content


def append(payloads: list[bytes], *, first: int = 1, terms: list[int] | None = None, kinds: bytes | None = None) -> Append:
    """An append of these payloads."""
    count = len(payloads)
    columns = Entries(Index(first), [Term(t) for t in terms or [TERM] * count], kinds or bytes(count), payloads)
    return Append(ME, PEER, TERM, Term(0), Index(0), columns)


def fault_of(frame: bytes, link: Link = LINK_HEADS) -> FrameFault:
    """Why the frame is refused."""
    opener = Opener(link, SECRET)
    with pytest.raises(BadFrame) as refused:
        opener.open(frame)
    assert opener.faults[refused.value.fault] == 1
    return refused.value.fault
