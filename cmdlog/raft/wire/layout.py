"""The tables of the wire: fields, tags, limits, and why bytes are refused. WIRE.md shows them; a test compares the two.

One rule: numbers in here are for ever. The fixed part of a kind never changes; what is added later is a field with a new tag,
which older readers skip, as they skip kinds that they do not know. A new frame version is only for a change of the layout itself.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from hashlib import blake2b
from struct import Struct, calcsize, pack, unpack
from typing import Any, Final, NamedTuple

from cmdlog.raft.errors import RaftError
from cmdlog.raft.messages import (
    Bundle,
    Executed,
    Fitness,
    Heartbeat,
    HeartbeatBundle,
    HeartbeatReply,
    HeartbeatReplyBundle,
    Message,
    MessageKind,
    ReadReply,
    ReadRequest,
    Removed,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from cmdlog.wal.ids import PartitionId

NUMBER_MAX: Final = (1 << 62) - 1  # of a term, index or round: a sum of two of them is still a positive 64-bit number
ENTRIES_MAX: Final = 1 << 14  # of one frame, empty ones too: bounds the objects that a short frame can make
MESSAGES_MAX: Final = 4096  # of one frame: above the groups that a node has
COLUMN_MAX: Final = 1 << 16  # contexts of a message, groups of a bundle
KEPT_BYTES_MAX: Final = 16 << 20  # bulk that an encoder keeps for the next follower
DIGEST_BYTES: Final = 16
NO_GROUP: Final = PartitionId(0xFFFFFFFF)  # a bundle's: it goes from node to node

Addressed = tuple[PartitionId, Message | Bundle]
"""A message and the group that it belongs to."""


class FrameFault(enum.Enum):
    """Why bytes of a peer were refused. Counted; the first ten refuse the whole frame, the others one message of it."""

    LENGTH = "length"  # shorter or longer than it says or may be
    MAGIC = "magic"  # not a frame
    VERSION = "version"  # a layout that this program does not know
    CHECKSUM = "checksum"  # damaged under way
    CLUSTER = "cluster"  # of another cluster
    SENDER = "sender"  # not the peer, or not the incarnation of its disk, that this link belongs to
    RECEIVER = "receiver"  # for another node, or for an earlier incarnation of this one
    SESSION = "session"  # of an earlier connection, or with another seal than agreed
    MAC = "mac"  # not made with the cluster's secret
    SEQUENCE = "sequence"  # seen before, or out of order
    MALFORMED = "malformed"  # authentic and impossible: a defect of the peer
    UNKNOWN_KIND = "unknown_kind"  # of a newer version: normal during a rolling upgrade


class BadFrame(RaftError):
    """Nothing of the frame was taken. The connection has to be closed: where the next frame begins is not known any more."""

    def __init__(self, fault: FrameFault, detail: str) -> None:
        self.fault = fault
        super().__init__(f"frame refused: {fault.value}: {detail}")


class MessageTooLarge(RaftError):
    """A message of ours that no frame holds: a limit of the group's settings is above the frame's."""


class Malformed(Exception):
    """Ends the decoding of one message."""


class Tag(enum.IntEnum):
    """Fields after the fixed part, each at most once. Numbers for ever."""

    SIZES = 1  # uint32 per payload; absent: all payloads are of one size
    KINDS = 2  # uint8 per entry; absent: all are normal
    TERM_RUNS = 3  # (uint32 count, uint64 term) per run of entries; absent: all have the term of the fixed part
    DIGEST = 4  # keyed BLAKE2b-128 of the bulk
    CONFIGURATION = 5  # JSON
    CONTEXTS = 7  # uint64 per read
    GROUPS = 8  # uint32 per group, ascending
    TERMS = 9  # uint64 per group
    COMMITS = 10  # uint64 per group
    ROUNDS = 11  # uint64 per group
    INDEXES = 12  # uint64 per row
    DIGESTS = 13  # uint64 per row


HEAD_FIELDS: Final = (
    ("meta_bytes", "I"),
    ("bulk_bytes", "I"),
    ("bulk_crc", "I"),
    ("kind", "H"),
    ("reserved", "2x"),
    ("group", "I"),
    ("term", "Q"),
)
FIXED_FIELDS: Final[dict[MessageKind, tuple[tuple[str, str], ...]]] = {
    MessageKind.VOTE_REQUEST: (("campaign", "B"), ("last_index", "Q"), ("last_term", "Q")),
    MessageKind.VOTE_REPLY: (("campaign", "B"), ("granted", "B")),
    MessageKind.APPEND: (("first", "Q"), ("prev_term", "Q"), ("commit", "Q"), ("entries_term", "Q"), ("count", "I")),
    MessageKind.APPEND_REPLY: (("index", "Q"), ("rejected", "B"), ("hint_index", "Q"), ("hint_term", "Q")),
    MessageKind.HEARTBEAT: (("commit", "Q"), ("round", "Q")),
    MessageKind.HEARTBEAT_REPLY: (("round", "Q"),),
    MessageKind.INSTALL_SNAPSHOT: (("index", "Q"), ("snapshot_term", "Q")),
    MessageKind.TIMEOUT_NOW: (),
    MessageKind.READ_REQUEST: (),
    MessageKind.READ_REPLY: (("index", "Q"),),
    MessageKind.HEARTBEAT_BUNDLE: (),
    MessageKind.HEARTBEAT_REPLY_BUNDLE: (),
    MessageKind.REMOVED: (("index", "Q"),),
    MessageKind.EXECUTED: (),
    MessageKind.FITNESS: (("reasons", "I"),),
}

UINT32: Final = "I"  # columns, by their struct code
UINT64: Final = "Q"


class Column(NamedTuple):
    """A field of numbers, which a message has under this name."""

    tag: Tag
    name: str
    code: str  # struct code of a number
    is_bounded: bool  # by NUMBER_MAX: contexts and digests are of 64 bits, unlike terms and indexes


def _columns(*tags: Tag) -> tuple[Column, ...]:
    whole = (Tag.CONTEXTS, Tag.DIGESTS)
    return tuple(Column(tag, tag.name.lower(), UINT32 if tag is Tag.GROUPS else UINT64, tag not in whole) for tag in tags)


COLUMNS: Final = {
    MessageKind.READ_REQUEST: _columns(Tag.CONTEXTS),
    MessageKind.READ_REPLY: _columns(Tag.CONTEXTS),
    MessageKind.HEARTBEAT_BUNDLE: _columns(Tag.GROUPS, Tag.TERMS, Tag.ROUNDS, Tag.COMMITS),
    MessageKind.HEARTBEAT_REPLY_BUNDLE: _columns(Tag.GROUPS, Tag.TERMS, Tag.ROUNDS),
    MessageKind.EXECUTED: _columns(Tag.GROUPS, Tag.TERMS, Tag.INDEXES, Tag.COMMITS, Tag.DIGESTS),
}
"""Fields of numbers, in the order in which they are written; all of a message are of one length."""

PLAIN: Final[tuple[Any, ...]] = (
    VoteRequest, VoteReply, Heartbeat, HeartbeatReply, TimeoutNow, ReadRequest, ReadReply, Removed, HeartbeatBundle,
    HeartbeatReplyBundle, Executed, Fitness,
)  # fmt: skip
"""Messages that are their fixed numbers and columns and nothing else, under the names that the tables above have."""


def layout(fields: Sequence[tuple[str, str]]) -> Struct:
    """Little-endian, without padding."""
    return Struct("<" + "".join(code for _, code in fields))


HEAD: Final = layout(HEAD_FIELDS)
FIELD: Final = Struct("<HxxI")  # tag, bytes that follow
RUN: Final = Struct("<IQ")  # count, term
FIXED: Final = {kind: layout(fields) for kind, fields in FIXED_FIELDS.items()}
WHOLE: Final = {kind: layout((*HEAD_FIELDS, *fields)) for kind, fields in FIXED_FIELDS.items()}  # head and fixed part in one call


def column_code(tag: Tag) -> str:
    """The struct code of a column's numbers."""
    return UINT32 if tag is Tag.GROUPS else UINT64


def pack_column(code: str, values: Collection[int]) -> bytes:
    """Numbers of one width, one after the other."""
    return pack(f"<{len(values)}{code}", *values)


def unpack_column(code: str, raw: bytes, limit: int) -> tuple[int, ...]:
    """The inverse. Raises: Malformed when `raw` ends within a number or has more of them than `limit`."""
    count, rest = divmod(len(raw), calcsize(code))
    if rest or count > limit:
        raise Malformed
    return unpack(f"<{count}{code}", raw)


def pack_field(tag: Tag, content: bytes) -> bytes:
    """A field after the fixed part of a message."""
    return FIELD.pack(tag, len(content)) + content


def bulk_digest(bulk: bytes, key: bytes) -> bytes:
    """What a link whose bytes nobody else protects authenticates payloads by."""
    return blake2b(bulk, key=key, digest_size=DIGEST_BYTES, person=b"raft bulk").digest()
